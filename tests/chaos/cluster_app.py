"""The app `chaos` on a Spark cluster with three brokers, fed with numbers; all are real processes."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil

from penstock.control import DriverRow, ProgressRow
from penstock.devstack.servers.base import ManagedServer
from penstock.devstack.servers.kafka import Broker, Brokers
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.spark import SparkCluster, Worker, state
from penstock.host.ports import free_port
from penstock.kafka.admin import admin
from penstock.settings import BROKERS
from penstock.testing import latest, read
from tests.chaos.commit_markers import CommitMarkers
from tests.chaos.drivers import Drivers, drivers
from tests.chaos.platform import APP, CHAOS, Numbers
from tests.support.wait import wait_until

STREAMS = ("totals", "finals")
TOPIC = "numbers"
WINDOW_MS = 10_000
# A record this many offsets after the last one acknowledged before a fault was sent after the fault for certain.
OFFSET_MARGIN = 10
# Seconds within which streams recover from any of these faults, also on a busy machine.
RECOVERY_TIMEOUT = 240.0


class NumbersApp:
    """The app `chaos`, fed with numbers; subclasses say where its tasks run."""

    def __init__(self, brokers: Brokers, apps: Drivers) -> None:
        self.brokers, self.apps = brokers, apps
        self.bootstrap = brokers.bootstrap
        self.numbers = Numbers(self.bootstrap)
        self.markers = CommitMarkers(self.bootstrap)
        self.driver: DriverRow

    def launch(self) -> None:
        self.driver = self.apps.launch(APP)
        self.apps.wait_running(self.driver, 180)

    def wait_driver(self, other_than: DriverRow | None = None, owner: str = "") -> DriverRow:
        """Wait until a driver started by a supervisor runs. other_than: a driver that it must not be."""

        def current_driver() -> DriverRow | None:
            row = self.apps.control.app(APP)
            d = self.apps.control.driver(row.incarnation) if row and row.incarnation else None
            if d is None or d.state != "running" or (other_than and d.incarnation == other_than.incarnation):
                return None
            return d if not owner or d.owner == owner else None

        driver = wait_until(current_driver, 180, what=f"a driver of {APP} runs")
        assert driver
        return driver

    def start(self) -> None:
        self.numbers.start()
        self.launch()
        self.wait_progress()

    def close(self) -> None:
        if self.numbers.is_alive():
            self.numbers.stop()
        self.markers.close()

    def progress(self) -> dict[str, ProgressRow]:
        """The progress row of each stream."""
        return dict(self.apps.control.progress(APP))

    def query_restarts(self) -> int:
        """How often the queries were restarted."""
        return sum(row.restarts for row in self.progress().values())

    def all_failing(self) -> bool:
        """Whether every stream reports that it fails, with an error."""
        return all(row.state == "failing" and row.error for row in self.progress().values())

    def wait_progress(self) -> None:
        """Wait until both streams have committed records that are sent from now on."""
        self.recovery_time(lambda: None)

    def recovery_time(self, inject_fault: Callable[[], object]) -> float:
        """Inject a fault; seconds until both streams have committed records that were sent after it."""
        wait_until(lambda: len(self.numbers.acknowledged) == 2, what="numbers are written")
        expected = {p: at + OFFSET_MARGIN for p, at in self.numbers.acknowledged.items()}
        started_at = time.time()
        inject_fault()
        self.markers.wait(STREAMS, TOPIC, expected, RECOVERY_TIMEOUT)
        return time.time() - started_at

    def check_output(self) -> None:
        """Stop sending, compare all output with all numbers ever sent, and continue sending."""
        self.numbers.finish()
        assert not self.numbers.failed
        sent = [json.loads(r.value or "") for r in read(self.bootstrap, TOPIC)]
        assert sorted(s["n"] for s in sent if s["n"]) == list(range(1, self.numbers.sent + 1)), "lost or written twice"
        expected: defaultdict[int, dict[str, int]] = defaultdict(lambda: {"count": 0, "sum": 0})
        for number in sent:
            window = expected[number["at"] // WINDOW_MS * WINDOW_MS]
            window["count"] += 1
            window["sum"] += number["n"]
        wait_until(
            lambda: self._totals() == expected,
            RECOVERY_TIMEOUT,
            every=1,
            what=f"counted once: {self.driver.log}",
        )
        finals = [(int(r.key or ""), json.loads(r.value or "")) for r in read(self.bootstrap, "finals")]
        assert len(finals) == len(dict(finals)), "a final window was emitted twice"
        assert dict(finals).items() <= expected.items()
        assert {(row.late, row.dead) for row in self.progress().values()} == {(0, 0)}
        self.numbers = Numbers(self.bootstrap, self.numbers.sent)
        self.numbers.start()

    def _totals(self) -> Mapping[int, dict[str, int]]:
        return {int(k or ""): json.loads(v or "") for k, v in latest(read(self.bootstrap, "totals")).items()}

    def partition_leader(self) -> Broker:
        """The broker that leads the first partition of the numbers."""
        leader = admin(self.bootstrap).list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader
        return self.brokers.servers[leader - 1]

    def restart_server(self, server: ManagedServer) -> None:
        """Start a server that was killed, and wait until it is ready."""
        server.start()
        server.wait()
        if server in self.brokers.servers:
            self.wait_replicated()

    def wait_replicated(self) -> None:
        """Wait until all replicas are in sync."""
        wait_until(self._is_replicated, what="all replicas are in sync")

    def _is_replicated(self) -> bool:
        topics = admin(self.bootstrap).list_topics(timeout=10).topics.values()
        return all(len(p.isrs) == len(p.replicas) for topic in topics for p in topic.partitions.values())


class ClusterApp(NumbersApp):
    """The app on a Spark cluster."""

    def __init__(self, brokers: Brokers, cluster: SparkCluster, apps: Drivers) -> None:
        super().__init__(brokers, apps)
        self.cluster = cluster

    def executors(self) -> dict[str, int]:
        """Number of the worker of each executor of the active app, by executor id."""
        active = {a["id"] for a in state(self.cluster.master.page).get("activeapps", ())}
        return {
            f"{e['appid']}/{e['id']}": server.number
            for server in self.cluster.workers
            for e in state(f"http://127.0.0.1:{server.ports['page']}").get("executors", ())
            if e["appid"] in active
        }

    def worker_with_executor(self) -> Worker:
        """A worker that has an executor."""
        wait_until(self.executors, what="the app has an executor")
        return self.cluster.workers[max(self.executors().values()) - 1]

    def wait_executors(self) -> None:
        """Wait until the app has the two executors that it asks for."""
        wait_until(lambda: len(self.executors()) == 2, what="the app has two executors")

    def live_workers(self) -> int:
        """Number of workers that the master reports as alive."""
        return sum(w["state"] == "ALIVE" for w in state(self.cluster.master.page).get("workers", ()))


def pause(server: ManagedServer) -> None:
    """SIGSTOP a server and all processes that it started, as if its host were lost to the network."""
    suspend(_members(server))


def suspend(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()


def resume(server: ManagedServer) -> None:
    for process in _members(server):
        with suppress(psutil.NoSuchProcess):
            process.resume()


def processes_of_worker(worker: ManagedServer) -> list[psutil.Process]:
    """Processes that a worker has started."""
    return [process for process in _members(worker) if process != worker.running()]


def _members(server: ManagedServer) -> list[psutil.Process]:
    record = server.record
    return record.session.processes() if record else []


@contextmanager
def cluster_app(mariadb: MariaDB, home: Path, **more: object) -> Iterator[ClusterApp]:
    """Start brokers, a master, two workers and the app, wait for its first batches, and stop all at the end.

    more: PENSTOCK_* settings.
    """
    first = free_port(2 * BROKERS)
    settings = {
        "PENSTOCK_CLUSTER": "1",
        "PENSTOCK_REPLICATION": BROKERS,
        "PENSTOCK_SPARK_PORT": free_port(6),
        "PENSTOCK_LEASE_TTL": 8,
        **more,
    }
    with (
        Brokers(home, [first + 2 * i for i in range(BROKERS)]) as brokers,
        drivers(brokers, mariadb, home, CHAOS, **settings) as apps,
        SparkCluster(cores=2, memory="2g") as cluster,
        closing(ClusterApp(brokers, cluster, apps)) as app,
    ):
        app.start()
        yield app
