"""Why a stream is late: its watermark is old, or records are not read, though it works."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.model.declaration import CAPTURES_APP
from penstock.monitoring.dashboard.faults import FAULT_STATES
from penstock.monitoring.dashboard.model import StreamView
from penstock.monitoring.dashboard.page_data import PageData
from penstock.monitoring.dashboard.states import HEALTHY_STATES
from penstock.monitoring.dashboard.under_way import is_behind
from penstock.monitoring.humanize import duration

# Behind the clock by more than is declared: a batch, a poll and a heartbeat take some seconds each.
LATE_MS = 60_000
# Causes that are named.
CAUSES = 3


def delay(data: PageData, stream: StreamView) -> int | None:
    """How old the watermark of a stream is beyond what is declared, in ms; None if it has none."""
    age = stream.watermark_age_ms
    return None if age is None else age - data.delays.get(stream.name, 0)


def lateness(data: PageData, stream: StreamView) -> str:
    """Why a stream is late; empty if it is not, or if its state says why."""
    old = (delay(data, stream) or 0) > LATE_MS
    if stream.desired == "off" or stream.state not in HEALTHY_STATES or not (old or is_behind(stream)):
        return ""
    causes = list(_causes(data, stream))[:CAUSES]
    if causes:
        return "; ".join(causes)
    if stream.lag:
        after = "" if stream.batch_age_ms is None else f", {duration(stream.batch_age_ms)} after the last one"
        return f"{stream.lag:,} records wait for its next batch{after}"
    return "it reads all there is: its input has no newer event time"


def _causes(data: PageData, stream: StreamView) -> Iterator[str]:
    lag = stream.lag or 0
    if is_behind(stream):
        furthest = max(stream.topics, key=lambda topic: topic.lag or 0, default=None)
        of = f", most of {furthest.name}" if furthest and len(stream.topics) > 1 else ""
        rate = f", at {stream.rows_per_s:,.0f} a second" if stream.rows_per_s else ""
        yield f"it is behind by {lag:,} records{of}{rate}"
    row = data.status.snap.progress.get(stream.name)
    for topic, figures in (row.topics if row else {}).items():
        for partition in figures.get("open", {}):
            yield f"partition {partition} of {topic} gives no records: a producer's transaction is open"
    held = set()
    for name in (topic.name for topic in stream.topics):
        if hold := data.status.snap.holds.get(name):
            held.add(name)
            yield f"it waits for what writes {name}: {hold['why']}"
    yield from _upstream(data, stream, held)
    if not lag and stream.state == "idle" and stream.app != CAPTURES_APP:
        ago = "" if stream.batch_age_ms is None else f" since its last batch {duration(stream.batch_age_ms)} ago"
        yield f"its input is idle: no record came{ago}"


def _upstream(data: PageData, stream: StreamView, held: set[str]) -> Iterator[str]:
    declared = data.declared(stream.name)
    if declared is None or data.declarations is None:
        return
    for one in data.declarations.flow.reads_from((declared["kind"], declared["name"])):
        before = data.streams.get(one.name)
        if before is None or one.through in held:
            continue
        if before.desired == "off":
            yield f"it waits for {one.kind} {one.name}, which is off"
        elif before.state in FAULT_STATES:
            yield f"it waits for {one.kind} {one.name}, which is {before.state}"
        elif (age := delay(data, before) or 0) > LATE_MS:
            yield f"it waits for {one.kind} {one.name}, which is late by {duration(age)} itself"
