"""An app of one stream of windows, with supervisors of its driver and of that of its replacement."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.control import Actor, Control, ReplacementRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.model.declaration import replacement_app
from penstock.supervision import launch
from penstock.supervision.supervisor import Supervisor
from penstock.testing import Record, send
from tests.chaos.drivers import drivers
from tests.support.wait import wait_until

ME = Actor("me", "cli")
APP, NAME = "replaced", "replaced-seconds"
STREAM = """STREAM INTO replaced-seconds
READ replaced-orders AS JSON (shop STRING NOT NULL, amount INT NOT NULL, at BIGINT NOT NULL)
  EVENT TIME timestamp_millis(at) AHEAD 1 HOUR
KEY (shop, second) EMIT FINAL WINDOW 1 SECOND GRACE 0 SECONDS LATE BY 0 SECONDS APP replaced
AS SELECT shop, unix_seconds(window.start) AS second, count(*) AS orders{more}
FROM `replaced-orders` GROUP BY shop, window(event_time, '1 second')
"""
TOPIC = """from penstock.streams import Topic
ORDERS = Topic("replaced-orders", partitions=2)
"""
Sent = dict[int, int]


class ReplacedApp:
    """An app of one stream, with a supervisor of its driver and of that of its replacement.

    Args:
        control: The control database.
        file: What declares the stream.
        app: The app.
        name: The stream.
    """

    def __init__(self, control: Control, file: Path, app: str = APP, name: str = NAME) -> None:
        self.control, self.file, self._name = control, file, name
        self.supervisors = [self.supervisor(one) for one in (app, replacement_app(name))]

    def supervisor(self, app: str) -> Supervisor:
        def command(incarnation: str) -> list[str]:
            driver = [sys.executable, "-m", "penstock.engine.driver", *launch.driver_arguments(app, incarnation)]
            return launch.python_command(app, incarnation) or driver

        return Supervisor(self.control, app, "test", command)

    def tick(self) -> None:
        for supervisor in self.supervisors:
            supervisor.tick()

    def kill(self, app: str) -> None:
        row = self.control.app(app)
        driver = self.control.driver(row.incarnation or "") if row else None
        assert driver
        driver.session.kill()

    def replacement(self) -> ReplacementRow:
        self.tick()
        row = self.control.replacement_of(self._name)
        assert row
        return row

    def wait(self, *states: str) -> ReplacementRow:
        def reached() -> bool:
            row = self.replacement()
            assert row.state in ("queued", "building", "following", "cutting", *states), row
            return row.state in states

        wait_until(reached, 240, every=0.2, what=f"the replacement is {' or '.join(states)}")
        return self.replacement()


@contextmanager
def sending(bootstrap: str) -> Iterator[Sent]:
    """Send an order every 50 ms meanwhile; how many there are of each second."""
    sent: Sent = {}
    stop = threading.Event()

    def send_orders() -> None:
        while not stop.wait(0.05):
            at = int(time.time() * 1000)
            send(bootstrap, [Record("replaced-orders", None, json.dumps({"shop": "a", "amount": 2, "at": at}))])
            sent[at // 1000] = sent.get(at // 1000, 0) + 1

    thread = threading.Thread(target=send_orders)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


@contextmanager
def replaced_app(broker: Broker, mariadb: MariaDB, folder: Path) -> Iterator[ReplacedApp]:
    """The app, with its project and its home in a folder; all its drivers are killed at the end."""
    project = folder / "project"
    file = project / "sql" / "streams" / f"{NAME}.sql"
    file.parent.mkdir(parents=True)
    file.write_text(STREAM.format(more=""))
    (project / "jobs").mkdir()
    (project / "jobs" / "orders.py").write_text(TOPIC)
    with drivers(broker, mariadb, folder / "home", project) as made:
        yield ReplacedApp(made.control, file)
