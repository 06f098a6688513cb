"""Drivers that live in a standalone cluster: supervisors of other hosts start, adopt, drain, kill and replace them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from penstock.control import Actor, DriverRow
from penstock.devstack.servers.kafka import Brokers
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.spark import SparkCluster, Worker
from penstock.engine import executor_check
from penstock.engine.executor_code import EXECUTOR_FOLDER
from penstock.host.ports import free_port
from penstock.supervision import cluster_drivers, launch
from penstock.supervision.supervisor import Supervisor
from tests.chaos.cluster_app import ClusterApp, pause, resume, suspend
from tests.chaos.drivers import Drivers, drivers
from tests.chaos.platform import APP, CHAOS
from tests.support.caches import clear_caches
from tests.support.supervised_platform import Platform
from tests.support.supervisor_process import submission
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

ME = Actor("deploy test", "cli")


class ClusterDriverApp(ClusterApp):
    """The app in a cluster, and supervisors of it."""

    def __init__(self, brokers: Brokers, cluster: SparkCluster, apps: Drivers, home: Path) -> None:
        super().__init__(brokers, cluster, apps)
        self._home = home
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}

    def supervise(self, name: str) -> None:
        """Start a supervisor of a host of that name, with a home of its own."""
        own = self._home / name
        own.mkdir()
        env = {**launch.environment(), "PENSTOCK_HOME": str(own)}
        with (self._home / f"{name}.log").open("ab") as log:
            words = [sys.executable, "-m", "tests.support.supervisor_process", APP, name]
            self._supervisors[name] = subprocess.Popen(words, env=env, stdout=log, stderr=log)

    def lose(self, name: str) -> None:
        """SIGKILL a supervisor, as if its host were gone."""
        self._supervisors[name].kill()
        self._supervisors.pop(name).wait()

    def launch(self) -> None:
        self.supervise("one")
        self.driver = self.wait_driver()

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
def deployed(mariadb: MariaDB, home: Path) -> Iterator[ClusterDriverApp]:
    """A broker, a master, two workers and the app, which has committed its first batches."""
    settings = {
        "PENSTOCK_DEPLOY": "cluster",
        "PENSTOCK_SPARK_PORT": (port := free_port(6)),
        "PENSTOCK_SPARK_MASTER": f"spark://127.0.0.1:{port}",
        "PENSTOCK_SPARK_SECRET": "of this test",
        "PENSTOCK_HEARTBEAT_SECRET": "ab" * 32,
        "PENSTOCK_CHECKPOINTS": home / "checkpoints",
        "PENSTOCK_APP_CORES": 1,
        "PENSTOCK_LEASE_TTL": 8,
        "PENSTOCK_STUCK_AFTER": 10,
    }
    with (
        Brokers(home, [free_port(2)]) as brokers,
        drivers(brokers, mariadb, home, CHAOS, **settings) as apps,
        SparkCluster(cores=3, memory="2g") as cluster,
        closing(ClusterDriverApp(brokers, cluster, apps, home)) as app,
    ):
        app.start()
        yield app


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_supervisors_host_and_then_the_drivers_worker_are_lost(mariadb: MariaDB, tmp_path: Path) -> None:
    """Each record counts once; three brokers and executors that are lost are in tests/chaos/test_cluster_kills.py."""
    with deployed(mariadb, tmp_path / "My Büro") as app:
        first = app.driver
        assert (first.submission or "").startswith("driver-")
        log = Path(first.log).read_text()
        assert "penstock" in log, "Python's records"
        assert " spark " in log, "and the JVM's are in the file that its launcher named"
        everyone = [word for p in psutil.process_iter(["cmdline"]) for word in p.info["cmdline"] or []]
        assert not [word for word in everyone if "of this test" in word], "every user may read a command line"
        received = [path for w in app.cluster.workers for path in w.work.glob(f"app-*/*/{EXECUTOR_FOLDER}/jobs")]
        assert received, "executors have the code of the release"
        found = executor_check.check_executor()
        assert (found.python, found.error, found.missing) == (sys.executable, "", "")
        assert found.records, "it reads from the brokers"

        host = app.worker_of(first)
        [other] = [worker for worker in app.cluster.workers if worker != host]
        app.lose("one")
        app.supervise("two")
        adopted = app.wait_driver(owner="two")
        assert adopted.incarnation == first.incarnation, "it is found, and left as it is"
        left = app.processes_of(first)
        host.kill()
        second = app.wait_driver(other_than=first)
        assert app.worker_of(second) == other
        assert all(gone(process) for process in left)
        app.driver = second
        app.wait_progress()
        app.check_output()


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
@pytest.mark.timeout(900)
def test_it_is_drained_killed_while_it_hangs_and_fenced_from_another_host(mariadb: MariaDB, tmp_path: Path) -> None:
    with deployed(mariadb, tmp_path) as app:
        control = app.apps.control
        first = app.driver
        app.lose("one")
        app.supervise("two")
        app.wait_driver(owner="two")
        control.release(APP, ME, "new code")
        second = app.wait_driver(other_than=first)
        assert (app.apps.row(first.incarnation).reason or "").startswith("release"), "it drained by itself"
        wait_until(lambda: cluster_drivers.driver_state(first, 0).state == "FINISHED", 30, what="its JVM ends with it")
        app.wait_progress()

        hung = app.processes_of(second)
        suspend(hung)
        third = app.wait_driver(other_than=second)
        assert (app.apps.row(second.incarnation).reason or "").startswith("hung")
        assert all(gone(process) for process in hung), "its worker killed the JVM, and that took Python along"
        assert "kill" in app.told()
        app.wait_progress()

        # As if its whole host hung: nobody can kill it, and nobody knows.
        sleepers, worker = app.processes_of(third), app.worker_of(third)
        suspend(sleepers)
        pause(worker)
        app.driver = app.wait_driver(other_than=third)
        assert app.worker_of(app.driver) != worker
        resume(worker)
        for process in sleepers:
            process.resume()
        wait_until(
            lambda: all(gone(process) for process in sleepers), what="the old driver ends, as it has a successor"
        )
        app.wait_progress()
        app.check_output()


@pytest.mark.long
def test_without_room_it_is_queued_and_without_a_master_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port(4)
    for name, value in {"HOME": tmp_path, "SPARK_MASTER": f"spark://127.0.0.1:{port}", "DRIVER_MEMORY": "2g"}.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", str(value))
    clear_caches()
    p = Platform(tmp_path)
    supervisor = Supervisor(p.control, "a", "one", lambda incarnation: submission("a", incarnation))
    try:
        with SparkCluster(port=port, workers=1, cores=1, memory="1g") as app:
            supervisor.tick()
            d = p.driver()
            assert (d.pid, d.master) == (None, app.url)
            assert d.state in ("launching", "queued")

            def queued() -> bool:
                supervisor.tick()
                return p.driver().state == "queued"

            wait_until(queued, 60)
            assert p.driver().reason == (
                f"waits for a worker with room for its driver; {app.url} has 1 workers with 1 cores and 1024 MiB free"
            )
            p.control.set_desired(["s"], "off", ME)
            wait_until(lambda: supervisor.tick().why == "not wanted", 60)
            assert (p.driver().state, cluster_drivers.driver_state(d, 0).state) == ("ended", "KILLED"), (
                "it is taken back"
            )
        p.control.set_desired(["s"], "on", ME)
        supervisor.tick()
        last = p.driver()
        assert last.state == "ended"
        assert f"the Spark master {app.url} did not submit a driver" in (last.reason or "")
        assert "does not answer" in (last.reason or "")
    finally:
        p.close()
        monkeypatch.undo()
        clear_caches()
