"""What the operator page and `penstock streams` show, computed from one snapshot of the control database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from penstock.control import AppRow, Desired, DriverRow
from penstock.control.repositories.captures import CaptureRow
from penstock.control.repositories.data_loss import DataLossRow, lost
from penstock.model.declaration import CAPTURES_APP
from penstock.monitoring.dashboard.alarms import PAST_FOR, alarms
from penstock.monitoring.dashboard.backfills import run_view
from penstock.monitoring.dashboard.expectations import expectation_views
from penstock.monitoring.dashboard.faults import current_faults, fault_views
from penstock.monitoring.dashboard.model import (
    AppView,
    CaptureView,
    DataLossView,
    DriverView,
    Overview,
    ReportFreshness,
    SinkView,
    StoreHealth,
    StreamTotals,
    StreamView,
    TopicView,
)
from penstock.monitoring.dashboard.replacements import replacement_views
from penstock.monitoring.dashboard.snapshot import Snapshot
from penstock.monitoring.dashboard.states import (
    HEALTHY_STATES,
    STATES,
    State,
    StateLimits,
    UnreportedStream,
    driver_state,
    stream_state,
)
from penstock.monitoring.humanize import duration, host_name
from penstock.supervision.released_code import is_up

# Newest gaps of a stream that are shown beside those that block it, and names in a message.
GAPS, NAMED = 20, 10


def overview(snap: Snapshot, limits: StateLimits) -> Overview:
    """The page's data model: every app and stream with its state and the reason for it."""
    apps = [_app(snap, app, limits) for app in snap.apps]
    streams = [stream for app in apps for stream in app.streams]
    beats = [_beat(snap, name) for name in sorted(snap.beats.keys() | snap.holds.keys())]
    captures = [_capture(snap, stream) for stream in streams if stream.app == CAPTURES_APP]
    sinks = [_sink(snap, stream, stream.store) for stream in streams if stream.store is not None]
    runs = [run_view(row, snap.now) for row in snap.runs]
    replacements = replacement_views(snap.replacements, snap.now)
    totals, freshness = _totals(apps, streams), _freshness(snap, apps, streams)
    faults, past = fault_views(current_faults(apps, runs, replacements), snap.faults, snap.now)
    return Overview(snap.now, apps, totals, freshness, beats, captures, sinks, runs, replacements, faults, past)


def _beat(snap: Snapshot, topic: str) -> Mapping[str, Any]:
    beat, hold = snap.beats.get(topic), snap.holds.get(topic)
    return {
        **(beat or {"name": topic, "at": None, "partitions": 0, "sender": ""}),
        "topic": topic,
        "age_ms": max(0, snap.now - beat["at"]) if beat else None,
        "held": hold["why"] if hold else "",
        "held_at": hold["at"] if hold else None,
    }


def _app(snap: Snapshot, app: AppRow, limits: StateLimits) -> AppView:
    desired = snap.desired.get(app.name, {})
    wanted = "on" in desired.values()
    driver = snap.drivers.get(app.incarnation) if app.incarnation else None
    changed_at = max((snap.changed.get(name, 0) for name in desired), default=0)
    of_driver = driver_state(app, driver, wanted, snap.now, limits, changed_at)
    streams = [_stream(snap, app, name, want, of_driver, driver, limits) for name, want in sorted(desired.items())]
    state, why = of_driver
    if state == "running":
        active = [s.state for s in streams if s.state != "stopped"]
        state = min(active, key=list(STATES).index) if active else "draining"
        why = "" if active else "all its streams are stopped; its driver ends by itself"
    return AppView(
        app.name,
        state,
        why,
        "on" if wanted else "off",
        app.release_seq,
        driver.release_seq if driver and is_up(driver, snap.now, limits.stuck_ms) else None,
        app.restarts,
        snap.live_drivers.get(app.name, 0),
        _driver(driver, snap.now, limits) if driver else None,
        streams,
    )


