"""Rows of the control database as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from penstock.host.session import ProcessSession

Desired = Literal["on", "off"]
EndCode = Literal["released", "unwanted", "asked", "signal", "memory", "failed", "lost", "not begun"]
"""How a driver ended.

- released: replaced by a release
- unwanted: none of its streams is desired
- asked: an operator ended it by Penstock
- signal: it got a signal from elsewhere
- memory: its JVM ran out of memory
- failed: it failed
- lost: its process disappeared, or was killed because it hung
- not begun: it never started
"""


ReplacementState = Literal["queued", "building", "following", "cutting", "cut", "confirmed", "cancelled", "failed"]
"""How far a replacement is.

- queued: asked for; its driver starts, or waits for room
- building: the new version reads its backlog
- following: it has caught up with the running version, and is compared with it
- cutting: the new version takes the running one's place
- cut: the new version writes; the code of the version before it is kept
- confirmed: an operator has confirmed it, or another replacement followed
- cancelled: an operator ended it; the running version goes on
- failed: it is undone; the running version goes on
"""
OPEN_REPLACEMENT: tuple[ReplacementState, ...] = ("queued", "building", "following", "cutting")
"""States in which a replacement has a driver, and its app no other replacement and no release."""


@dataclass(frozen=True)
class Actor:
    """Who does something; `source` is `cli`, `airflow`, `page` or `supervisor`."""

    name: str
    source: str


@dataclass(frozen=True)
class DriverRow:
    """A driver.

    Attributes:
        host: `penstock.host.session.host()` of its processes.
        pid: Leader of its session; None before it is recorded.
        pid_started: Start of the leader, in seconds since boot.
        spec_hash: Digest of the code that it runs; empty until it is known.
        owner: The task instance that answers for it, or who started it by hand.
        alive_at: Its last liveness report.
        reason: Why it ended, or what it waits for.
        master: Master of the cluster that runs it, if any.
        submission: The id that the cluster gave it.
        end_code: How it ended.
    """

    incarnation: str
    app: str
    host: str
    pid: int | None
    pid_started: float | None
    release_seq: int
    spec_hash: str
    owner: str
    state: str
    launched_at: int
    alive_at: int
    ended_at: int | None
    reason: str | None
    log: str
    master: str | None = None
    submission: str | None = None
    end_code: EndCode | None = None

    @property
    def session(self) -> ProcessSession:
        """Its processes, if it runs on a host."""
        return ProcessSession(self.host, self.pid, self.pid_started)

    @property
    def label(self) -> str:
        """Its id for messages: that of its cluster, or its pid."""
        return self.submission or f"pid {self.pid}"


@dataclass(frozen=True)
class AppRow:
    """An app.

    Attributes:
        release_seq: Number of the last release; a driver launched under a lower one drains.
        incarnation: The driver that may run.
        refused_at: When a release was refused that the app needs, in epoch ms.
        refused: Why it was refused.
        digest: Of the code of the last release; None before the first launch.
        standby: The driver that was launched beside the running one to take the app over from it; it may have ended.
        standby_for: The release for which the running driver asked for a standby.
    """

    name: str
    release_seq: int
    incarnation: str | None
    restarts: int
    refused_at: int | None = None
    refused: str | None = None
    digest: str | None = None
    standby: str | None = None
    standby_for: int | None = None


@dataclass(frozen=True)
class ReleaseRow:
    """A release of an app.

    Attributes:
        digest: Of its code; None if it was requested before the first launch of the app, and not launched yet.
        at: When it was requested, in epoch ms.
    """

    app: str
    number: int
    digest: str | None
    at: int
    actor: str
    source: str
    note: str


@dataclass(frozen=True)
class ReplacementRow:
    """A new version of a stream that is built beside the running one. Times are epoch ms by the database's clock.

    Attributes:
        digest: Of the code of the new version.
        previous: Of the code of the running version.
        why: What it waits for, or why it ended; empty if there is nothing to say.
        options: `from`, epoch ms of the first record that the new version reads, or None; `rate`, records/s that it
            reads at most, or None; `write`: `differing`, `all` or `none` of the rows that the running version wrote
            otherwise are written at the cut; `expect`: None, or `equal` with the columns `except` that may differ;
            `cut`: `auto` or `manual`; `in_place`: whether the running version is stopped first;
            `archive`: whether the archive of its input is read.
        figures: As its driver reported them: `records` of `total` read, `rate` in records/s, `remaining_ms`, `lag` in
            records; rows `compared`, `equal`, `different`, `only_new`, `only_running`, with `examples`; `pause_ms` of
            the output at the cut, or `pause_over_ms` if the output still paused when it was last looked at.
        release_seq: Number of the release that the cut made.
    """

    id: str
    name: str
    app: str
    digest: str
    previous: str
    state: ReplacementState
    why: str
    options: dict[str, Any]
    figures: dict[str, Any]
    actor: str
    requested_at: int
    reported_at: int
    cut_requested_at: int | None
    cut_at: int | None
    ended_at: int | None
    release_seq: int | None

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_REPLACEMENT


@dataclass(frozen=True)
class Fault:
    """Something that does not work, or that needs a person.

    Attributes:
        kind: `app`, `stream`, `capture`, `sink`, `backfill` or `replacement`.
        name: Of the app, stream, ...
        app: To which it belongs; empty for a backfill.
        state: A state of `penstock.monitoring.dashboard.states`, `alarm` for what works and needs a look, or `silent`
            and `failed` of a backfill or replacement.
        reason: What it says.
    """

    kind: str
    name: str
    app: str
    state: str
    reason: str


@dataclass(frozen=True)
class FaultRow(Fault):
    """A fault with its time, in epoch ms by the database's clock; `ended_at` is None while it lasts."""

    since: int
    ended_at: int | None


