"""Fixtures of the unit tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import pytest

from penstock.settings import PROJECT
from tests.support.supervised_platform import Platform

# Fixtures behind which a server, a JVM or another process is.
OTHER_PROCESSES = {"spark", "broker", "mariadb", "p", "airflow_home", "parsed"}
EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.connect"}
_pure: list[str] = []


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    # Python's `platform` asks `file` about the interpreter, when a library is imported that wants to know.
    is_platform = arguments[:1] == ("file",)
    if _pure and event in EVENTS and not is_platform and current_thread() is main_thread():
        raise AssertionError(f"{_pure[0]} is not marked `processes`, but calls {event}: {arguments[:1]}")


sys.addaudithook(_refuse)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if OTHER_PROCESSES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.processes)


@pytest.fixture(autouse=True)
def _no_other_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test without the marker `processes` is part of `make check`: it starts no process and opens no connection."""
    if not request.node.get_closest_marker("processes"):
        _pure[:] = [request.node.nodeid]
    yield
    _pure.clear()


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Operators and triggers can be imported, with a home of Airflow of their own."""
    with pytest.MonkeyPatch.context() as m:
        if "airflow" not in sys.modules:
            m.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
        yield


@pytest.fixture
def p(tmp_path: Path, home: Path) -> Iterator[Platform]:  # noqa: ARG001
    """A platform of this test's own, under a home of its own; its drivers are killed at the end."""
    made = Platform(tmp_path)
    yield made
    made.close()


# Run in a fresh interpreter: imports every DAG file while clients are poisoned, then tells what it found.
PROBE = """
import importlib.abc, json, runpy, socket, sqlite3, sys
from pathlib import Path
import airflow.sdk
from airflow.sdk import DAG

BANNED = {
    "pyspark", "py4j", "pandas", "pyarrow", "numpy", "duckdb", "fastapi",
    "confluent_kafka", "pymysql", "MySQLdb", "psycopg", "elasticsearch", "pymongo", "requests",
}

class Ban(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BANNED:
            raise AssertionError(f"a DAG file imports {name}")

def poisoned(*args, **kwargs):
    raise AssertionError("a DAG file connects")

def fields(dag):
    return {k: dag.params.get_param(k) for k in dag.params}

loaded = BANNED & set(sys.modules)
sys.meta_path.insert(0, Ban())
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = sqlite3.connect = poisoned
project = Path(sys.argv[1])
dags = []
for path in sorted((project / "dags").glob("*.py")):
    dags += [found for found in runpy.run_path(str(path)).values() if isinstance(found, DAG)]
print(json.dumps({
    "loaded": sorted(loaded),
    "dags": {d.dag_id: {
        "schedule": type(d.timetable).__name__ if d.schedule is not None else None,
        "active": d.max_active_runs, "failed": d.max_consecutive_failed_dag_runs, "paused": d.is_paused_upon_creation,
        "tags": sorted(d.tags), "doc": d.doc_md or "", "catchup": d.catchup, "tasks": [t.task_id for t in d.tasks],
        "params": {k: p.schema for k, p in fields(d).items()},
        "chosen": [k for k, p in fields(d).items() if not p.has_value and "enum" in p.schema],
    } for d in dags},
}))
"""


@pytest.fixture(scope="session")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("airflow")
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(PROJECT)],
        check=False, capture_output=True, text=True, timeout=120,
        env={**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(PROJECT), "AIRFLOW__CORE__LOAD_EXAMPLES": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
