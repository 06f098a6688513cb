"""Broker, control database and driver on disks that are slow or hang now and then; nothing is lost.

strace (Debian's) delays each system call that waits for a disk or renames a file; written data stays in the page cache,
as on a real slow disk, until it is flushed.
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
from tests.chaos.cluster_app import NumbersApp
from tests.chaos.drivers import Drivers, drivers
from tests.chaos.platform import APP, CHAOS

pytestmark = [
    pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(1800),
    pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed"),
]  # fmt: skip

CALLS = "fsync,fdatasync,msync,rename,renameat,renameat2"


def on_a_disk(command: Sequence[str], seconds: float, when: str) -> list[str]:
    """The command with these calls of its threads delayed. when: which calls of each thread, in strace's syntax."""
    injection = f"inject={CALLS}:delay_enter={int(seconds * 1e6)}:when={when}"
    # strace in its own session: signals reach the command only, which keeps its pid.
    options = ["-DDD", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", f"trace={CALLS}", "-e", injection]
    return ["strace", *options, *command]


class SlowDiskApp(NumbersApp):
    """The app with a supervisor in this process, which starts drivers on a slow disk."""

    def __init__(self, brokers: Brokers, apps: Drivers, slow_command: Callable[[Sequence[str]], list[str]]) -> None:
        super().__init__(brokers, apps)
        self._over = threading.Event()
        driver = [sys.executable, "-m", "penstock.engine.driver"]
        self._supervisor = Supervisor(
            apps.control,
            APP,
            "test",
            lambda incarnation: slow_command([*driver, *launch.driver_arguments(APP, incarnation)]),
        )
        self._thread = threading.Thread(target=self._supervise, name="supervisor")

    def launch(self) -> None:
        self._thread.start()
        self.driver = self.wait_driver()

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
def slow_disk_app(home: Path, seconds: float, when: str) -> Iterator[SlowDiskApp]:
    def slow_command(command: Sequence[str]) -> list[str]:
        return on_a_disk(command, seconds, when)

    def with_slow_disk(server: type[ManagedServer]) -> Callable[[Any], list[str]]:
        original_command: Callable[[Any], list[str]] = server.command
        return lambda self: slow_command(original_command(self))

    with pytest.MonkeyPatch.context() as m, MariaDB(home=home, port=free_port()) as mariadb:
        m.setattr(Broker, "command", with_slow_disk(Broker))
        with (
            Brokers(home, [free_port(2)]) as brokers,
            drivers(brokers, mariadb, home, CHAOS, PENSTOCK_LEASE_TTL=8) as apps,
        ):
            # Tables are created before the disk becomes slow: each of them needs a dozen calls.
            m.setattr(MariaDB, "command", with_slow_disk(MariaDB))
            mariadb.restart()
            with closing(SlowDiskApp(brokers, apps, slow_command)) as app:
                app.start()
                yield app


def test_streams_continue_on_a_disk_that_takes_a_third_of_a_second(tmp_path: Path) -> None:
    with slow_disk_app(tmp_path, 0.3, "1+") as app:
        recovery_seconds = [app.recovery_time(lambda: None) for _ in range(5)]
        app.check_output()
        [driver] = app.apps.control.drivers(APP, live=False)
        assert (driver.incarnation, app.query_restarts()) == (app.driver.incarnation, 0), "nothing is taken for hung"
        print(recovery_seconds)
        assert app.driver.session.kill()
        app.wait_progress()
        app.check_output()


def test_nothing_is_lost_on_a_disk_that_hangs_longer_than_a_lease(tmp_path: Path) -> None:
    with slow_disk_app(tmp_path, 12, "20+40") as app:
        for _ in range(5):
            app.wait_progress()
            app.check_output()
        assert app.apps.control.drivers(APP)[0].session.kill()
        app.wait_progress()
        app.check_output()
