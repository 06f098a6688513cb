"""The data model of the operator page. Times are epoch ms by the database's clock, ages are ms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.control import Desired, Fault, ReplacementState
from penstock.control.repositories.backfills import RunState
from penstock.model.expectation import OnViolation
from penstock.monitoring.dashboard.states import State


# Not frozen, as StreamView: with thousands of streams that would take a fifth of the time of a read.
@dataclass
class TopicView:
    """What a stream reads of a topic. offsets: the next ones by partition, in no order."""

    name: str
    lag: int | None
    partitions: int
    offsets: Mapping[str, int]

    @property
    def in_order(self) -> list[tuple[str, int]]:
        """The offsets, in order of their partitions."""
        return sorted(self.offsets.items(), key=lambda one: int(one[0]))


@dataclass(frozen=True)
class DataLossView:
    """Data loss of an input.

    Attributes:
        id: by which it is accepted.
        records: how many were not read, at most; None if unknown.
        accepted_by: who accepted it, or `its declaration`; None while the stream is blocked.
    """

    id: str
    text: str
    topic: str
    what: str
    partition: int
    start: int
    end: int
    records: int | None
    age_ms: int
    accepted_by: str | None
    passed: bool


@dataclass(frozen=True)
class ExpectationView:
    """A rule of a stream.

    Attributes:
        action: what happens to a row that violates it.
        violations: of committed batches, since the rule was first declared with this action.
        last_hour: of that, by the time of the commit.
        minutes: the minutes of the last hour that had violations, epoch ms, and how many.
    """

    name: str
    action: OnViolation
    violations: int
    last_hour: int
    minutes: list[tuple[int, int]]


@dataclass
class StreamView:
    name: str
    app: str
    desired: Desired
    state: State
    why: str
    stale: bool
    """The last report is too old for a stream whose desired state is on."""
    reported_age_ms: int | None = None
    batch_id: int | None = None
    batch_age_ms: int | None = None
    batch_ms: int | None = None
    rows_per_s: float | None = None
    """None if there is no current report"""
    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    dead: int = 0
    lag: int | None = None
    watermark: int | None = None
    watermark_age_ms: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    restarts: int = 0
    error: str | None = None
    error_age_ms: int | None = None
    topics: list[TopicView] = field(default_factory=list)
    lost: int = 0
    """Records of its inputs that it continued without, at most"""
    lost_unknown: bool = False
    """It also continued without an unknown number of records."""
    gaps: list[DataLossView] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    """Sentences about a stream that runs, see `alarms`; also its `why`."""
    store: dict[str, Any] | None = None
    """Of a sink, see `ProgressRow`"""
    expectations: list[ExpectationView] = field(default_factory=list)


@dataclass(frozen=True)
class DriverView:
    incarnation: str
    host: str
    pid: int | None
    state: str
    release_seq: int
    owner: str
    log: str
    launched_at: int
    up_ms: int
    up: bool
    """Running or draining, with a recent report."""
    alive_age_ms: int
    ended_age_ms: int | None
    reason: str | None
    spec_hash: str
    """Of the code that it runs."""
    submission: str | None = None
    """Its id in the cluster that runs it."""


@dataclass(frozen=True)
class CaptureView:
    """What a capture reports beside its metrics as a stream.

    Attributes:
        waits: What it waits for, or why it was refused.
        snapshot: Rows read and the estimated total, during a snapshot.
        open_ms: Age of the oldest open transaction.
        skipped_transactions: Whether transactions are open for which polls do not wait.
        drift: Rows that the last reconcile found missing, differing or extra, of how many.
        dead_letter_rows: The number of rows without a record, and the key of one.
        asked: The request that is not answered yet.
        answer: Why the last request could not be done; empty if it was.
    """

    name: str
    state: State
    desired: Desired
    stale: bool
    why: str
    phase: str
    waits: str
    lag_ms: int | None
    rows_in: int
    rows_out: int
    poll_age_ms: int | None
    snapshot: tuple[int, int] | None
    open_ms: int | None
    skipped_transactions: bool
    drift: Mapping[str, Any] | None
    dead_letter_rows: Mapping[str, Any] | None
    asked: str | None
    answer: str


StoreHealth = Literal["reachable", "away", "unknown"]


@dataclass(frozen=True)
class SinkView:
    """What a sink writes and the health of its store, beside its metrics as a stream.

    Attributes:
        destination: the store and the name in it.
        health: `reachable` if the store accepted the last documents, `away` while the sink waits for it, `unknown` if
            nothing is written to it.
        health_age_ms: time since the store last accepted documents, or since it has been away.
        reason: why it is away.
        written, conflicts, retried, refused, bytes, waits: counts since the driver started.
    """

    name: str
    app: str
    state: State
    desired: Desired
    stale: bool
    why: str
    destination: str
    health: StoreHealth
    health_age_ms: int | None
    reason: str
    written_per_s: float | None
    retried_per_s: float | None
    written: int
    conflicts: int
    retried: int
    refused: int
    bytes: int
    waits: int
    lag: int | None
    dead: int
    error: str | None
    error_age_ms: int | None


@dataclass(frozen=True)
class BackfillRunView:
    """A run of a backfill; see `BackfillRow` for the attributes that are as reported.

    Attributes:
        state: `silent` if a run that has not ended does not report.
        done: progress, 0 to 1; None if unknown.
        rate, remaining_ms: None unless it is in progress.
        took_ms: from the last start until the end or the last report.
        alarm: see `run_alarm`.
    """

    run: str
    name: str
    begin: int | None
    end: int | None
    target: str
    dry: bool
    state: RunState | Literal["silent"]
    why: str
    alarm: str
    files: int
    files_done: int
    rows: int
    rows_done: int
    done: float | None
    rate: float | None
    remaining_ms: int | None
    verified: str
    attempts: int
    owner: str
    started_at: int
    took_ms: int
    reported_age_ms: int
    ended_age_ms: int | None


@dataclass(frozen=True)
class ReplacementView:
    """A replacement; see `ReplacementRow` for the attributes that are as reported.

    Attributes:
        alarm: whether it failed lately.
        way: `in place`, `back to the version before`, or empty.
        done: progress, 0 to 1; None if unknown.
        rate, remaining_ms, lag: None unless it is in progress.
        silent: whether its driver has not reported for too long.
        refused: rows that the store of a sink refuses.
        examples: how many differing or refused rows are kept as examples.
        cut_requested: whether the cut was asked for.
        actions: what may be done with it: `cut`, `cancel`, `confirm`, `back`.
    """

    id: str
    name: str
    app: str
    state: ReplacementState
    why: str
    alarm: bool
    way: str
    records: int | None
    total: int | None
    done: float | None
    rate: float | None
    remaining_ms: int | None
    lag: int | None
    compared: int | None
    equal: int | None
    different: int | None
    only_new: int | None
    only_running: int | None
    refused: int | None
    examples: int
    pause_ms: int | None
    pause_over_ms: int | None
    cut_requested: bool
    actions: list[str]
    actor: str
    requested_at: int
    reported_age_ms: int
    silent: bool


@dataclass(frozen=True)
class FaultView(Fault):
    """A fault as the page shows it.

    Attributes:
        remedy: what a person can do; empty if nothing.
        since: when it began; None until the meter has noted it.
        lasted_ms: until it ended, or until now.
        address: of the view that shows what has it; see `page_address`.
    """

    address: str
    remedy: str
    since: int | None
    lasted_ms: int | None
    ended_at: int | None


@dataclass(frozen=True)
class AppView:
    name: str
    state: State
    why: str
    desired: Desired
    release_seq: int
    """The release that was asked for last."""
    running_release: int | None
    """The release of its driver, which drains while it is an earlier one; None if no driver is up."""
    restarts: int
    drivers: int
    """Drivers that have not ended: two during a release."""
    driver: DriverView | None
    streams: list[StreamView]


@dataclass(frozen=True)
class StreamTotals:
    """Totals over streams with desired state on and a current report; late, dead and restarts over all streams.

    Attributes:
        lag: None if the lag of no stream is known.
        lag_unknown: streams with desired state on whose lag is unknown and not included.
    """

    streams: int
    wanted: int
    healthy: int
    rows_per_s: float
    lag: int | None
    lag_unknown: int
    watermark_age_ms: int | None
    state_bytes: int
    late: int
    dead: int
    restarts: int


@dataclass(frozen=True)
class ReportFreshness:
    """How current the reports are.

    Attributes:
        old: whether reports of `no`, `some` or `all` streams with desired state on are old.
        down: apps whose driver is down or hung, though their desired state is on.
        title, message: the text about both; empty if there is nothing to say.
    """

    old: Literal["no", "some", "all"]
    message: str
    newest: int | None
    newest_age_ms: int | None
    title: str
    down: list[str]


@dataclass(frozen=True)
class Overview:
    now: int
    apps: list[AppView]
    totals: StreamTotals
    freshness: ReportFreshness
    beats: list[Mapping[str, Any]]
    captures: list[CaptureView]
    sinks: list[SinkView]
    runs: list[BackfillRunView]
    """of backfills"""
    replacements: list[ReplacementView]
    faults: list[FaultView]
    """of this moment"""
    past_faults: list[FaultView]
