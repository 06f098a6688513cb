"""Rows of the control database as callers see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.host.session import ProcessSession

Desired = Literal["on", "off"]
# How a driver ended: it left for a release, because none of its streams is wanted, or because somebody asked it to by
# Penstock; it got a signal from elsewhere; its JVM ran out of memory; it failed; its process was found gone or was
# killed as hung; it never began.
EndCode = Literal["released", "unwanted", "asked", "signal", "memory", "failed", "lost", "not begun"]


@dataclass(frozen=True)
class Actor:
    """Who acts, and from where: `cli`, `airflow`, `page` or `supervisor`."""

    name: str
    source: str


@dataclass(frozen=True)
class DriverRow:
    """A driver.

    Attributes:
        host: `penstock.host.session.host()` of its processes.
        pid: Leader of its session; None before it is recorded.
        pid_started: Start of the leader, in seconds since boot.
        owner: The task instance that answers for it, or who started it by hand.
        alive_at: Its last liveness report.
        reason: Why it ended, or what it waits for.
        master: Of one that a cluster runs, the cluster's master.
        submission: What that master calls it.
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
        """Its processes, where it is one of a host."""
        return ProcessSession(self.host, self.pid, self.pid_started)

    @property
    def named(self) -> str:
        """Its name for people: of its cluster, or its pid."""
        return self.submission or f"pid {self.pid}"


@dataclass(frozen=True)
class AppRow:
    """An app.

    Attributes:
        release_seq: Raised by every release; a driver launched under a lower one drains.
        incarnation: The driver that may run.
        refused_at: When a release was refused that its driver needs, epoch ms.
        refused: Why.
    """

    name: str
    release_seq: int
    incarnation: str | None
    restarts: int
    refused_at: int | None = None
    refused: str | None = None


@dataclass(frozen=True)
class StreamProgress:
    """How far a stream is; times are epoch ms by the database's clock.

    Attributes:
        reported_at: 0 if it never reported.
        caught_up_at: All that its inputs held at that time is read and written; None if that is not known.
    """

    desired: Desired
    state: str
    reported_at: int
    caught_up_at: int | None


@dataclass(frozen=True)
class Lease:
    name: str
    holder: str
    epoch: int
    expires_at: int


@dataclass
class ProgressRow:
    """What a driver reports of one stream; times are epoch ms, rows are counts since the first start.

    store: of a sink, since its driver began: `destination`, `dead_letter_topics`, the counts of its
    writer (`written`, `conflicts`, `retried`, `refused`, `bytes`), `written_per_s`, `retried_per_s`, `waits` and
    `answered_at`, when the store last took rows.
    """

    name: str
    app: str
    incarnation: str
    state: str = "starting"
    reported_at: int = 0
    batch_id: int | None = None
    batch_at: int | None = None
    batch_ms: int | None = None
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
    error: str | None = None
    error_at: int | None = None
