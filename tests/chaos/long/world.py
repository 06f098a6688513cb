"""The whole platform of a long run: real servers, real drivers, and who looks after them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from penstock.control import Control, DriverRow
from penstock.devstack.servers.airflow import Airflow
from penstock.devstack.servers.base import ManagedServer
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.errors import PenstockError
from penstock.host.ports import free_port
from penstock.java import aot_cache
from penstock.model.capture import APP as CAPTURES
from penstock.settings import PROJECT
from tests.chaos.platform import SCHEDULER_TIMEOUTS
from tests.chaos.projects import deployed

APP = "long"
FOLDER = PROJECT / "tests" / "chaos" / "long" / "project"
# Short, so that waits for them are short; each still covers several liveness reports.
LEASE, STUCK = 8.0, 15.0
WORKING_STATES = ("running", "idle")


class Supervision(ManagedServer):
    """Replaces Airflow in short runs, with a twentieth of its memory and CPU."""

    name: str = "supervision"
    label: str = "the supervision of the drivers"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.long.supervision"]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])}

    def ready(self) -> bool:
        return True


@dataclass
class State:
    """State of a run in a file, so that it can be continued later. ports: of broker, database and Airflow; next: first
    unused event number; recoveries: seconds; mistakes: reported by the checker."""

    seed: int
    grace: float
    ports: tuple[int, int, int]
    streams: list[str]
    next: int = 1
    rounds: int = 0
    hours: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)
    outages: dict[str, int] = field(default_factory=dict)
    recoveries: list[float] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(home: Path, seed: int, grace: float, streams: list[str]) -> State:
        file = home / "state.json"
        if file.exists():
            return State(**json.loads(file.read_text()))
        return State(seed, grace, (free_port(2), free_port(), free_port()), streams)

    def save(self, home: Path) -> None:
        fresh = home / ".state.json"
        fresh.write_text(json.dumps(asdict(self), indent=1))
        fresh.rename(home / "state.json")


class World:
    """Servers and drivers. apps: those that must work; faults hit the first."""

    apps: ClassVar[tuple[str, ...]] = (APP, CAPTURES)

    def __init__(self, broker: Broker, database: MariaDB, control: Control, supervision: Supervision | Airflow) -> None:
        self.broker, self.database, self.control, self.supervision = broker, database, control, supervision

    def driver(self, app: str = "") -> DriverRow | None:
        """The app's current driver, once it has a process; it may have ended. None while the database is down."""
        try:
            row = self.control.app(app or self.apps[0])
            driver = self.control.driver(row.incarnation) if row and row.incarnation else None
        except PenstockError:
            return None
        return driver if driver and driver.pid else None

    def is_working(self, app: str, since_ms: int) -> bool:
        """Whether a driver runs, and every stream or capture of the app has made progress since then (epoch ms)."""
        d = self.driver(app)
        if d is None or d.state != "running" or not d.session.alive():
            return False
        try:
            rows = self.control.progress(app).values()
            desired = self.control.desired(app).keys()
            if app == CAPTURES:
                return {p.name for p in rows} == set(desired) and all(
                    p.incarnation == d.incarnation and (p.reported_at or 0) > since_ms and p.state in WORKING_STATES
                    for p in rows
                )
            return {p.name for p in rows} == set(desired) and all(
                p.incarnation == d.incarnation and (p.batch_at or 0) > since_ms for p in rows
            )
        except PenstockError:
            return False

    def wait_recovered(self, seconds: float = 300.0) -> float | None:
        """Wait until everything works again; returns the seconds, or None after the timeout."""
        started_at, since = time.monotonic(), int(time.time() * 1000)
        apps = list(self.apps)
        while time.monotonic() - started_at < seconds:
            apps = [app for app in apps if not self.is_working(app, since)]
            if not apps:
                return time.monotonic() - started_at
            time.sleep(0.5)
        return None

    def states_text(self) -> str:
        """Drivers, states and errors of the apps as text."""
        reasons = []
        for app in self.apps:
            d = self.driver(app)
            reasons.append(f"{app}: {d.state if d else 'no driver'} {d.log if d else ''}")
            try:
                reasons += [f"{p.name} {p.state}: {p.error}" for p in self.control.progress(app).values() if p.error]
            except PenstockError as e:
                reasons.append(str(e))
        return "; ".join(reasons)

    def watermarks_are_recent(self, grace: float) -> bool:
        """Whether the watermark of every stream that has one is recent."""
        rows = self.control.progress(APP).values()
        limit = (time.time() - grace - 600) * 1000
        timed = [p for p in rows if p.name not in ("named", "parted", "wilds")]
        return len(rows) == len(self.control.desired(APP)) and all((p.watermark or 0) > limit for p in timed)


@contextmanager
def start_platform(home: Path, state: State, *, airflow: bool, prepare_database: Callable[[], None]) -> Iterator[World]:
    """Start everything; stop it at the end and keep the data. prepare_database: called before drivers start."""
    aot_cache.ensure()
    with ExitStack() as stack:
        os.environ.update(CHAOS_GRACE=str(int(state.grace)), CHAOS_STREAMS=",".join(state.streams))
        kafka, sql, web = state.ports
        broker = stack.enter_context(Broker(home=home, port=kafka))
        database = stack.enter_context(MariaDB(home=home, port=sql))
        prepare_database()
        os.environ["AIRFLOW_CONN_DEMO"] = database.url_of("demo")
        variables: dict[str, Any] = {
            "PENSTOCK_STUCK_AFTER": STUCK,
            "PENSTOCK_LEASE_TTL": LEASE,
            "PENSTOCK_DRIVER_MEMORY": "768m",
            **SCHEDULER_TIMEOUTS,
        }
        control = stack.enter_context(deployed(FOLDER, broker, database, home, **variables))
        supervision = Airflow(home, web, FOLDER) if airflow else Supervision(home)
        stack.enter_context(supervision)
        yield World(broker, database, control, supervision)


def supervision_servers(supervision: Supervision | Airflow) -> Sequence[ManagedServer]:
    return supervision.servers if isinstance(supervision, Airflow) else [supervision]
