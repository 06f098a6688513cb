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
from tests.chaos.platform import PATIENCE
from tests.chaos.projects import deployed

APP = "long"
FOLDER = PROJECT / "tests" / "chaos" / "long" / "project"
# Short, so that what must outlast them is short too; each still covers several beats.
LEASE, STUCK = 8.0, 15.0
WELL = ("running", "idle")


class Keeper(ManagedServer):
    """Stands for Airflow in a short run: a twentieth of its weight."""

    name: str = "keeper"
    label: str = "the keeper of the drivers"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.long.keeper"]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])}

    def ready(self) -> bool:
        return True


@dataclass
class State:
    """What is kept of a run, so that it can go on another day. ports: broker, database, Airflow; next: first free
    number of an event; recoveries: seconds; mistakes: as the checker said them."""

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
    """Parts and drivers. apps: those that must work, the one that is broken first."""

    apps: ClassVar[tuple[str, ...]] = (APP, CAPTURES)

    def __init__(self, broker: Broker, database: MariaDB, control: Control, keeper: Keeper | Airflow) -> None:
        self.broker, self.database, self.control, self.keeper = broker, database, control, keeper

    def driver(self, app: str = "") -> DriverRow | None:
        """The app's current driver, once it has a process; it may have ended. None while the database is away."""
        try:
            row = self.control.app(app or self.apps[0])
            found = self.control.driver(row.incarnation) if row and row.incarnation else None
        except PenstockError:
            return None
        return found if found and found.pid else None

    def works(self, app: str, since_ms: int) -> bool:
        """Whether a driver runs, and every stream or capture of the app has worked since a moment of the database."""
        d = self.driver(app)
        if d is None or d.state != "running" or not d.session.alive():
            return False
        try:
            rows = self.control.progress(app).values()
            wanted = self.control.desired(app).keys()
            if app == CAPTURES:
                return {p.name for p in rows} == set(wanted) and all(
                    p.incarnation == d.incarnation and (p.reported_at or 0) > since_ms and p.state in WELL for p in rows
                )
            return {p.name for p in rows} == set(wanted) and all(
                p.incarnation == d.incarnation and (p.batch_at or 0) > since_ms for p in rows
            )
        except PenstockError:
            return False

    def recovered(self, seconds: float = 300.0) -> float | None:
        """Wait until everything works again; after how long, or None if it did not."""
        began, since = time.monotonic(), int(time.time() * 1000)
        apps = list(self.apps)
        while time.monotonic() - began < seconds:
            apps = [app for app in apps if not self.works(app, since)]
            if not apps:
                return time.monotonic() - began
            time.sleep(0.5)
        return None

    def why(self) -> str:
        """What the streams say of themselves."""
        said = []
        for app in self.apps:
            d = self.driver(app)
            said.append(f"{app}: {d.state if d else 'no driver'} {d.log if d else ''}")
            try:
                said += [f"{p.name} {p.state}: {p.error}" for p in self.control.progress(app).values() if p.error]
            except PenstockError as e:
                said.append(str(e))
        return "; ".join(said)

    def timely(self, grace: float) -> bool:
        """Whether every stream that knows time knows that hours ago is over."""
        rows = self.control.progress(APP).values()
        over = (time.time() - grace - 600) * 1000
        timed = [p for p in rows if p.name not in ("named", "parted", "wilds")]
        return len(rows) == len(self.control.desired(APP)) and all((p.watermark or 0) > over for p in timed)


@contextmanager
def started(home: Path, state: State, *, airflow: bool, before: Callable[[], None]) -> Iterator[World]:
    """Everything runs; at the end nothing does, and the data stays. before: what the database needs first."""
    aot_cache.ensure()
    with ExitStack() as stack:
        os.environ.update(CHAOS_GRACE=str(int(state.grace)), CHAOS_STREAMS=",".join(state.streams))
        kafka, sql, web = state.ports
        broker = stack.enter_context(Broker(home=home, port=kafka))
        database = stack.enter_context(MariaDB(home=home, port=sql))
        before()
        os.environ["AIRFLOW_CONN_DEMO"] = database.url_of("demo")
        given: dict[str, Any] = {
            "PENSTOCK_STUCK_AFTER": STUCK,
            "PENSTOCK_LEASE_TTL": LEASE,
            "PENSTOCK_DRIVER_MEMORY": "768m",
            **PATIENCE,
        }
        control = stack.enter_context(deployed(FOLDER, broker, database, home, **given))
        keeper = Airflow(home, web, FOLDER) if airflow else Keeper(home)
        stack.enter_context(keeper)
        yield World(broker, database, control, keeper)


def parts_of(keeper: Keeper | Airflow) -> Sequence[ManagedServer]:
    return keeper.servers if isinstance(keeper, Airflow) else [keeper]
