"""What the page says that was tried about a fault."""

from __future__ import annotations

from sqlalchemy import insert, update

from penstock.control import Actor, Control, tables
from penstock.monitoring.dashboard.attempts import NOTED_AFTER_MS, read_attempts
from penstock.monitoring.dashboard.model import FaultView, StreamView

SUPERVISOR = Actor("streams_metrics/run/supervise", "supervisor")


def fault(kind: str, name: str, since: int | None) -> FaultView:
    return FaultView(kind, name, "metrics", "failing", "why", "", "", since, 0, None)


def test_what_was_tried_is_counted_since_the_fault_began(control: Control) -> None:
    now = control.now()
    for verb in ("launch", "kill", "launch", "end"):
        control.record(SUPERVISOR, verb, "metrics")
    control.record(Actor("olga", "page"), "release", "metrics")
    with control.engine.begin() as c:
        first = update(tables.action).where(tables.action.c.id == 1)
        c.execute(first.values(at=now - NOTED_AFTER_MS - 100_000))
        for restarts, ago in ((2, NOTED_AFTER_MS + 100_000), (4, 9_000), (6, 1_000)):
            figures = dict.fromkeys(("rows_per_s", "rows_in", "rows_out", "late", "dead"), 0)
            at = {"name": "minutes", "at": now - ago, "restarts": restarts}
            c.execute(insert(tables.history).values(**figures, **at))
    streams = {"minutes": StreamView("minutes", "metrics", "on", "failing", "", stale=False, restarts=7)}
    faults = [
        fault("app", "metrics", now - 10_000), fault("stream", "minutes", now - 10_000), fault("sink", "new", None),
        fault("stream", "unknown", now), fault("backfill", "replay", now),
    ]  # fmt: skip
    attempts = read_attempts(control, faults, streams, control.now())
    assert attempts.keys() == {("app", "metrics"), ("stream", "minutes")}
    assert attempts["stream", "minutes"] == "its query was started again 3 times"
    killed, _, launched = attempts["app", "metrics"].removeprefix("its driver was ").partition(" and ")
    assert killed.startswith("killed once, the last time ")
    assert launched.startswith("launched once, the last time ")


def test_nothing_is_asked_where_nothing_is_wrong(control: Control) -> None:
    control.engine.dispose()
    assert read_attempts(control, [], {}, 0) == {}
