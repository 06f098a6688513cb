"""A platform of real servers, whose processes can be killed one by one."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import KafkaError, Message, Producer

from penstock.control import Actor, Control, DriverRow
from penstock.devstack.servers.airflow import Airflow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.spark import SparkCluster
from penstock.host.ports import free_port
from penstock.settings import PROJECT
from penstock.testing import read
from tests.chaos.projects import deployed
from tests.support.wait import wait_until

APP = "chaos"
CHAOS = PROJECT / "tests" / "chaos" / "project"
ME = Actor("chaos test", "cli")
# After these seconds a scheduler counts as dead and its tasks are adopted. Short, so that tests that wait for it are
# short; with shorter times a healthy but busy scheduler would count as dead.
SCHEDULER_TIMEOUTS = {
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
}


# The class of a driver's JVM that a worker started.
WRAPPER = "org.apache.spark.deploy.worker.DriverWrapper"


def call(airflow: Airflow, method: str, path: str, **body: Any) -> Any:
    """Call Airflow's REST API as its user."""
    headers = {"Authorization": f"Bearer {airflow.token()}"}
    response = httpx.request(method, f"{airflow.url}/api/v2/{path}", headers=headers, json=body or None, timeout=30)
    return response.raise_for_status().json()


class Numbers(threading.Thread):
    """Sends records numbered 1, 2, 3 ... until stopped; each exactly once, by an idempotent producer.

    sent: number of records sent so far. acknowledged: by partition, the offset after the last acknowledged record.
    """

    RATE = 50.0

    def __init__(self, bootstrap: str, sent: int = 0) -> None:
        super().__init__(name="numbers", daemon=True)
        self.sent = sent
        self.failed: list[str] = []
        self.acknowledged: dict[int, int] = {}
        self._enough = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 50,
                # Longer than any outage of the broker, so that no record is given up.
                "message.timeout.ms": 300_000,
                "log_level": 0,
            }
        )

    def _write(self, value: dict[str, int], partition: int = -1) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error:
                self.failed.append(str(error))
            else:
                self.acknowledged[message.partition() or 0] = (message.offset() or 0) + 1

        self._producer.produce(
            "numbers", json.dumps(value).encode(), str(value["n"]).encode(), partition, on_delivery=delivered
        )

    def run(self) -> None:
        while not self._enough.wait(1 / self.RATE):
            self.sent += 1
            self._write({"n": self.sent, "at": int(time.time() * 1000)})
            self._producer.poll(0)

    def stop(self) -> None:
        self._enough.set()
        self.join()

    def finish(self) -> None:
        """Stop sending, and wait until all is acknowledged."""
        self.stop()
        assert self._producer.flush(120) == 0

    def close(self, ahead_s: float) -> None:
        """Close windows by a record numbered 0 in each partition, with an event time this far ahead of the clock."""
        for partition in (0, 1):
            self._write({"n": 0, "at": int((time.time() + ahead_s) * 1000)}, partition)
        assert self._producer.flush(60) == 0
        assert not self.failed


