"""How long streams on a cluster stand still behind each fault, until what was sent after it is committed by all.

A standalone master, two workers and three brokers, and an app of two streams with state; fifty numbers a second flow
all the while. Before the next fault everything is there again. The first row is what the same takes without a fault.

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
from tests.chaos.clustered import Clustered, clustered, executors_of, pause
from tests.support.wait import wait_until


def killed(place: Clustered, part: ManagedServer) -> float:
    seconds = place.recovers(part.kill)
    place.back(part)
    return seconds


def worker_paused(place: Clustered) -> float:
    """With all that it has started, and for good: it is killed once others have done its work."""
    lost = place.host()
    seconds = place.recovers(lambda: pause(lost))
    lost.kill()
    place.back(lost)
    wait_until(lambda: not executors_of(lost), what="what was given up has ended")
    return seconds


def master_restarted(place: Clustered) -> float:
    """Measured from its death, with its start."""
    master = place.cluster.master

    def strike() -> None:
        master.kill()
        place.back(master)

    return place.recovers(strike)


FAULTS: dict[str, Callable[[Clustered], float]] = {
    "nothing": lambda place: place.recovers(lambda: None),
    "a worker with an executor is killed": lambda place: killed(place, place.host()),
    "a worker with an executor is paused for good": worker_paused,
    "the master is killed and started again": master_restarted,
    "the broker that leads an input is killed": lambda place: killed(place, place.leads()),
}


def main(times: int) -> None:
    aot_cache.ensure()
    found: dict[str, list[float]] = {name: [] for name in FAULTS}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with MariaDB(home=home / "mariadb", port=free_port()) as mariadb, clustered(mariadb, home / "home") as place:
            for _ in range(times):
                for name, strike in FAULTS.items():
                    place.settles()
                    wait_until(lambda: place.alive() == 2, what="the master has both workers")
                    place.goes_on()
                    found[name].append(strike(place))
            place.exact()
    rows = [[name, *spread(seconds, 1)] for name, seconds in found.items()]
    write("faults", table(["what happens", "times", "median, s", "p99, s", "max, s"], rows))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
