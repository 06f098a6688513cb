"""The whole platform through its command line: up, adopted, mended after a crash, down."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from penstock.devstack.servers.airflow_layout import SECRETS
from penstock.host import session
from penstock.host.files import HOME_ENTRIES
from penstock.host.ports import free_port
from penstock.settings import PROJECT
from tests.support.wait import wait_until

SECRET = "the-key-of-a-bucket"
# Left out of the copy: what takes long to start, and of the rest what is there more than once.
LEFT_OUT = (
    "agents", "presence", "streams", "device-contacts*", "active-agents-*", "alert*", "assignments-*", "walk-in*",
    "businesses*", "labels*", "tests*", "metric-*", "archive.py", "bundles.py", "summaries.py",
)  # fmt: skip
ONE_STREAM = (*LEFT_OUT, "accounts", "sinks", "minutes.py")
KEPT = """
from jobs.metrics import RECEIPTS
from penstock.streams import Archive
ARCHIVE = Archive("receipts-archive", RECEIPTS, bucket="penstock", prefix="receipts", app="quality")
"""
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


class Commands:
    """Runs `penstock` with a home and ports of its own."""

    def __init__(self, home: Path, project: Path) -> None:
        self.home, self.project = home, project
        self.port = free_port(2)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "AIRFLOW"))},
            "PENSTOCK_JAVA_OPTIONS": os.environ["PENSTOCK_JAVA_OPTIONS"],
            "PYTHONPATH": str(PROJECT),
            "PENSTOCK_HOME": str(home),
            "PENSTOCK_PROJECT": str(project),
            "PENSTOCK_SPARK_CONF": json.dumps({"spark.hadoop.fs.s3a.secret.key": SECRET}),
        }
        self.ports = {
            "PENSTOCK_KAFKA_PORT": str(self.port),
            "PENSTOCK_MARIADB_PORT": str(free_port()),
            "PENSTOCK_AIRFLOW_PORT": str(free_port()),
            "PENSTOCK_METRICS_PORT": str(free_port()),
            "PENSTOCK_VIEWS_PORT": str(free_port()),
            "PENSTOCK_STORES": "influxdb",
            "PENSTOCK_INFLUXDB_PORT": str(free_port(2)),
            "PENSTOCK_S3_PORT": str(free_port()),
        }

    def __call__(self, *words: str, ports: bool = True, code: int = 0) -> str:
        command = [sys.executable, "-m", "penstock", *words]
        env = {**self.env, **(self.ports if ports else {})}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def servers(self) -> dict[str, dict[str, Any]]:
        command = [sys.executable, "-m", "penstock", "status", "--json"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        return {part["name"]: part for part in json.loads(done.stdout)["servers"]}


@pytest.fixture
def penstock(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Commands]:
    """For a copy of what the project declares: all, some of it with all its Spark streams in one app, or one stream."""
    folder = tmp_path / "My Büro (it's)"
    project = folder / "project"
    left_out = {"all": (), "some": LEFT_OUT, "one": ONE_STREAM}[request.param]
    for name in ("jobs", "sql"):
        shutil.copytree(PROJECT / name, project / name, ignore=shutil.ignore_patterns(*left_out))
    if request.param == "some":
        minutes = project / "jobs" / "metrics" / "minutes.py"
        minutes.write_text(minutes.read_text().replace('app="metrics"', 'app="quality"'))
        (project / "jobs" / "quality" / "kept.py").write_text(KEPT)
    commands = Commands(folder / "home", project)
    if request.param == "one":
        del commands.ports["PENSTOCK_STORES"]
        # As `make up` has it.
        commands.ports["PENSTOCK_TOGETHER"] = "all"
    yield commands
    commands("down")


def processes(home: Path) -> list[psutil.Process]:
    """Everything that was started with this home, but for what this test runs itself."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if one.environ().get("PENSTOCK_HOME") == str(home) and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def shown(one: psutil.Process) -> tuple[list[str], set[str]]:
    """What anybody may see of a process, its words and the addresses on which it listens: none once it is gone."""
    with suppress(psutil.NoSuchProcess):
        listening = {c.laddr.ip for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        return one.cmdline(), listening
    return [], set()


def logged(home: Path) -> str:
    """All that the logs hold; one may be turned over meanwhile."""
    found = []
    for path in (home / "logs").rglob("*.log"):
        with suppress(FileNotFoundError):
            found.append(path.read_text(errors="replace"))
    return "".join(found)


NEW_STREAM = """
from jobs.metrics import RECEIPTS
from penstock.streams import Stateless, Input, Stream, Topic, TopicOutput
STREAM = Stream("kept-receipts", "quality", {"receipts": Input(RECEIPTS)},
                lambda receipts: receipts.select("value"), TopicOutput(Topic("kept-receipts"), value="value"),
                Stateless())
"""
NEW_CAPTURE = """CAPTURE INTO names PARTITIONS 1
FROM mysql demo
KEY (id)
CURSOR updated_at
AS
SELECT id, updated_at, name FROM accounts
"""
OLD_RUN = """
    insert into dag_run (dag_id, run_id, run_type, state, run_after, start_date, end_date, clear_number, span_status)
    values ('reaper', 'old', 'scheduled', 'success', '2025-01-01 00:00:00', '2025-01-01 00:00:00',
            '2025-01-01 00:00:01', 0, 'ended')
"""


def open_to_others(home: Path) -> list[str]:
    """Files that hold something and may be read or written by others than their owner. Spark lets all run its jars."""
    found = []
    for path in home.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size and status.st_mode & 0o066:
                found.append(f"{path.relative_to(home)} {status.st_mode:o}")
    return found


def secrets(home: Path) -> set[str]:
    """What nobody but Airflow may know."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(home / "airflow" / "airflow.cfg")
    passwords: dict[str, str] = json.loads((home / "airflow" / "passwords.json").read_text())
    return {config.get(*at) for at in SECRETS} | set(passwords.values()) | {SECRET}


def of_captures(runs: Path) -> set[str]:
    """How the hourly runs of captures are."""
    with closing(sqlite3.connect(runs, timeout=30)) as c:
        return {state for (state,) in c.execute("select state from dag_run where dag_id like 'capture%'")}


@pytest.mark.parametrize("penstock", ["one"], indirect=True)
def test_up_is_adopted_and_taken_down(penstock: Commands) -> None:
    (penstock.home / "logs").mkdir(mode=0o755, parents=True)
    penstock.home.chmod(0o755)
    (penstock.home / "logs" / "older.log").write_text("written by a version that let others read")
    said = penstock("up")
    assert "Penstock is up" in said
    assert stat.S_IMODE(penstock.home.stat().st_mode) == 0o700
    assert open_to_others(penstock.home) == []
    assert {path.name for path in penstock.home.iterdir()} <= HOME_ENTRIES
    assert "records read" in said
    assert "sign in as admin" in said
    assert "Launching the driver of app quality, ahead of the others" in said
    ahead = penstock.servers()["driver-quality"]
    assert "ahead of the others" not in penstock("up", "--wait")
    first = penstock.servers()
    assert first["driver-quality"]["pid"] == ahead["pid"], "Airflow has adopted it"
    assert {p["state"] for p in first.values()} == {"running"}
    assert {"broker", "mariadb", "airflow-api", "meter", "driver-quality", "driver-captures"} <= first.keys()
    page = httpx.get(f"http://127.0.0.1:{penstock.ports['PENSTOCK_AIRFLOW_PORT']}/penstock/", timeout=30)
    assert page.status_code in (401, 403)

    seen = [shown(one) for one in processes(penstock.home)]
    known = secrets(penstock.home)
    words = "\n".join(word for command, _ in seen for word in command)
    assert "--properties-file" in words
    assert not [s for s in known if s in words], "every user may list processes"
    told = said + logged(penstock.home)
    assert not [s for s in known if s in told]
    listening = set[str]().union(*(addresses for _, addresses in seen))
    assert "127.0.0.1" in listening
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    assert "already runs on another port" in penstock("up", ports=False, code=1)
    os.kill(first["meter"]["pid"], signal.SIGKILL)
    penstock("up")
    mended = penstock.servers()
    assert {name for name, p in mended.items() if p["pid"] != first[name]["pid"]} == {"meter"}
    assert {p["state"] for p in mended.values()} == {"running"}
    check_down(penstock, mended)


def check_down(penstock: Commands, running: dict[str, dict[str, Any]]) -> None:
    said = penstock("down", ports=False)
    drivers = [name for name in running if name.startswith("driver-")]
    assert f"{len(drivers)} drained" in said, drivers
    wait_until(lambda: not processes(penstock.home))
    assert (penstock.home / "kafka").is_dir()
    assert all(session.started(p["pid"]) is None for p in running.values())
    penstock("clean", "--yes")
    assert not penstock.home.exists()


@pytest.mark.long
@pytest.mark.parametrize("penstock", ["all", "some"], indirect=True)
def test_what_is_new_is_released_and_what_crashed_is_started(penstock: Commands) -> None:
    penstock("up", "--wait")
    first = penstock.servers()
    assert {p["state"] for p in first.values()} == {"running"}
    assert {"driver-quality", "driver-captures", "driver-views-1"} <= first.keys()
    wait_until(lambda: "open" in penstock("archives", "show", "receipts-archive"), every=3, what="receipts are kept")
    counted = 'SHOW FIELD KEYS ON "penstock" FROM "receipts"'
    influx = f"http://127.0.0.1:{first['influxdb']['ports']['http']}/query"
    wait_until(lambda: "valid" in httpx.post(influx, data={"q": counted}, timeout=30).text, what="its sinks know it")
    assert penstock("doctor").count("✗") == 0
    penstock("up")
    assert {n: p["pid"] for n, p in penstock.servers().items()} == {n: p["pid"] for n, p in first.items()}

    (penstock.project / "jobs" / "metrics" / "copied.py").write_text(NEW_STREAM)
    (penstock.project / "sql" / "captures" / "names.sql").write_text(NEW_CAPTURE)
    assert "released for what is new: captures, quality" in penstock("up")
    released = penstock.servers()
    assert {n for n, p in released.items() if p["pid"] != first[n]["pid"]} == {"driver-captures", "driver-quality"}
    runs = penstock.home / "airflow" / "airflow.db"
    ended = {"success", "failed"}
    wait_until(lambda: of_captures(runs) and of_captures(runs) <= ended, what="the runs of captures end")
    why = [line for line in logged(penstock.home).splitlines() if "AirflowFail" in line]
    assert of_captures(runs) == {"success"}, f"they waited for their driver: {why}"

    for name in ("broker", "mariadb", "airflow-scheduler", "meter"):
        os.kill(first[name]["pid"], signal.SIGKILL)
    wait_until(lambda: penstock.servers()["broker"]["state"] == "crashed")
    with closing(sqlite3.connect(runs, timeout=30)) as c, c:
        c.execute(OLD_RUN)
    penstock("up")
    with closing(sqlite3.connect(runs, timeout=30)) as c:
        assert c.execute("select count(*) from dag_run where run_id = 'old'").fetchone() == (0,), "history stays short"
        assert c.execute("select count(*) from dag_run").fetchone() > (0,), "and recent runs stay"
    mended = penstock.servers()
    assert {p["state"] for p in mended.values()} == {"running"}
    assert mended["airflow-api"]["pid"] == first["airflow-api"]["pid"]
    check_down(penstock, mended)
