"""A Spark cluster and three brokers of real processes, the app `chaos` on them, and numbers that flow through it."""

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
from tests.chaos.drivers import Drivers, drivers
from tests.chaos.marks import Marks
from tests.chaos.platform import APP, CHAOS, Numbers
from tests.support.wait import wait_until

STREAMS = ("totals", "finals")
TOPIC = "numbers"
WINDOW_MS = 10_000
# So many records of each partition behind what was acknowledged before a fault are sent behind it for certain.
BEHIND = 10
# Seconds within which streams go on behind any fault here, on a machine that has other work too.
GOES_ON = 240.0


class Flowing:
    """The app `chaos` and the numbers that flow through it, wherever its tasks run; what may be asked of them."""

    def __init__(self, brokers: Brokers, apps: Drivers) -> None:
        self.brokers, self.apps = brokers, apps
        self.bootstrap = brokers.bootstrap
        self.numbers = Numbers(self.bootstrap)
        self.marks = Marks(self.bootstrap)
        self.driver: DriverRow

    def launch(self) -> None:
        self.driver = self.apps.launch(APP)
        self.apps.wait_running(self.driver, 180)

    def running(self, other_than: DriverRow | None = None, owner: str = "") -> DriverRow:
        """Wait for the driver that a supervisor has started, one with another incarnation than that."""

        def found() -> DriverRow | None:
            row = self.apps.control.app(APP)
            d = self.apps.control.driver(row.incarnation) if row and row.incarnation else None
            if d is None or d.state != "running" or (other_than and d.incarnation == other_than.incarnation):
                return None
            return d if not owner or d.owner == owner else None

        made = wait_until(found, 180, what=f"a driver of {APP} runs")
        assert made
        return made

    def begin(self) -> None:
        self.numbers.start()
        self.launch()
        self.goes_on()

    def close(self) -> None:
        if self.numbers.is_alive():
            self.numbers.stop()
        self.marks.close()

    def rows(self) -> dict[str, ProgressRow]:
        """What each stream says of itself."""
        return dict(self.apps.control.progress(APP))

    def failures(self) -> int:
        """How often their queries were started again."""
        return sum(row.restarts for row in self.rows().values())

    def failing(self) -> bool:
        """Whether every stream says that it fails, and why."""
        return all(row.state == "failing" and row.error for row in self.rows().values())

    def goes_on(self) -> None:
        """Wait until both streams have committed what is sent from now on."""
        self.recovers(lambda: None)

    def recovers(self, strike: Callable[[], object]) -> float:
        """Seconds from a fault until what was sent behind it is committed by both streams."""
        wait_until(lambda: len(self.numbers.acknowledged) == 2, what="numbers are written")
        wanted = {p: at + BEHIND for p, at in self.numbers.acknowledged.items()}
        began = time.time()
        strike()
        self.marks.wait(STREAMS, TOPIC, wanted, GOES_ON)
        return time.time() - began

    def exact(self) -> None:
        """Send nothing more for a while, and compare all that was ever sent with all that is written."""
        self.numbers.finish()
        assert not self.numbers.failed
        sent = [json.loads(r.value or "") for r in read(self.bootstrap, TOPIC)]
        assert sorted(s["n"] for s in sent if s["n"]) == list(range(1, self.numbers.sent + 1)), "lost or written twice"
        wanted: defaultdict[int, dict[str, int]] = defaultdict(lambda: {"count": 0, "sum": 0})
        for one in sent:
            window = wanted[one["at"] // WINDOW_MS * WINDOW_MS]
            window["count"] += 1
            window["sum"] += one["n"]
        wait_until(lambda: self._totals() == wanted, GOES_ON, every=1, what=f"all is counted once: {self.driver.log}")
        finals = [(int(r.key or ""), json.loads(r.value or "")) for r in read(self.bootstrap, "finals")]
        assert len(finals) == len(dict(finals)), "a final window was emitted twice"
        assert dict(finals).items() <= wanted.items()
        assert {(row.late, row.dead) for row in self.rows().values()} == {(0, 0)}
        self.numbers = Numbers(self.bootstrap, self.numbers.sent)
        self.numbers.start()

    def _totals(self) -> Mapping[int, dict[str, int]]:
        return {int(k or ""): json.loads(v or "") for k, v in latest(read(self.bootstrap, "totals")).items()}

    def leads(self) -> Broker:
        """The broker that leads the first partition of the numbers."""
        found = admin(self.bootstrap).list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader
        return self.brokers.servers[found - 1]

    def back(self, part: ManagedServer) -> None:
        """Start a part that was killed."""
        part.start()
        part.wait()
        if part in self.brokers.servers:
            self.replicate()

    def replicate(self) -> None:
        """Wait until each broker has all that it should."""
        wait_until(self._replicated, what="all replicas are in sync")

    def _replicated(self) -> bool:
        found = admin(self.bootstrap).list_topics(timeout=10).topics.values()
        return all(len(p.isrs) == len(p.replicas) for topic in found for p in topic.partitions.values())


class Clustered(Flowing):
    """On a cluster."""

    def __init__(self, brokers: Brokers, cluster: SparkCluster, apps: Drivers) -> None:
        super().__init__(brokers, apps)
        self.cluster = cluster

    def executors(self) -> dict[str, int]:
        """The executors of the app that runs, by their ids, with the number of the worker of each."""
        active = {a["id"] for a in state(self.cluster.master.page).get("activeapps", ())}
        return {
            f"{e['appid']}/{e['id']}": part.number
            for part in self.cluster.workers
            for e in state(f"http://127.0.0.1:{part.ports['page']}").get("executors", ())
            if e["appid"] in active
        }

    def host(self) -> Worker:
        """A worker that has an executor."""
        wait_until(self.executors, what="the app has an executor")
        return self.cluster.workers[max(self.executors().values()) - 1]

    def settles(self) -> None:
        """Wait until the app has the two executors that it asks for."""
        wait_until(lambda: len(self.executors()) == 2, what="the app has two executors")

    def alive(self) -> int:
        """How many workers the master knows to be alive."""
        return sum(w["state"] == "ALIVE" for w in state(self.cluster.master.page).get("workers", ()))


def pause(part: ManagedServer) -> None:
    """SIGSTOP a part and all that it has started, as if its host were gone from the network."""
    suspend(_members(part))


def suspend(processes: Iterable[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.suspend()


def resume(part: ManagedServer) -> None:
    for one in _members(part):
        with suppress(psutil.NoSuchProcess):
            one.resume()


def executors_of(worker: ManagedServer) -> list[psutil.Process]:
    """What a worker has started."""
    return [one for one in _members(worker) if one != worker.running()]


def _members(part: ManagedServer) -> list[psutil.Process]:
    record = part.record
    return record.session.processes() if record else []


@contextmanager
def clustered(mariadb: MariaDB, home: Path, **more: object) -> Iterator[Clustered]:
    """Brokers, master, two workers and the app, which has committed its first batches; nothing is left at the end.

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
        closing(Clustered(brokers, cluster, apps)) as made,
    ):
        made.begin()
        yield made
