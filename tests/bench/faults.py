"""Recovery time of streams on a cluster: from a fault until all streams have committed records that were sent after it.

A standalone master, two workers and three brokers, and an app of two streams with state; fifty numbers a second
are sent throughout. All servers run before the next fault. The first row is the same measurement without a fault.

    python -m tests.bench.faults [times]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock.devstack.servers.base import ManagedServer
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.java import aot_cache
from tests.bench.common import spread, table, write
from tests.chaos.cluster_app import ClusterApp, cluster_app, pause, processes_of_worker
from tests.support.wait import wait_until


def kill_server(app: ClusterApp, server: ManagedServer) -> float:
    seconds = app.recovery_time(server.kill)
    app.restart_server(server)
    return seconds


def pause_worker(app: ClusterApp) -> float:
    """Pause a worker with its executors; it is killed after the streams have recovered."""
    worker = app.worker_with_executor()
    seconds = app.recovery_time(lambda: pause(worker))
    worker.kill()
    app.restart_server(worker)
    wait_until(lambda: not processes_of_worker(worker), what="executors of the lost worker have ended")
    return seconds


def restart_master(app: ClusterApp) -> float:
    """Measured from the kill; includes the restart."""
    master = app.cluster.master

    def inject_fault() -> None:
        master.kill()
        app.restart_server(master)

    return app.recovery_time(inject_fault)


FAULTS: dict[str, Callable[[ClusterApp], float]] = {
    "nothing": lambda app: app.recovery_time(lambda: None),
    "a worker with an executor is killed": lambda app: kill_server(app, app.worker_with_executor()),
    "a worker with an executor is paused for good": pause_worker,
    "the master is killed and started again": restart_master,
    "the broker that leads an input is killed": lambda app: kill_server(app, app.partition_leader()),
}


def main(times: int) -> None:
    aot_cache.ensure()
    results: dict[str, list[float]] = {name: [] for name in FAULTS}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with MariaDB(home=home / "mariadb", port=free_port()) as mariadb, cluster_app(mariadb, home / "home") as app:
            for _ in range(times):
                for name, inject_fault in FAULTS.items():
                    app.wait_executors()
                    wait_until(lambda: app.live_workers() == 2, what="the master has both workers")
                    app.wait_progress()
                    results[name].append(inject_fault(app))
            app.check_output()
    rows = [[name, *spread(seconds, 1)] for name, seconds in results.items()]
    text = table(["what happens", "times", "median, s", "p99, s", "max, s"], rows)
    write("faults", text, {"recovery, s": results})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
