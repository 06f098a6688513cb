"""Drivers that live in a standalone cluster: supervisors of other hosts start, adopt, drain, kill and replace them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from penstock.control import Actor, DriverRow
from penstock.local.parts import Brokers, MariaDB
from penstock.local.spark import Cluster, Worker
from penstock.machine.process import free_port
from penstock.supervision import launch
from tests.chaos.clustered import Clustered
from tests.chaos.drivers import Drivers, drivers
from tests.chaos.platform import APP, CHAOS
from tests.support import wait_until

pytestmark = pytest.mark.integration

ME = Actor("deploy test", "cli")


class Deployed(Clustered):
    """The app in a cluster, and supervisors of it."""

    def __init__(self, brokers: Brokers, cluster: Cluster, apps: Drivers, home: Path) -> None:
        super().__init__(brokers, cluster, apps)
        self._home = home
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}

    def supervise(self, name: str) -> None:
        """Start a supervisor of a host of that name, with a home of its own."""
        own = self._home / name
        own.mkdir()
        env = {**launch.environment(), "PENSTOCK_HOME": str(own)}
        with (self._home / f"{name}.log").open("ab") as log:
            words = [sys.executable, "-m", "tests.elsewhere", APP, name]
            self._supervisors[name] = subprocess.Popen(words, env=env, stdout=log, stderr=log)

    def lose(self, name: str) -> None:
        """SIGKILL a supervisor, as if its host were gone."""
        self._supervisors[name].kill()
        self._supervisors.pop(name).wait()

    def launch(self) -> None:
        self.supervise("one")
        self.driver = self.running()

    def running(self, other_than: DriverRow | None = None, owner: str = "") -> DriverRow:
        """Wait for the app's driver, one with another incarnation than that."""

        def found() -> DriverRow | None:
            row = self.apps.control.app(APP)
            d = self.apps.control.driver(row.incarnation) if row and row.incarnation else None
            if d is None or d.state != "running" or (other_than and d.incarnation == other_than.incarnation):
                return None
            return d if not owner or d.owner == owner else None

        made = wait_until(found, 120, what=f"a driver runs in the cluster: {self._home}")
        assert made
        return made

    def worker_of(self, d: DriverRow) -> Worker:
        """The worker that runs a driver."""
        return next(w for w in self.cluster.workers if (w.work / str(d.submission)).exists())

    def processes_of(self, d: DriverRow) -> list[psutil.Process]:
        """The driver's Python and its JVM."""
        assert d.pid
        python = psutil.Process(d.pid)
        jvm = python.parent()
        assert jvm
        assert "org.apache.spark.deploy.PythonRunner" in jvm.cmdline()
        return [python, jvm]

    def told(self) -> list[str]:
        """What supervisors did, in order."""
        return [str(a["verb"]) for a in reversed(self.apps.control.actions(200)) if a["target"] == APP]

    def close(self) -> None:
        for name in [*self._supervisors]:
            self.lose(name)
        super().close()


@contextmanager
def deployed(mariadb: MariaDB, home: Path, **more: object) -> Iterator[Deployed]:
    """One broker, a master, two workers and the app, which has committed its first batches."""
    settings = {
        "PENSTOCK_DEPLOY": "cluster",
        "PENSTOCK_SPARK_PORT": (port := free_port(6)),
        "PENSTOCK_SPARK_MASTER": f"spark://127.0.0.1:{port}",
        "PENSTOCK_SPARK_SECRET": "of this test",
        "PENSTOCK_BEAT_SECRET": "ab" * 32,
        "PENSTOCK_CHECKPOINTS": home / "checkpoints",
        "PENSTOCK_APP_CORES": 1,
        "PENSTOCK_LEASE_TTL": 8,
        "PENSTOCK_STUCK_AFTER": 10,
        **more,
    }
    with (
        Brokers(home, [free_port(2)]) as brokers,
        drivers(brokers, mariadb, home, CHAOS, **settings) as apps,
        Cluster(cores=2, memory="2g") as made,
    ):
        place = Deployed(brokers, made, apps, home)
        try:
            place.begin()
            yield place
        finally:
            place.close()


def test_a_supervisors_host_is_lost_and_then_the_drivers_worker(mariadb: MariaDB, tmp_path: Path) -> None:
    with deployed(mariadb, tmp_path) as place:
        first = place.driver
        assert (first.submission or "").startswith("driver-")
        assert "running" in Path(first.log).read_text() or Path(first.log).stat().st_size
        everyone = [word for p in psutil.process_iter(["cmdline"]) for word in p.info["cmdline"] or []]
        assert not [word for word in everyone if "of this test" in word], "every user may read a command line"
        place.lose("one")
        place.supervise("two")
        adopted = place.running(owner="two")
        assert adopted.incarnation == first.incarnation, "it is found, and left as it is"
        left = place.processes_of(first)
        place.worker_of(first).kill()
        second = place.running(other_than=first)
        assert place.worker_of(second).number != place.worker_of(first).number
        assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in left)
        place.driver = second
        place.goes_on()
        place.exact()
