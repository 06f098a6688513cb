"""Broker, control database and driver on disks that are slow, and on such as hang now and then; nothing is lost.

strace (Debian's) holds up each call that waits for a disk or names a file; what is written waits in the page cache, as
on a real slow disk, until somebody asks for it to be kept.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.devstack.servers.base import ManagedServer
from penstock.devstack.servers.kafka import Broker, Brokers
from penstock.devstack.servers.mariadb import MariaDB
from penstock.errors import PenstockError
from penstock.host.ports import free_port
from penstock.supervision import launch
from penstock.supervision.supervisor import Supervisor
from tests.chaos.clustered import Flowing
from tests.chaos.drivers import Drivers, drivers
from tests.chaos.platform import APP, CHAOS

pytestmark = [
    pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(1800),
    pytest.mark.skipif(not shutil.which("strace"), reason="there is no strace, which slows disks here"),
]  # fmt: skip

CALLS = "fsync,fdatasync,msync,rename,renameat,renameat2"


def on_a_disk(command: Sequence[str], seconds: float, when: str) -> list[str]:
    """The command with those calls of its threads held up. when: which of each thread, as strace counts."""
    held = f"inject={CALLS}:delay_enter={int(seconds * 1e6)}:when={when}"
    # In a session of its own: what is signalled is the command alone, which keeps its pid.
    options = ["-DDD", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", f"trace={CALLS}", "-e", held]
    return ["strace", *options, *command]


class Slow(Flowing):
    """The app with a supervisor in this process, which starts drivers on such a disk."""

    def __init__(self, brokers: Brokers, apps: Drivers, slowed: Callable[[Sequence[str]], list[str]]) -> None:
        super().__init__(brokers, apps)
        self._over = threading.Event()
        driver = [sys.executable, "-m", "penstock.engine.driver"]
        self._supervisor = Supervisor(
            apps.control, APP, "test", lambda incarnation: slowed([*driver, *launch.driver_arguments(APP, incarnation)])
        )
        self._thread = threading.Thread(target=self._supervise, name="supervisor")

    def launch(self) -> None:
        self._thread.start()
        self.driver = self.running()

    def _supervise(self) -> None:
        while not self._over.wait(0.5):
            try:
                self._supervisor.tick()
            except PenstockError as e:  # the database hangs too
                print(e)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        super().close()


@contextmanager
def slow(home: Path, seconds: float, when: str) -> Iterator[Slow]:
    def slowed(command: Sequence[str]) -> list[str]:
        return on_a_disk(command, seconds, when)

    def of(part: type[ManagedServer]) -> Callable[[Any], list[str]]:
        own: Callable[[Any], list[str]] = part.command
        return lambda self: slowed(own(self))

    with pytest.MonkeyPatch.context() as m, MariaDB(home=home, port=free_port()) as mariadb:
        m.setattr(Broker, "command", of(Broker))
        with (
            Brokers(home, [free_port(2)]) as brokers,
            drivers(brokers, mariadb, home, CHAOS, PENSTOCK_LEASE_TTL=8) as apps,
        ):
            # Tables are made on the disk as it is: each of them waits for a dozen calls.
            m.setattr(MariaDB, "command", of(MariaDB))
            mariadb.restart()
            with closing(Slow(brokers, apps, slowed)) as made:
                made.begin()
                yield made


def test_all_goes_on_on_a_disk_that_takes_a_third_of_a_second(tmp_path: Path) -> None:
    with slow(tmp_path, 0.3, "1+") as place:
        took = [place.recovers(lambda: None) for _ in range(5)]
        place.exact()
        [driver] = place.apps.control.drivers(APP, live=False)
        assert (driver.incarnation, place.failures()) == (place.driver.incarnation, 0), "nobody is taken for hung"
        print(took)
        assert place.driver.session.kill()
        place.goes_on()
        place.exact()


def test_nothing_is_lost_on_a_disk_that_hangs_for_longer_than_leases_last(tmp_path: Path) -> None:
    with slow(tmp_path, 12, "20+40") as place:
        for _ in range(5):
            place.goes_on()
            place.exact()
        assert place.apps.control.drivers(APP)[0].session.kill()
        place.goes_on()
        place.exact()
