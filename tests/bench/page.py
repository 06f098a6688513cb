"""The answers of the operator page's API with rows of many streams: time and size of each.

No stream runs: the rows are those that drivers would have written, fifty streams an app, an hour of history. The
declarations are a chain of as many topics. An answer is timed from the rows of the database, or from what all viewers
share, to JSON; without HTTP.

    python -m tests.bench.page [streams]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import update

from penstock.control import Actor, Control, tables
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.monitoring.dashboard.answers import archives_views, dead_letters, parts, streams
from penstock.monitoring.dashboard.answers.activity import activity
from penstock.monitoring.dashboard.answers.summary import summary
from penstock.monitoring.dashboard.data_flow import DataFlow
from penstock.monitoring.dashboard.declarations import Declarations
from penstock.monitoring.dashboard.history import HOUR_MS, TotalsHistory, hour_history, stream_history
from penstock.monitoring.dashboard.page_data import PageData, read_page_data
from penstock.monitoring.dashboard.states import StateLimits
from penstock.settings import settings
from tests.bench.common import table, write
from tests.bench.rows import Catalog, filled, took

PER_APP, DELAY_MS, SLICES = 50, 60_000, 20


def declarations(catalog: Catalog) -> Declarations:
    """Of each app, a stream reads the topic that the one before it writes."""
    names = list(catalog.supervised)
    rows = {
        name: {
            "kind": "stream", "name": name, "app": catalog.supervised[name].app, "behind_ms": DELAY_MS, "runs": True,
            "location": "jobs/a.py:1", "masks": [], "reads": [], "writes": [{"kind": "topic", "name": name}],
        }
        for name in names
    }  # fmt: skip
    nodes = [{"kind": kind, "name": name} for name in names for kind in ("stream", "topic")]
    edges = [{"source": n, "target": n + 1} for n in range(len(nodes) - 1) if (n + 1) % (2 * PER_APP)]
    return Declarations(rows, {}, DataFlow.of({"nodes": nodes, "edges": edges}))


def answers(data: PageData, control: Control) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """What each view is answered, by its route."""
    names = list(data.streams)
    return {
        "/api/overview": lambda: summary(data),
        "/api/streams": lambda: streams.stream_list(data, "", "", "", 1),
        "/api/streams?q=9": lambda: streams.stream_list(data, "9", "", "", 1),
        "/api/streams/NAME": lambda: streams.stream_details(data, control, names[len(names) // 2]) or {},
        "/api/captures": lambda: parts.capture_list(data, "", 1),
        "/api/sinks": lambda: parts.sink_list(data, "", 1),
        "/api/backfills": lambda: parts.backfill_list(data, control, 1),
        "/api/replacements": lambda: parts.replacement_list(data, control, 1),
        "/api/archives": lambda: archives_views.archive_list(data, control),
        "/api/views": lambda: archives_views.view_list(data),
        "/api/activity": lambda: activity(data, control, "", "", "", None),
        "/api/activity?q=9": lambda: activity(data, control, "9", "", "", None),
        "/api/dead-letters": lambda: dead_letters.dead_letter_list(data, control, "", 1),
        "/api/history?names=": lambda: hour_history(control, names[:100]),
        "/api/history?stream=": lambda: stream_history(control, names[0], "app-00000", "1h"),
    }


def as_json(data: PageData, content: Mapping[str, Any]) -> bytes:
    return orjson.dumps({**data.common, **content}, option=orjson.OPT_NON_STR_KEYS)


def alive(control: Control) -> None:
    """All drivers report."""
    with control.begin() as c:
        c.execute(update(tables.driver).values(alive_at=tables.now_ms()))
        c.execute(update(tables.progress).values(reported_at=tables.now_ms()))


def figures(control: Control, catalog: Catalog) -> Iterator[tuple[str, float, int]]:
    """What is measured, in milliseconds, and the size of an answer."""
    limits, known = StateLimits.of(settings()), declarations(catalog)
    yield "what all viewers share", took(lambda: read_page_data(control, limits, known, "").common), 0
    data = read_page_data(control, limits, known, "")
    for route, answer in answers(data, control).items():

        def encoded(answer: Callable[[], Mapping[str, Any]] = answer) -> bytes:
            return as_json(data, answer())

        yield route, took(encoded), len(encoded())
    totals = TotalsHistory()
    for what in ("the first", "the second", "the third"):
        at = time.perf_counter()
        totals.read(control, known.delays)
        yield f"/api/history, {what} time", (time.perf_counter() - at) * 1000, 0
    for _ in range(SLICES):
        totals.read(control, known.delays)
    size = len(orjson.dumps(totals.read(control, known.delays)))
    yield "/api/history later", took(lambda: totals.read(control, known.delays)), size


def main(count: int) -> None:
    catalog = Catalog(count, PER_APP)
    with tempfile.TemporaryDirectory() as folder, MariaDB(Path(folder), free_port()) as server:
        control = Control(server.url)
        control.migrate()
        filled(control, catalog, HOUR_MS)
        control.set_desired(list(catalog.supervised)[:1_000], "on", Actor("bench", "cli"))
        alive(control)
        measured = list(figures(control, catalog))
        rows = [[what, f"{ms:.0f} ms", f"{size / 1024:.0f} KiB" if size else ""] for what, ms, size in measured]
        control.engine.dispose()
    write(
        "page",
        f"{count:,} streams in {len(catalog.apps):,} apps, MariaDB.\n\n{table(['what', 'median', 'size'], rows)}",
        {"median, ms": {what: [ms] for what, ms, _ in measured}},
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
