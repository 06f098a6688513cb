"""Real driver processes without Airflow: launched, killed, paused by a test."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock import catalog
from penstock.control import Control, DriverRow
from penstock.devstack.servers.kafka import Broker, Brokers
from penstock.devstack.servers.mariadb import MariaDB
from penstock.errors import BrokerError
from penstock.host import session
from penstock.supervision import launch
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from tests.chaos.projects import deployed
from tests.support.wait import wait_until


class Drivers:
    """Launches drivers of one project against a broker and a control database."""

    def __init__(self, control: Control, bootstrap: str) -> None:
        self.control, self.bootstrap = control, bootstrap

    def launch(self, app: str) -> DriverRow:
        """Launch a driver as a supervisor would, even if another runs."""
        row = self.control.app(app)
        assert row
        log = launch.new_log(app)
        incarnation = self.control.claim(
            app, row.incarnation, host=session.host(), spec_hash="test", owner="test", log=str(log)
        )
        assert incarnation
        spark = [sys.executable, "-m", "penstock.engine.driver", *launch.driver_arguments(app, incarnation)]
        command = launch.python_command(app, incarnation) or spark
        pid, started = launch.start(command, log=log)
        self.control.update_driver(incarnation, pid=pid, pid_started=started)
        return self.row(incarnation)

    def row(self, incarnation: str) -> DriverRow:
        driver = self.control.driver(incarnation)
        assert driver
        return driver

    def wait_running(self, d: DriverRow, seconds: float = 90) -> None:
        wait_until(lambda: self.row(d.incarnation).state == "running", seconds, what=f"driver {d.app} runs: {d.log}")

    def wait_committed(self, app: str, d: DriverRow, seconds: float = 90) -> None:
        """Wait until every stream of the app has committed a batch under this driver and has no lag."""
        # Some streams have no batch for longer than a minute.
        since = min(d.launched_at, self.control.now() - 60_000)

        def done() -> bool:
            rows = self.control.progress(app).values()
            return bool(rows) and all(
                p.incarnation == d.incarnation and (p.batch_at or 0) > since and p.lag == 0 for p in rows
            )

        wait_until(done, seconds, what=f"the streams of {app} commit batches: {d.log}")

    @contextmanager
    def sending_heartbeats(self) -> Iterator[None]:
        """Send heartbeats as Airflow does, also after an outage of the broker."""
        stop = threading.Event()
        sender = HeartbeatSender(catalog.load().heartbeat_topics(), self.control, self.bootstrap)

        def send_heartbeats() -> None:
            wait = 0.0
            while not stop.wait(min(wait, 1.0)):
                with suppress(BrokerError):
                    wait = sender.run_once()

        thread = threading.Thread(target=send_heartbeats, name="heartbeats")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            sender.close()


def signal_session(d: DriverRow, number: signal.Signals) -> None:
    """Send a signal to every process of a driver; the first may end the others."""
    for member in d.session.members():
        with suppress(ProcessLookupError):
            os.kill(member.pid, number)


@contextmanager
def drivers(
    broker: Broker | Brokers, mariadb: MariaDB, home: Path, project: Path, **extra: object
) -> Iterator[Drivers]:
    """Drivers of a project with a home of their own; all their processes are killed at the end."""
    with deployed(project, broker, mariadb, home, **extra) as control:
        yield Drivers(control, broker.bootstrap)
