"""A whole platform of real parts, whose processes can be killed one by one."""

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
# When a scheduler is taken for dead and its tasks are adopted: short, so that what must outlast it is short too.
# Shorter still, and a healthy scheduler that was busy for a moment calls itself dead.
PATIENCE = {
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
}


# The class of a driver's JVM that a worker started.
WRAPPER = "org.apache.spark.deploy.worker.DriverWrapper"


def call(airflow: Airflow, method: str, path: str, **body: Any) -> Any:
    """A call of Airflow's REST API, signed in as its user."""
    head = {"Authorization": f"Bearer {airflow.token()}"}
    answer = httpx.request(method, f"{airflow.url}/api/v2/{path}", headers=head, json=body or None, timeout=30)
    return answer.raise_for_status().json()


class Numbers(threading.Thread):
    """Writes records numbered 1, 2, 3 ... all the time; each at least once for certain, and once by idempotence.

    sent: how many there are already. acknowledged: the offset behind the last one, by partition.
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
                # Longer than the broker is away: no record may be given up.
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
        """Write no more."""
        self.stop()
        assert self._producer.flush(120) == 0

    def close(self, later: float) -> None:
        """Let time come up to the clock by a record numbered 0 in each partition, so many seconds ahead of it."""
        for partition in (0, 1):
            self._write({"n": 0, "at": int((time.time() + later) * 1000)}, partition)
        assert self._producer.flush(60) == 0
        assert not self.failed


class Platform:
    """The parts, the app's control rows, and what may be asked and done in a test."""

    def __init__(self, broker: Broker, control: Control, airflow: Airflow, numbers: Numbers) -> None:
        self.broker, self.control, self.airflow, self.numbers = broker, control, airflow, numbers

    def driver(self) -> DriverRow | None:
        """The app's current driver, which may have ended."""
        row = self.control.app(APP)
        return self.control.driver(row.incarnation) if row and row.incarnation else None

    def heir(self, before: DriverRow) -> DriverRow | None:
        """The next driver after this one, once its process is started."""
        d = self.driver()
        return d if d and d.incarnation != before.incarnation and d.pid else None

    def drivers(self) -> set[int]:
        """Sessions of every driver process of this platform's app, whatever the control database says.

        Of one in a cluster it is Python's: its JVM is a worker's, and ends with that.
        """
        known = {d.incarnation for d in self.control.drivers(live=False)}
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    session = os.getsid(int(entry.name))
                except OSError:
                    continue
                if WRAPPER in words or "--incarnation" not in words[:-1]:
                    continue
                if words[words.index("--incarnation") + 1] in known:
                    found.add(session)
        return found

    def call(self, method: str, path: str, **body: Any) -> Any:
        return call(self.airflow, method, path, **body)

    def operate(self, action: str, target: str, note: str) -> None:
        """Fill in and send the form of `operate_streams`, and wait until it is carried out."""
        conf = {"action": action, "target": target, "note": note}
        run = self.call("POST", "dags/operate_streams/dagRuns", logical_date=None, conf=conf)
        path = f"dags/operate_streams/dagRuns/{run['dag_run_id']}"
        wait_until(lambda: self.call("GET", path)["state"] == "success", what=f"the form is carried out: {conf}")

    def goes_on(self, d: DriverRow, seconds: float) -> None:
        """For so many seconds the driver works as if nothing had happened."""
        deadline = time.monotonic() + seconds
        began = self.batch()
        while time.monotonic() < deadline:
            self.only(d)
            time.sleep(1)
        assert self.batch() > began

    def batch(self) -> int:
        """How many batches all streams have committed."""
        return sum(p.batch_id or 0 for p in self.control.progress(APP).values())

    def works(self, seconds: float = 180, *, other_than: DriverRow | None = None) -> DriverRow:
        """Wait until one driver, and only one, runs and commits new batches of both streams."""

        def runs() -> DriverRow | None:
            d = self.driver()
            if d is None or d.state != "running" or (other_than and d.incarnation == other_than.incarnation):
                return None
            return d if d.session.alive() else None

        d = wait_until(runs, seconds, what="a driver runs")
        assert d
        began = self.control.now()

        def commits() -> bool:
            rows = self.control.progress(APP).values()
            return len(rows) == 2 and all(
                p.incarnation == d.incarnation and (p.batch_at or 0) > began and p.lag is not None for p in rows
            )

        wait_until(commits, seconds, what="its streams commit batches")
        self.only(d)
        return d

    def only(self, d: DriverRow) -> None:
        assert self.drivers() == {d.pid}
        assert [r.incarnation for r in self.control.drivers()] == [d.incarnation]

    def read(self, topic: str) -> list[tuple[str, dict[str, int]]]:
        """Every committed record of a topic of one partition."""
        records = read(self.broker.bootstrap, topic)
        return [(r.key or "", json.loads(r.value or "")) for r in records]


@contextmanager
def started(home: Path, deploy: str = "client") -> Iterator[Platform]:
    """The whole platform, with numbers flowing; nothing of it is left at the end. deploy: where the driver lives."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        mariadb = stack.enter_context(MariaDB(home=home, port=free_port()))
        given = {
            # Short, so that what must outlast them is short too; each still covers several beats.
            "PENSTOCK_STUCK_AFTER": 15,
            "PENSTOCK_LEASE_TTL": 8,
            "PENSTOCK_DRAIN_TIMEOUT": 30,
            **PATIENCE,
        }
        if deploy == "cluster":
            port = free_port(6)
            given |= {"PENSTOCK_DEPLOY": deploy, "PENSTOCK_SPARK_MASTER": f"spark://127.0.0.1:{port}"}
            given |= {"PENSTOCK_SPARK_PORT": port, "PENSTOCK_APP_CORES": 1}
        control = stack.enter_context(deployed(CHAOS, broker, mariadb, home, **given))
        if deploy == "cluster":
            stack.enter_context(SparkCluster(cores=2, memory="2g"))
        numbers = Numbers(broker.bootstrap)
        numbers.start()
        airflow = stack.enter_context(Airflow(home, free_port(), CHAOS))
        yield Platform(broker, control, airflow, numbers)
        numbers.stop()


def pause(d: DriverRow) -> None:
    """SIGSTOP every process of a driver: it hangs, and nothing of it is gone."""
    for member in d.session.members():
        os.kill(member.pid, signal.SIGSTOP)