def _driver(row: DriverRow, now: int, limits: StateLimits) -> DriverView:
    alive_age = max(0, now - row.alive_at)
    return DriverView(
        row.incarnation,
        host_name(row),
        row.pid,
        row.state,
        row.release_seq,
        row.owner,
        row.log,
        row.launched_at,
        max(0, (row.ended_at or now) - row.launched_at),
        is_up(row, now, limits.stuck_ms),
        alive_age,
        None if row.ended_at is None else max(0, now - row.ended_at),
        row.reason,
        row.spec_hash,
        row.submission,
    )


def _capture(snap: Snapshot, s: StreamView) -> CaptureView:
    row = snap.captures.get(s.name) or CaptureRow(s.name)
    reading = row.phase == "snapshot" and row.snapshot_total
    waiting = row.request_id is not None and row.request_id != row.answered_request_id
    return CaptureView(
        s.name,
        s.state,
        s.desired,
        s.stale,
        s.why,
        row.phase,
        row.why or "",
        s.watermark_age_ms,
        s.rows_in,
        s.rows_out,
        s.batch_age_ms,
        (row.snapshot_rows, row.snapshot_total) if reading else None,
        None if row.oldest_at is None else max(0, snap.now - row.oldest_at),
        row.skipped_until is not None,
        row.drift,
        row.dead_letter_rows,
        row.requested if waiting else None,
        "" if waiting else row.answer or "",
    )


def _sink(snap: Snapshot, s: StreamView, store: Mapping[str, Any]) -> SinkView:
    health: StoreHealth = "unknown"
    answered, since = store.get("answered_at"), None
    if s.state == "waiting":
        health, since = "away", s.error_age_ms
    elif s.state in HEALTHY_STATES and answered is not None:
        health, since = "reachable", max(0, snap.now - answered)
    current = s.rows_per_s is not None
    return SinkView(
        s.name,
        s.app,
        s.state,
        s.desired,
        s.stale,
        s.why,
        destination=store.get("destination", ""),
        health=health,
        health_age_ms=since,
        reason=(s.error or "") if health == "away" else "",
        written_per_s=store.get("written_per_s") if current else None,
        retried_per_s=store.get("retried_per_s") if current else None,
        written=store.get("written", 0),
        conflicts=store.get("conflicts", 0),
        retried=store.get("retried", 0),
        refused=store.get("refused", 0),
        bytes=store.get("bytes", 0),
        waits=store.get("waits", 0),
        lag=s.lag,
        dead=s.dead,
        error=s.error,
        error_age_ms=s.error_age_ms,
    )


def _stream(
    snap: Snapshot,
    app_row: AppRow,
    name: str,
    desired: Desired,
    of_driver: tuple[State, str],
    driver: DriverRow | None,
    limits: StateLimits,
) -> StreamView:
    app, row = app_row.name, snap.progress.get(name)
    reported = snap.reported_by.get(driver.incarnation, set()) if driver else set()
    unreported = (
        UnreportedStream(snap.changed.get(name), app_row.refused_at, app_row.refused)
        if reported and name not in reported
        else None
    )
    state, why = stream_state(desired, of_driver, driver, row, snap.now, limits, unreported)
    if row is None:
        error, error_at = (
            (unreported.refused, unreported.refused_at) if unreported and state == "failing" else (None, None)
        )
        ago = None if error_at is None else max(0, snap.now - error_at)
        return StreamView(name, app, desired, state, why, stale=False, error=error, error_age_ms=ago)
    gaps = snap.gaps_of.get(name, [])
    age = max(0, snap.now - row.reported_at)
    stale = desired == "on" and age > limits.fresh_ms
    alarming = alarms(row, snap.before.get(name), snap.now) if state in HEALTHY_STATES else []
    error_age = None if row.error_at is None else max(0, snap.now - row.error_at)
    healed = state in HEALTHY_STATES and (error_age is None or error_age > PAST_FOR)
    watermark = row.watermark or None  # 0 is Spark's "none yet", not the year 1970
    return StreamView(
        name,
        app,
        desired,
        state,
        why or "; ".join(alarming),
        stale=stale,
        reported_age_ms=age,
        batch_id=row.batch_id,
        batch_age_ms=None if row.batch_at is None else max(0, snap.now - row.batch_at),
        batch_ms=row.batch_ms,
        rows_per_s=None if stale or state in ("stopped", "down", "hung") else row.rows_per_s,
        rows_in=row.rows_in,
        rows_out=row.rows_out,
        late=row.late,
        dead=row.dead,
        lag=row.lag,
        watermark=watermark,
        watermark_age_ms=None if watermark is None else snap.now - watermark,
        state_rows=row.state_rows,
        state_bytes=row.state_bytes,
        restarts=row.restarts,
        error=None if healed else row.error,
        error_age_ms=None if healed else error_age,
        topics=[_topic(topic, metrics) for topic, metrics in sorted((row.topics or {}).items())],
        lost=lost(gaps).get(name, 0),
        lost_unknown=any(gap.passed_at is not None and gap.records is None for gap in gaps),
        gaps=[_gap(gap, snap.now) for n, gap in enumerate(gaps) if n < GAPS or not gap.accepted_at],
        alarms=alarming,
        store=row.store,
        expectations=expectation_views(row.expectations, snap.now),
    )