class Platform:
    """The servers and the control rows of the app, with checks and actions for tests."""

    def __init__(self, broker: Broker, control: Control, airflow: Airflow, numbers: Numbers) -> None:
        self.broker, self.control, self.airflow, self.numbers = broker, control, airflow, numbers

    def driver(self) -> DriverRow | None:
        """The app's current driver, which may have ended."""
        row = self.control.app(APP)
        return self.control.driver(row.incarnation) if row and row.incarnation else None

    def successor(self, before: DriverRow) -> DriverRow | None:
        """The driver after this one, once its process has started."""
        d = self.driver()
        return d if d and d.incarnation != before.incarnation and d.pid else None

    def drivers(self) -> set[int]:
        """Sessions of every driver process of this platform's app, whatever the control database says.

        For a driver in a cluster, the session of its Python: its JVM belongs to the worker.
        """
        incarnations = {d.incarnation for d in self.control.drivers(live=False)}
        sessions = set()
        for process_folder in Path("/proc").iterdir():
            if process_folder.name.isdecimal():
                try:
                    command_line = (process_folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    session = os.getsid(int(process_folder.name))
                except OSError:
                    continue
                if WRAPPER in command_line or "--incarnation" not in command_line[:-1]:
                    continue
                if command_line[command_line.index("--incarnation") + 1] in incarnations:
                    sessions.add(session)
        return sessions

    def call(self, method: str, path: str, **body: Any) -> Any:
        return call(self.airflow, method, path, **body)

    def run_form(self, dag: str, **conf: str) -> None:
        """Run a DAG with this form, and wait until it has succeeded."""
        run = self.call("POST", f"dags/{dag}/dagRuns", logical_date=None, conf=conf)
        path = f"dags/{dag}/dagRuns/{run['dag_run_id']}"
        wait_until(lambda: self.call("GET", path)["state"] == "success", what=f"{dag} succeeds: {conf}")

    def check_undisturbed(self, d: DriverRow, seconds: float) -> None:
        """Check for some seconds that the driver stays the only one, and that batches are committed."""
        deadline = time.monotonic() + seconds
        batches_before = self.batch()
        while time.monotonic() < deadline:
            self.check_single_driver(d)
            time.sleep(1)
        assert self.batch() > batches_before

    def batch(self) -> int:
        """Number of batches that all streams have committed."""
        return sum(p.batch_id or 0 for p in self.control.progress(APP).values())

    def wait_working(self, seconds: float = 180, *, other_than: DriverRow | None = None) -> DriverRow:
        """Wait until one driver, and only one, runs and commits new batches of both streams."""

        def runs() -> DriverRow | None:
            d = self.driver()
            if d is None or d.state != "running" or (other_than and d.incarnation == other_than.incarnation):
                return None
            return d if d.session.alive() else None

        d = wait_until(runs, seconds, what="a driver runs")
        assert d
        since = self.control.now()

        def commits() -> bool:
            rows = self.control.progress(APP).values()
            return len(rows) == 2 and all(
                p.incarnation == d.incarnation and (p.batch_at or 0) > since and p.lag is not None for p in rows
            )

        wait_until(commits, seconds, what="its streams commit batches")
        self.check_single_driver(d)
        return d

    def check_single_driver(self, d: DriverRow) -> None:
        assert self.drivers() == {d.pid}
        assert [r.incarnation for r in self.control.drivers()] == [d.incarnation]

    def read(self, topic: str) -> list[tuple[str, dict[str, int]]]:
        """Every committed record of a topic of one partition."""
        records = read(self.broker.bootstrap, topic)
        return [(r.key or "", json.loads(r.value or "")) for r in records]


@contextmanager
def start_platform(home: Path, deploy: str = "client", together: str = "") -> Iterator[Platform]:
    """Start the platform and send numbers; stop all at the end.

    Args:
        home: The folder of all files.
        deploy: Where the driver runs.
        together: The apps that share a JVM.
    """
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        mariadb = stack.enter_context(MariaDB(home=home, port=free_port()))
        variables = {
            # Short, so that the tests are short; each still covers several liveness reports.
            "PENSTOCK_STUCK_AFTER": 15,
            "PENSTOCK_LEASE_TTL": 8,
            "PENSTOCK_DRAIN_TIMEOUT": 30,
            "PENSTOCK_TOGETHER": together,
            **SCHEDULER_TIMEOUTS,
        }
        if deploy == "cluster":
            port = free_port(6)
            variables |= {"PENSTOCK_DEPLOY": deploy, "PENSTOCK_SPARK_MASTER": f"spark://127.0.0.1:{port}"}
            variables |= {"PENSTOCK_SPARK_PORT": port, "PENSTOCK_APP_CORES": 1}
        control = stack.enter_context(deployed(CHAOS, broker, mariadb, home, **variables))
        if deploy == "cluster":
            stack.enter_context(SparkCluster(cores=2, memory="2g"))
        numbers = Numbers(broker.bootstrap)
        numbers.start()
        airflow = stack.enter_context(Airflow(home, free_port(), CHAOS))
        yield Platform(broker, control, airflow, numbers)
        numbers.stop()


def pause(d: DriverRow) -> None:
    """SIGSTOP every process of a driver, so that it hangs."""
    for member in d.session.members():
        os.kill(member.pid, signal.SIGSTOP)
