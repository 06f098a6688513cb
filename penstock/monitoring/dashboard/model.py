"""The data model of the operator page. Times are epoch ms by the database's clock, ages are ms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from penstock.control import Desired
from penstock.control.repositories.backfills import RunState
from penstock.monitoring.dashboard.states import State


@dataclass(frozen=True)
class TopicView:
    name: str
    lag: int | None
    partitions: int
    offsets: dict[str, int]


@dataclass(frozen=True)
class DataLossView:
    """What was not there of an input. records: not read, at most; None if nobody can know; accepted_by: who let the
    stream go on, or `its declaration`; None while it waits."""

    said: str
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
class StreamView:
    name: str
    app: str
    desired: Desired
    state: State
    why: str
    stale: bool
    """The figures are older than they should be for a stream that is wanted."""
    reported_age_ms: int | None = None
    batch_id: int | None = None
    batch_age_ms: int | None = None
    batch_ms: int | None = None
    rows_per_s: float | None = None
    """None where nothing is known to be read now"""
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
    """Records of its inputs that it went on without, at most"""
    lost_unknown: bool = False
    """It also went on without records that nobody can count."""
    gaps: list[DataLossView] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    """Sentences, of a stream that runs: see `observe.alarms`. They are its `why` as well."""
    store: dict[str, Any] | None = None
    """Of a sink: see `control.rows.ProgressRow`"""


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
    """Running or draining, and it reported lately that it is alive."""
    alive_age_ms: int
    ended_age_ms: int | None
    reason: str | None
    spec_hash: str
    """Of the code it was made of."""
    submission: str | None = None
    """What its cluster calls it, if one runs it."""


@dataclass(frozen=True)
class CaptureView:
    """What a capture says of itself, beside its figures as a stream.

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
    """What a sink writes and how its store is, beside its figures as a stream.

    destination: the store and the name in it; health: `reachable` if it took the last documents it was given,
    `away` while the sink waits for it, `unknown` if nobody asks it, or nobody has yet; health_age_ms: since it last
    took documents, or for how long it has been away; reason: why it is. written, conflicts, retried, refused, bytes and
    waits: counts since the driver began.
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
    """A run of a backfill; see `control.backfills.BackfillRow` for what is as it was reported.

    state: `silent` if nothing was heard of a run that has not ended; done: how much of it, 0 to 1, None if nobody
    knows; rate, remaining_ms: None unless it goes on; took_ms: since it was last begun, until it ended or was last
    heard of; alarm: see `observe.alarms`.
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
class AppView:
    name: str
    state: State
    why: str
    desired: Desired
    release_seq: int
    restarts: int
    drivers: int
    """Drivers that have not ended: two during a replacement."""
    driver: DriverView | None
    streams: list[StreamView]


@dataclass(frozen=True)
class StreamTotals:
    """Over wanted streams whose figures are current; late, dead and restarts over all streams.

    lag: None if that of no stream is known; lag_unknown: wanted streams whose lag is not known now, and not in it.
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
    """old: whether figures of `no`, `some` or `all` wanted streams are old; down: wanted apps whose driver is down or
    hung; title, message: what the reader is told of both, empty if all is well."""

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
    actions: list[Mapping[str, Any]]
    beats: list[Mapping[str, Any]]
    captures: list[CaptureView]
    sinks: list[SinkView]
    runs: list[BackfillRunView]
    """of backfills"""

    def as_json(self, **beside: Any) -> bytes:
        """As JSON, with what is given beside it. Of thousands of streams, copied to dicts and written by the standard
        library, it would take seconds."""
        # Rows of a database have names that are texts of SQLAlchemy's own.
        return orjson.dumps({**beside, **vars(self)}, option=orjson.OPT_NON_STR_KEYS)