def _gap(row: DataLossRow, now: int) -> DataLossView:
    place = (row.topic, row.kind, row.partition, row.start, row.end, row.records)
    age = max(0, now - row.found_at)
    return DataLossView(row.id, str(row.gap), *place, age, row.accepted_by, row.passed_at is not None)


def _topic(name: str, metrics: Mapping[str, Any]) -> TopicView:
    offsets = metrics.get("offsets") or {}
    return TopicView(name, metrics.get("lag"), len(offsets), offsets)


def _totals(apps: list[AppView], streams: list[StreamView]) -> StreamTotals:
    wanted = [s for s in streams if s.desired == "on"]
    current = [s for s in wanted if s.reported_age_ms is not None and not s.stale]
    # A capture reads no topic.
    measured = [s for s in wanted if s.app != CAPTURES_APP]
    lags = [s.lag for s in current if s.app != CAPTURES_APP and s.lag is not None]
    return StreamTotals(
        streams=len(streams),
        wanted=len(wanted),
        healthy=sum(s.state in ("running", "idle") for s in wanted),
        rows_per_s=sum(s.rows_per_s or 0.0 for s in current),
        lag=sum(lags) if lags or not measured else None,
        lag_unknown=len(measured) - len(lags),
        watermark_age_ms=max((s.watermark_age_ms for s in current if s.watermark_age_ms is not None), default=None),
        state_bytes=sum(s.state_bytes or 0 for s in current),
        late=sum(s.late for s in streams),
        dead=sum(s.dead for s in streams),
        restarts=sum(a.restarts for a in apps),
    )


def _freshness(snap: Snapshot, apps: list[AppView], streams: list[StreamView]) -> ReportFreshness:
    newest = max((row.reported_at for row in snap.progress.values()), default=None)
    age = None if newest is None else max(0, snap.now - newest)
    down = [a for a in apps if a.desired == "on" and a.state in ("down", "hung")]
    gone = {a.name for a in down}
    expected = [s for s in streams if s.desired == "on" and s.reported_age_ms is not None]
    old = [s for s in expected if s.stale]
    others = [s for s in old if s.app not in gone]
    if others and len(old) == len(expected):
        youngest = min(s.reported_age_ms or 0 for s in old)
        message = f"No stream with desired state on has reported for {duration(youngest)}; the last metrics are shown."
        return ReportFreshness("all", message, newest, age, "These metrics are old", sorted(gone))
    messages = [f"{a.name}: {a.why}." for a in down[:NAMED]]
    title = _listed([f"{'app' if n else 'App'} {a.name} is {a.state}" for n, a in enumerate(down)])
    if others:
        names = _listed([f"{s.name} ({duration(s.reported_age_ms or 0)})" for s in others])
        messages.append(f"Old metrics, with the time since the last report: {names}.")
    old_streams: Literal["no", "some", "all"] = "no" if not old else "all" if len(old) == len(expected) else "some"
    return ReportFreshness(
        old_streams, " ".join(messages), newest, age, title or ("Some metrics are old" if others else ""), sorted(gone)
    )


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