@dataclass(frozen=True)
class StreamProgress:
    """How far a stream is; times are epoch ms by the database's clock.

    Attributes:
        reported_at: Its last report; 0 if it never reported.
        caught_up_at: All records that its inputs had at that time are processed; None if that is unknown.
        state_rows: Rows of its state; None if it has none or has not run a batch yet.
    """

    desired: Desired
    state: str
    reported_at: int
    caught_up_at: int | None
    state_rows: int | None = None


@dataclass(frozen=True)
class Lease:
    name: str
    holder: str
    epoch: int
    expires_at: int


@dataclass
class ProgressRow:
    """The report of a driver about one stream. Times are epoch ms, rows are counts since the first start.

    Attributes:
        batch_ms: Time of the last batch, from its beginning to its end. Of it, Spark spent `offsets_ms` to ask where
            the inputs end, `planning_ms` on the plan, `processing_ms` to read, compute and write with the transaction
            of the batch, and `checkpoint_ms` on its own logs of offsets and commits.
        store: For a sink, counted since its driver started: `destination`, `dead_letter_topics`, `written`,
            `conflicts`, `retried`, `refused`, `bytes`, `written_per_s`, `retried_per_s`, `waits`, and `answered_at`,
            when the store last took rows.
        expectations: By rule, `action`, `violations` of committed batches since the rule was first declared with this
            action, and `minutes`: violations by minute of the commit, Unix time in minutes, of the last hour.
        KEPT: The figures that go on in the stream's next driver.
    """

    KEPT: ClassVar[tuple[str, ...]] = (
        "rows_in", "rows_out", "late", "dead", "restarts", "watermark", "batch_id", "batch_at", "expectations",
    )  # fmt: skip

    name: str
    app: str
    incarnation: str
    state: str = "starting"
    reported_at: int = 0
    batch_id: int | None = None
    batch_at: int | None = None
    batch_ms: int | None = None
    offsets_ms: int | None = None
    planning_ms: int | None = None
    processing_ms: int | None = None
    checkpoint_ms: int | None = None
    rows_per_s: float = 0.0
    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    dead: int = 0
    watermark: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    lag: int | None = None
    behind_ms: int | None = None
    topics: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    store: dict[str, Any] | None = None
    expectations: dict[str, Any] | None = None
    error: str | None = None
    error_at: int | None = None
