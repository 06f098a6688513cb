"""Two triggerers of a real Airflow: one that was paused wakes up while the other one watches in its place."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from penstock import catalog
from penstock.control import Control, ProgressRow, connect
from penstock.settings import PROJECT
from penstock.supervision import processes
from penstock.supervision.supervisor import Supervisor
from tests.chaos.projects import other_project
from tests.support import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.long]

BIN = Path(sys.executable).parent
DAG = """
from airflow.sdk import DAG
from penstock_operators import SuperviseStreams
with DAG("streams_chaos", schedule=None):
    SuperviseStreams(task_id="supervise", app="chaos")
"""
OWNER = "streams_chaos/r1/supervise/1"
# Lets the run's task wait in its trigger, as its worker would.
DEFER = f"""
import time
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from penstock_triggers import StreamsTrigger
from sqlalchemy import select
with create_session() as s:
    trigger = Trigger.from_object(StreamsTrigger("chaos", {OWNER!r}, time.time() + 3600))
    s.add(trigger)
    s.flush()
    ti = s.scalars(select(TaskInstance)).one()
    ti.state, ti.trigger_id, ti.next_method = "deferred", trigger.id, "resume"
"""


class Airflow:
    """A database of Airflow's with one run, and triggerers of it."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.home, self.env = home, env
        self.triggerers: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str) -> None:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]

    def sql(self, text: str) -> object:
        with closing(sqlite3.connect(self.home / "airflow.db", timeout=30)) as c, c:
            row = c.execute(text).fetchone()
        return row[0] if row else None

    def triggerer(self) -> subprocess.Popen[bytes]:
        command = [str(BIN / "airflow"), "triggerer", "--skip-serve-logs"]
        quiet = subprocess.DEVNULL
        made = subprocess.Popen(command, env=self.env, stdout=quiet, stderr=quiet, start_new_session=True)
        self.triggerers.append(made)
        return made

    def logs(self, job: object) -> str:
        """What triggers said in the triggerer of a job."""
        return "".join(p.read_text() for p in self.home.rglob(f"*.trigger.{job}.log"))

    def close(self) -> None:
        for one in self.triggerers:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait(30)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    variables = {"PENSTOCK_CONTROL_URL": f"sqlite:///{tmp_path}/control.db", "PENSTOCK_HOME": tmp_path / "home"}
    with other_project(PROJECT / "tests" / "chaos" / "project", variables):
        made = connect()
        made.migrate()
        made.sync(catalog.load())
        yield made
        for d in made.drivers(live=False):
            processes.kill(d)
        made.engine.dispose()


@pytest.fixture
def airflow(tmp_path: Path, control: Control) -> Iterator[Airflow]:  # noqa: ARG001
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "streams.py").write_text(DAG)
    env = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT / "plugins")]),
    }
    made = Airflow(home, env)
    command = str(BIN / "airflow")
    made.run(command, "db", "migrate")
    made.run(command, "dags", "reserialize")
    made.run(command, "dags", "unpause", "streams_chaos")
    made.run(command, "dags", "trigger", "streams_chaos", "-r", "r1")
    made.run(sys.executable, "-c", DEFER)
    yield made
    made.close()


def test_a_triggerer_that_wakes_up_ends_no_driver_and_a_mark_does(airflow: Airflow, control: Control) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
    Supervisor(control, "chaos", OWNER, lambda incarnation: [*sleep, incarnation]).tick()
    [driver] = control.drivers()
    control.driver_placed(driver.incarnation, None)

    def has(job: object) -> bool:
        """Whether a triggerer has the trigger, and another one than of a job; meanwhile the driver beats."""
        control.driver_beat(driver.incarnation)
        rows = [ProgressRow(name, "chaos", driver.incarnation, state="idle") for name in ("totals", "finals")]
        control.report(rows, keep=False)
        return airflow.sql("SELECT triggerer_id FROM trigger") not in (job, None)

    first = airflow.triggerer()
    wait_until(lambda: has(None), what="the first has it")
    job = airflow.sql("SELECT triggerer_id FROM trigger")
    wait_until(lambda: has(None) and "running" in airflow.logs(job), what="the first watches")
    second = airflow.triggerer()
    jobs = "SELECT count(*) FROM job WHERE job_type = 'TriggererJob'"
    wait_until(lambda: has(None) and airflow.sql(jobs) == 2, what="the second is there")

    os.killpg(first.pid, signal.SIGSTOP)
    wait_until(lambda: has(job), what="the second has it")
    os.killpg(first.pid, signal.SIGCONT)
    wait_until(lambda: has(None) and "its driver goes on" in airflow.logs(job), what="the first has given it up")
    assert processes.alive(driver)
    assert "its task is deferred" in airflow.logs(job)

    airflow.sql("UPDATE task_instance SET state = 'failed', trigger_id = NULL")
    end = time.monotonic() + 180
    while processes.alive(driver) and time.monotonic() < end:
        control.driver_beat(driver.incarnation)
        time.sleep(0.5)
    assert processes.alive(driver) is False
    assert second.poll() is None

    def ended() -> str | None:
        row = control.driver(driver.incarnation)
        return row.end_code if row and row.state == "ended" else None

    assert wait_until(ended, what="it is written down") == "asked"
