"""The control database with rows of many streams: time of each query.

No stream runs: the rows are those that drivers would have written, ten streams an app, ten minutes of history.

    python -m tests.bench.rows [streams]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from penstock.control import Control, DriverRow, ProgressRow
from penstock.control import tables as s
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host import session
from penstock.host.ports import free_port
from penstock.monitoring.dashboard.alarms import LATELY_MS
from penstock.supervision.decision.watch import AppWatch
from penstock.supervision.lifecycle import HISTORY_EVERY
from penstock.supervision.supervisor import Supervisor
from tests.bench.common import table, write

PER_APP, PARTITIONS = 10, 4
BLOCK = 5_000
TIMES = 7


@dataclass(frozen=True)
class Named:
    name: str
    app: str


class Catalog:
    """Streams by name, some in each app."""

    def __init__(self, count: int, per_app: int = PER_APP) -> None:
        self.supervised = {f"stream-{n:05}": Named(f"stream-{n:05}", f"app-{n // per_app:05}") for n in range(count)}
        self.apps: dict[str, object] = {one.app: None for one in self.supervised.values()}


def driver(app: str, now: int) -> DriverRow:
    """One that lives: it is this process."""
    pid = os.getpid()
    return DriverRow(
        f"driver-{app}", app, session.host(), pid, session.started(pid), 0, "0" * 64, "bench", "running",
        now - 60_000, now, None, None, f"/logs/driver-{app}.log",
    )  # fmt: skip


def figures(one: Named) -> ProgressRow:
    offsets = {str(p): 1_000_000_000 + p for p in range(PARTITIONS)}
    return ProgressRow(
        one.name, one.app, f"driver-{one.app}", "running", 0, batch_id=1000, batch_ms=400, rows_per_s=100.0,
        rows_in=10**9, rows_out=10**6, watermark=1_700_000_000_000, state_rows=10_000, state_bytes=10**6, lag=100,
        topics={f"input-{one.name}": {"lag": 100, "offsets": offsets}},
        # One stream of ten has met a record that came too late.
        late=int(one.name.endswith("0")),
    )  # fmt: skip


def history(catalog: Catalog, now: int, length: int) -> Iterator[dict[str, Any]]:
    zero = dict.fromkeys(("rows_per_s", "rows_in", "rows_out", "late", "dead", "restarts"), 0)
    for ago in range(0, length, int(HISTORY_EVERY * 1000)):
        for name in catalog.supervised:
            yield {**zero, "name": name, "at": now - ago, "batch_ms": 400, "lag": 100}


def filled(control: Control, catalog: Catalog, history_ms: int = LATELY_MS) -> None:
    now = control.now()
    streams = list(catalog.supervised.values())
    with control.begin() as c:
        apps = [{"name": app, "release_seq": 0, "restarts": 0, "incarnation": f"driver-{app}"} for app in catalog.apps]
        c.execute(insert(s.app), apps)
        c.execute(insert(s.stream), [{**vars(one), "desired": "on", "changed_at": now} for one in streams])
        c.execute(insert(s.driver), [vars(driver(app, now)) for app in catalog.apps])
        c.execute(insert(s.progress), [{**vars(figures(one)), "reported_at": now} for one in streams])
    history_rows = list(history(catalog, now, history_ms))
    for at in range(0, len(history_rows), BLOCK):
        with control.begin() as c:
            c.execute(insert(s.history), history_rows[at : at + BLOCK])


def took(work: Callable[[], object]) -> float:
    """Median milliseconds."""
    times = []
    for _ in range(TIMES):
        at = time.perf_counter()
        work()
        times.append((time.perf_counter() - at) * 1000)
    return statistics.median(times)


def main(count: int) -> None:
    catalog = Catalog(count)
    with tempfile.TemporaryDirectory() as folder, MariaDB(Path(folder), free_port()) as server:
        control = Control(server.url)
        control.migrate()
        filled(control, catalog)
        app = f"app-{count // PER_APP // 2:05}"
        mine = [figures(one) for one in catalog.supervised.values() if one.app == app]
        watch, supervisor = AppWatch(control, app), Supervisor(control, app, "bench", lambda _: ["false"])
        medians = {
            "a look of one app's watch": took(watch.look),
            "a tick of one app's supervisor": took(supervisor.tick),
            f"a driver's report of {PER_APP} streams": took(lambda: control.report(mine, keep=False)),
            "the same with history": took(lambda: control.report(mine, keep=True)),
        }
        control.engine.dispose()
    rows = [[what, f"{ms:.1f} ms"] for what, ms in medians.items()]
    text = f"{count:,} streams in {len(catalog.apps):,} apps, MariaDB.\n\n{table(['what', 'median'], rows)}"
    write("rows", text, {"median, ms": {what: [ms] for what, ms in medians.items()}})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
