"""Prometheus metrics of streams, apps, captures, sinks, backfills and views, read from the operator page's model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from penstock.control.repositories.captures import DRIFT_KINDS, PHASES, CaptureRow
from penstock.model.view import views_instance
from penstock.monitoring.dashboard.faults import page_address
from penstock.monitoring.dashboard.model import (
    AppView,
    BackfillRunView,
    ExpectationView,
    FaultView,
    SinkView,
    StreamView,
)
from penstock.monitoring.dashboard.platform_status import PlatformStatus
from penstock.monitoring.dashboard.states import HEALTHY_STATES, STATES

Value = float | int | None


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


class Reading(NamedTuple):
    """How a metric is read from an item of the model; a mapping gives one sample for each value of `label`."""

    name: str
    help: str
    read: Callable[[Any], Value | Mapping[str, Value]]
    label: str = ""


class Group(NamedTuple):
    """Metrics of the same items.

    Attributes:
        prefix: Of the metrics' names.
        labels: Names of the labels that all of the metrics have.
        items: Label values and item, for each item of the model that has the metrics now.
        metrics: What ends in `_total` is a counter, all others are gauges.
    """

    prefix: str
    labels: tuple[str, ...]
    items: Callable[[PlatformStatus], Iterable[tuple[tuple[str, ...], Any]]]
    metrics: tuple[Reading, ...]


class BackfillRuns(NamedTuple):
    """The runs of one backfill; there may be several of different intervals at once."""

    runs: Sequence[BackfillRunView]

    @property
    def live(self) -> list[BackfillRunView]:
        return [run for run in self.runs if run.state in ("running", "waiting", "verifying")]

    def alarms(self, state: str) -> int:
        return sum(bool(run.alarm) and run.state == state for run in self.runs)

    def total(self, field: str) -> Value:
        """Sum over the live runs; None if there is none."""
        live = self.live
        return sum(getattr(run, field) or 0 for run in live) if live else None

    @property
    def remaining_ms(self) -> int | None:
        return max((run.remaining_ms for run in self.live if run.remaining_ms is not None), default=None)


def _streams(status: PlatformStatus, *, reported: bool = False) -> Iterator[tuple[tuple[str, ...], StreamView]]:
    return (((s.name, s.app), s) for s in status.streams if not reported or s.reported_age_ms is not None)


def _expectations(status: PlatformStatus) -> Iterator[tuple[tuple[str, ...], ExpectationView]]:
    return (((s.name, s.app, rule.name, rule.action), rule) for s in status.streams for rule in s.expectations)


def _faults(status: PlatformStatus) -> Iterator[tuple[tuple[str, ...], FaultView]]:
    return (
        ((fault.kind, fault.name, fault.app, fault.state, page_address(fault)), fault) for fault in status.view.faults
    )


def _views(status: PlatformStatus) -> Iterator[tuple[tuple[str, ...], StreamView]]:
    reported = (s for _, s in _streams(status, reported=True) if views_instance(s.app))
    return (((s.name.rpartition("@")[0], s.app), s) for s in reported)


def _apps(status: PlatformStatus) -> Iterator[tuple[tuple[str, ...], AppView]]:
    return (((app.name,), app) for app in status.view.apps)


def _drivers(status: PlatformStatus) -> Iterator[tuple[tuple[str, ...], Any]]:
    """By app: a label for each launch would be a new series for each launch, for ever."""
    return (((a.name,), a.driver) for a in status.view.apps if a.driver and a.driver.state != "ended")


def _captures(status: PlatformStatus) -> Iterator[tuple[tuple[str, ...], tuple[CaptureRow, int]]]:
    rows = status.snap.captures.values()
    return (((row.name,), (row, status.snap.now)) for row in rows if row.reported_at)


def _sinks(status: PlatformStatus) -> Iterator[tuple[tuple[str, ...], SinkView]]:
    return (((sink.name, sink.app), sink) for sink in status.view.sinks)


def _backfills(status: PlatformStatus) -> Iterator[tuple[tuple[str, ...], BackfillRuns]]:
    runs = sorted(status.view.runs, key=lambda run: run.name)
    return (((name,), BackfillRuns(list(same))) for name, same in groupby(runs, lambda run: run.name))


def _drift(name: str) -> Callable[[tuple[CaptureRow, int]], Value]:
    return lambda of: of[0].drift.get(name) if of[0].drift else None


def _away(sink: SinkView) -> Value:
    return _seconds(sink.health_age_ms) if sink.health == "away" else 0 if sink.state in HEALTHY_STATES else None


STREAM_STATE = (
    Reading("desired", "Desired state of the stream: 1 is on.", lambda s: s.desired == "on"),
    Reading("up", "1 if the stream is running or idle.", lambda s: s.state in HEALTHY_STATES),
    Reading(
        "state",
        "State of the stream, as the operator page shows it: 1 for the one it is in.",
        lambda s: {state: s.state == state for state in STATES},
        "state",
    ),
)

STREAM = (
    Reading("progress_age_seconds", "Time since the driver last reported.", lambda s: _seconds(s.reported_age_ms)),
    Reading("batch_id", "Number of the last batch.", lambda s: s.batch_id),
    Reading("batch_duration_seconds", "Duration of the last batch.", lambda s: _seconds(s.batch_ms)),
    Reading("batch_age_seconds", "Time since the last batch was committed.", lambda s: _seconds(s.batch_age_ms)),
    Reading("rows_per_second", "Rows read per second.", lambda s: s.rows_per_s),
    Reading("rows_in_total", "Rows read since the first start.", lambda s: s.rows_in),
    Reading("rows_out_total", "Rows written since the first start.", lambda s: s.rows_out),
    Reading("late_records_total", "Records dropped as too late since the first start.", lambda s: s.late),
    Reading("dead_letters_total", "Records sent to a dead-letter topic since the first start.", lambda s: s.dead),
    Reading(
        "lost_records_total", "Records deleted before they were read, at most, where that is known.", lambda s: s.lost
    ),
    Reading("restarts_total", "Restarts of the stream.", lambda s: s.restarts),
    Reading(
        "watermark_age_seconds", "How far the watermark is behind the clock.", lambda s: _seconds(s.watermark_age_ms)
    ),
    Reading("state_rows", "Rows of state.", lambda s: s.state_rows),
    Reading("state_bytes", "Memory of the state store.", lambda s: s.state_bytes),
    Reading(
        "lag_records",
        "Records of an input topic that are not read yet.",
        lambda s: {topic.name: topic.lag for topic in s.topics},
        "topic",
    ),
)

EXPECTATION = (
    Reading(
        "violations_total",
        "Rows of committed batches that violated a rule of the stream, since it was declared with this action.",
        lambda rule: rule.violations,
    ),
)

APP = (
    Reading("wanted", "1 if a stream of the app is wanted on.", lambda a: a.desired == "on"),
    Reading(
        "up",
        "1 if the app's own driver runs or drains and reported lately that it is alive.",
        lambda a: a.driver is not None and a.driver.up,
    ),
    Reading("release", "Number of the release that is asked for.", lambda a: a.release_seq),
    Reading("drivers", "Drivers of the app that have not ended: two during a release.", lambda a: a.drivers),
    Reading("restarts_total", "Drivers launched because one had ended by itself.", lambda a: a.restarts),
)

DRIVER = (
    Reading("up", "1 if the driver runs or drains and reported lately that it is alive.", lambda d: d.up),
    Reading(
        "liveness_age_seconds",
        "Time since the driver last reported that it is alive.",
        lambda d: _seconds(d.alive_age_ms),
    ),
    Reading("launch_time_seconds", "When the driver was launched, Unix time.", lambda d: d.launched_at / 1000),
    Reading("release", "Number of the release the driver was launched under.", lambda d: d.release_seq),
)

# Beside the metrics of its stream, whose watermark age is the lag of the capture.
CAPTURE = (
    Reading(
        "phase",
        "What the capture does: 1 for the phase it is in.",
        lambda of: {phase: of[0].phase == phase for phase in PHASES},
        "phase",
    ),
    Reading("polls_total", "Polls since its driver opened it.", lambda of: of[0].polls),
    Reading("snapshot_rows", "Rows that its last snapshot has written.", lambda of: of[0].snapshot_rows),
    Reading("snapshot_rows_expected", "Rows of the table when that snapshot began.", lambda of: of[0].snapshot_total),
    Reading(
        "open_transaction_age_seconds",
        "Age of the oldest open transaction of its database, 0 if none.",
        lambda of: max(0, of[1] - of[0].oldest_at) / 1000 if of[0].oldest_at else 0,
    ),
    Reading(
        "ignores_open_transactions",
        "1 if transactions open longer than HOLD are not waited for.",
        lambda of: of[0].skipped_until is not None,
    ),
    Reading(
        "dead_letter_rows",
        "Rows that are dead letters now: too large for the topic, or not valid text.",
        lambda of: of[0].dead_letter_rows["rows"] if of[0].dead_letter_rows else 0,
    ),
    Reading("compared_rows", "Rows that the last reconcile compared.", _drift("rows")),
    Reading("compared_time_seconds", "When the last reconcile ended, Unix time.", _drift("ended")),
    Reading(
        "drift_rows",
        "Rows that the last reconcile repaired.",
        lambda of: {kind: of[0].drift[kind] for kind in DRIFT_KINDS} if of[0].drift else {},
        "kind",
    ),
    Reading(
        "drift_explained",
        "1 if a known change, for example of the columns, explains that drift.",
        lambda of: of[0].drift and bool(of[0].drift.get("explained")),
    ),
)

# Beside the metrics of its stream: lag and dead letters.
SINK = (
    Reading("store_away_seconds", "How long the sink has waited for its store, 0 if it does not.", _away),
    Reading("written_per_second", "Documents written or deleted per second.", lambda s: s.written_per_s),
    Reading("written_total", "Documents written or deleted since its driver started.", lambda s: s.written),
    Reading(
        "conflicts_total",
        "Documents of which the store had a newer version, since its driver started.",
        lambda s: s.conflicts,
    ),
    Reading("retried_total", "Documents sent again since its driver started.", lambda s: s.retried),
    Reading("refused_total", "Documents that the store rejected since its driver started.", lambda s: s.refused),
    Reading("bytes_total", "Bytes of documents sent since its driver started.", lambda s: s.bytes),
    Reading("waits_total", "How often the store asked to wait since its driver started.", lambda s: s.waits),
)

BACKFILL = (
    Reading("running", "Runs of the backfill in progress.", lambda b: len(b.live)),
    Reading(
        "waiting", "Runs in progress that wait for something.", lambda b: sum(run.state == "waiting" for run in b.live)
    ),
    Reading("failed", "Runs that failed in the last hour and were not started again.", lambda b: b.alarms("failed")),
    Reading(
        "silent", "Runs that stopped reporting within the last hour: their process died.", lambda b: b.alarms("silent")
    ),
    Reading("files", "Files that the runs in progress are to read.", lambda b: b.total("files")),
    Reading("files_done", "Files that they have read.", lambda b: b.total("files_done")),
    Reading("rows", "Rows that the runs in progress are to read, as far as known.", lambda b: b.total("rows")),
    Reading("rows_done", "Rows that they have read.", lambda b: b.total("rows_done")),
    Reading("rows_per_second", "Rows that they read per second.", lambda b: b.total("rate")),
    Reading("remaining_seconds", "Estimated time until the last of them is done.", lambda b: _seconds(b.remaining_ms)),
)

# Beside the metrics of a stream, which each view has in each instance.
VIEW = (
    Reading("rows", "Keys that the instance keeps of the view.", lambda s: s.state_rows),
    Reading("bytes", "Size of the view's store.", lambda s: s.state_bytes),
    Reading("lag_records", "Records of the view's topic that the instance has not read yet.", lambda s: s.lag),
    Reading(
        "age_seconds",
        "Time since the end offsets were read that the instance has reached.",
        lambda s: _seconds(s.watermark_age_ms),
    ),
)

FAULT = (Reading("seconds", "Time since the fault began.", lambda fault: _seconds(fault.lasted_ms or 0)),)
GROUPS = (
    Group("penstock_stream_", ("stream", "app"), _streams, STREAM_STATE),
    Group("penstock_stream_", ("stream", "app"), lambda status: _streams(status, reported=True), STREAM),
    Group("penstock_stream_", ("stream", "app", "rule", "action"), _expectations, EXPECTATION),
    Group("penstock_app_", ("app",), _apps, APP),
    Group("penstock_driver_", ("app",), _drivers, DRIVER),
    Group("penstock_capture_", ("capture",), _captures, CAPTURE),
    Group("penstock_sink_", ("stream", "app"), _sinks, SINK),
    Group("penstock_backfill_", ("backfill",), _backfills, BACKFILL),
    Group("penstock_view_", ("view", "app"), _views, VIEW),
    Group("penstock_fault_", ("kind", "name", "app", "state", "page"), _faults, FAULT),
)
