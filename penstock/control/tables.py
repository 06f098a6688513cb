"""The tables of the control database. All times are epoch milliseconds by the database's clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

metadata = MetaData()

MAX_TEXT = 4000
"""Characters of a text without a length of its own."""


class BoundedText(TypeDecorator[str]):
    """Text from outside, e.g. a message of a server, made valid by `bounded_text`."""

    impl = Text
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:  # noqa: ARG002
        # Not adapted to the dialect: psycopg's String would lose that this is TEXT.
        return String(self.length) if self.length else Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else bounded_text(value, self.length)


def bounded_text(value: str, length: int | None = None) -> str:
    """Cut a text, and remove what databases refuse: NUL (PostgreSQL) and lone surrogates."""
    return value[: length or MAX_TEXT].replace("\0", "").encode(errors="replace").decode()


BigId = BigInteger().with_variant(Integer, "sqlite")


class now_ms(FunctionElement[int]):  # noqa: N801
    """The database's clock, by which processes on several hosts compare times."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms, "sqlite")
def _now_sqlite(*_: Any, **__: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@compiles(now_ms, "mysql")
@compiles(now_ms, "mariadb")
def _now_mysql(*_: Any, **__: Any) -> str:
    return "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"


@compiles(now_ms, "postgresql")
def _now_postgresql(*_: Any, **__: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


def _name(**kwargs: Any) -> Column[str]:
    return Column("name", String(249), **kwargs)  # as of a topic, at most


app = Table(
    "app",
    metadata,
    _name(primary_key=True),
    # The last release; a driver launched under a lower number drains and is replaced.
    Column("release_seq", Integer, nullable=False, default=0),
    # Of the code of the last release; NULL until the first launch.
    Column("digest", String(64)),
    # The driver that may run; changed by compare-and-set, so one of two launches wins.
    Column("incarnation", String(32)),
    Column("restarts", Integer, nullable=False, default=0),
    # When and why a release was refused that the app needs; NULL after the next release or launch.
    Column("refused_at", BigInteger),
    Column("refused", BoundedText),
    Column("absent_since", BigInteger),  # since when it is not declared any more; NULL while it is
    # The driver that was launched beside the running one and takes the app over from it; it may have ended.
    Column("standby", String(32)),
    # The release for which the running driver waits for a standby, or waited.
    Column("standby_for", Integer),
)

release = Table(
    "release",
    metadata,
    Column("app", String(120), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(64)),  # of its code; NULL until its first launch, if it was requested before any
    Column("at", BigInteger, nullable=False),
    Column("actor", BoundedText(200), nullable=False),
    Column("source", String(20), nullable=False),  # as in `action`
    Column("note", BoundedText, nullable=False),
)

# The archive of a snapshot in parts, as a row of MySQL has 64 kB for a BLOB.
code_snapshot = Table(
    "code_snapshot",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
    Column("used_at", BigInteger, nullable=False),  # when it was last stored or released
)

stream = Table(
    "stream",
    metadata,
    _name(primary_key=True),
    Column("app", String(120), nullable=False, index=True),
    Column("desired", String(3), nullable=False),  # on | off
    Column("changed_at", BigInteger),  # when it was declared or removed, or its desired state changed
    Column("absent_since", BigInteger),  # as in `app`
)

driver = Table(
    "driver",
    metadata,
    Column("incarnation", String(32), primary_key=True),
    Column("app", String(120), nullable=False, index=True),
    Column("host", BoundedText(255), nullable=False),
    Column("pid", Integer),  # leader of the driver's session
    Column("pid_started", Double),  # its start time, since a pid can be reused
    Column("release_seq", Integer, nullable=False),
    Column("spec_hash", String(64), nullable=False),  # digest of the code that it runs
    Column("owner", BoundedText(500), nullable=False),  # task instance, or who started it by hand
    Column("state", String(10), nullable=False),  # launching | standby | queued | running | draining | ended
    Column("launched_at", BigInteger, nullable=False),
    Column("alive_at", BigInteger, nullable=False),  # last liveness report
    Column("ended_at", BigInteger),
    Column("reason", BoundedText),  # why it ended, or what it waits for
    Column("end_code", String(10)),  # see rows.EndCode
    Column("log", BoundedText(500), nullable=False),
    Column("master", String(500)),  # of the cluster that runs it
    Column("submission", String(120)),  # the cluster's id of it
)

lease = Table(
    "lease",
    metadata,
    _name(primary_key=True),  # stream or capture
    Column("holder", String(32), nullable=False),  # incarnation
    Column("epoch", BigInteger, nullable=False),  # raised at each change of holder
    Column("expires_at", BigInteger, nullable=False),
)

# See `rows.ProgressRow`.
BATCH_TIMES = ("batch_ms", "offsets_ms", "planning_ms", "processing_ms", "checkpoint_ms")

progress = Table(
    "progress",
    metadata,
    _name(primary_key=True),  # stream
    Column("app", String(120), nullable=False, index=True),
    Column("incarnation", String(32), nullable=False),
    Column("state", String(10), nullable=False),  # see penstock.monitoring.dashboard.states
    Column("reported_at", BigInteger, nullable=False),
    Column("batch_id", BigInteger),
    Column("batch_at", BigInteger),  # when the last batch was committed
    *(Column(name, Integer) for name in BATCH_TIMES),
    Column("rows_per_s", Double, nullable=False, default=0.0),
    Column("rows_in", BigInteger, nullable=False, default=0),  # since the stream was first started
    Column("rows_out", BigInteger, nullable=False, default=0),
    Column("late", BigInteger, nullable=False, default=0),
    Column("dead", BigInteger, nullable=False, default=0),
    Column("watermark", BigInteger),
    Column("state_rows", BigInteger),
    Column("state_bytes", BigInteger),
    Column("lag", BigInteger),
    Column("behind_ms", BigInteger),  # time before the report at which the stream was caught up
    Column("topics", JSON, nullable=False),  # by topic: lag, offsets and open transactions by partition
    Column("restarts", Integer, nullable=False, default=0),
    Column("store", JSON(none_as_null=True)),  # for a sink: see rows.ProgressRow
    Column("expectations", JSON(none_as_null=True)),  # see rows.ProgressRow
    Column("error", Text),
    Column("error_at", BigInteger),
)


def _history_figures() -> list[Column[Any]]:
    return [
        Column("rows_per_s", Double, nullable=False),
        *(Column(name, Integer) for name in BATCH_TIMES),
        Column("batch_age_ms", BigInteger),
        Column("lag", BigInteger),
        Column("watermark_age_ms", BigInteger),
        Column("state_rows", BigInteger),
        Column("state_bytes", BigInteger),
        *(Column(name, BigInteger, nullable=False) for name in ("rows_in", "rows_out", "late", "dead")),
        Column("restarts", Integer, nullable=False),
    ]


history = Table(
    "progress_history",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    _name(nullable=False),
    Column("at", BigInteger, nullable=False),
    *_history_figures(),
    Index("ix_history_name_at", "name", "at"),
    Index("ix_history_at", "at"),
)

# What is left of the history of days ago.
hourly_history = Table(
    "progress_history_hourly",
    metadata,
    _name(primary_key=True),
    Column("at", BigInteger, primary_key=True, autoincrement=False),  # the beginning of the hour
    *_history_figures(),
    Index("ix_history_hourly_at", "at"),
)

fault = Table(
    "fault",
    metadata,
    Column("kind", String(20), primary_key=True),  # see penstock.monitoring.dashboard.faults
    _name(primary_key=True),
    Column("since", BigInteger, primary_key=True, autoincrement=False),
    Column("app", String(120), nullable=False),
    Column("state", String(20), nullable=False),  # its last one
    Column("reason", BoundedText, nullable=False),
    Column("ended_at", BigInteger),  # NULL while it lasts
    Index("ix_fault_ended_at", "ended_at"),
)

action = Table(
    "action",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", BoundedText(200), nullable=False),  # a person, or `supervisor`
    Column("source", String(20), nullable=False),  # cli | airflow | page | supervisor
    Column("verb", String(20), nullable=False),  # start | stop | release | launch | kill | end ...
    Column("target", BoundedText(120), nullable=False),  # stream or app
    Column("detail", BoundedText),
    Column("request", String(32)),  # request id, so that a retry does nothing
    Index("ix_action_at", "at"),
    Index("ix_action_request", "request"),
)

# A new version of a stream that is built beside the running one.
replacement = Table(
    "replacement",
    metadata,
    Column("id", String(32), primary_key=True),
    _name(nullable=False, index=True),  # stream
    Column("app", String(120), nullable=False, index=True),
    Column("digest", String(64), nullable=False),  # of the code of the new version
    Column("previous", String(64), nullable=False),  # of the code of the running version
    Column("state", String(10), nullable=False),  # see rows.ReplacementState
    Column("why", BoundedText, nullable=False),
    Column("options", JSON, nullable=False),  # see rows.ReplacementRow
    Column("figures", JSON, nullable=False),  # see rows.ReplacementRow
    Column("actor", BoundedText(200), nullable=False),
    Column("requested_at", BigInteger, nullable=False),
    Column("reported_at", BigInteger, nullable=False),
    Column("cut_requested_at", BigInteger),
    Column("cut_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("release_seq", Integer),  # of the release that the cut made
)

heartbeat = Table(
    "heartbeat",
    metadata,
    _name(primary_key=True),  # topic
    Column("at", BigInteger, nullable=False),  # time of the last heartbeat
    Column("partitions", Integer, nullable=False),
    Column("sender", BoundedText(255), nullable=False),
)

# Topics whose heartbeats are held because a stream that feeds them is behind.
heartbeat_hold = Table(
    "heartbeat_hold",
    metadata,
    _name(primary_key=True),  # topic
    Column("at", BigInteger),  # heartbeats up to this time may be sent; NULL if none may
    Column("why", BoundedText, nullable=False),
)

data_loss = Table(
    "data_loss",
    metadata,
    Column("id", String(32), primary_key=True),  # digest of the gap, so that each is reported and accepted once
    _name(nullable=False, index=True),  # stream
    Column("topic", String(249), nullable=False),
    Column("kind", String(12), nullable=False),  # see data_loss.DataLossKind
    Column("partition", Integer, nullable=False),  # -1 for the whole topic
    Column("start", BigInteger, nullable=False),  # first offset
    Column("end", BigInteger, nullable=False),  # offset after the last one
    Column("records", BigInteger),  # upper bound of unread records; NULL if unknown
    Column("topic_id", String(40), nullable=False, default=""),
    Column("found_at", BigInteger, nullable=False),
    Column("accepted_at", BigInteger),
    Column("accepted_by", BoundedText(200)),  # a person, or `its declaration`
    Column("passed_at", BigInteger),  # when the stream continued after the gap
)

capture = Table(
    "capture",
    metadata,
    _name(primary_key=True),
    Column("reported_at", BigInteger, nullable=False, default=0),
    Column("phase", String(12), nullable=False, default=""),  # waiting | snapshot | polling | reconciling | refused
    Column("why", Text),  # what it waits for, or why it was refused
    Column("fingerprint", String(16), nullable=False, default=""),
    Column("low", Text),  # cursor value that the next poll reads from
    Column("polls", BigInteger, nullable=False, default=0),
    Column("snapshot_rows", BigInteger, nullable=False, default=0),
    Column("snapshot_total", BigInteger, nullable=False, default=0),
    Column("oldest_at", BigInteger),  # when the oldest transaction open in the captured database began
    Column("skipped_until", BigInteger),  # polls do not wait for transactions that began before this
    Column("reconcile", Text),  # why table and topic are being compared; empty if they are not
    Column("drift", JSON),  # of the last reconcile: missing, differing, extra, rows, ended, why, explained, earlier
    Column("dead_letter_rows", JSON),  # rows without a record in the topic: `rows`, and `first`, the key of one
    Column("requested", String(12)),  # last request: poll | snapshot | reconcile | continue
    Column("request_id", String(32)),
    Column("answered_request_id", String(32)),
    Column("answer", Text),  # empty if the request was done, else why it was not
)

view_instance = Table(
    "view_instance",
    metadata,
    _name(primary_key=True),  # its app
    Column("number", Integer, nullable=False),
    Column("incarnation", String(32), nullable=False),
    Column("url", String(500), nullable=False),
    Column("alive_at", BigInteger, nullable=False),
    Column("partitions", JSON, nullable=False),  # by view: number of partitions, and those that are loaded
    Column("request_metrics", JSON),  # samples of Prometheus: [name, labels, value]
)

backfill_run = Table(
    "backfill_run",
    metadata,
    Column("run", String(500), primary_key=True),  # name, interval and target
    _name(nullable=False),  # backfill
    Column("begin", BigInteger),  # interval of event time
    Column("end", BigInteger),
    Column("target", String(249), nullable=False),
    Column("dry", Boolean, nullable=False),
    Column("state", String(10), nullable=False),  # see backfills.RunState
    Column("why", BoundedText, nullable=False),
    Column("files", BigInteger, nullable=False),
    Column("files_done", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("rows_done", BigInteger, nullable=False),
    Column("rate", Double, nullable=False),
    Column("remaining_ms", BigInteger),
    Column("verified", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("owner", BoundedText(500), nullable=False),
    Column("started_at", BigInteger, nullable=False),  # start of the last attempt
    Column("reported_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Index("ix_backfill_run_reported_at", "reported_at"),
)

# A partition that is closed, once for each time that its content changed.
partition_event = Table(
    "partition_event",
    metadata,
    _name(primary_key=True),  # stream or archive
    Column("partition_key", String(20), primary_key=True),  # its start
    Column("revision", Integer, primary_key=True, autoincrement=False),  # 1 when it is closed first
    Column("state", String(10), nullable=False),  # see partitions.PartitionState
    Column("changed_at", BigInteger, nullable=False),  # when it got this state
    Column("attempts", Integer, nullable=False),  # how often it was given to Airflow
    Column("run", BoundedText(500)),  # Airflow's run that it was given to last
    Column("reset_id", String(32), nullable=False),  # the reset that the content changed by; empty: none
    # Name and URI of each asset that the run emits it for; without a URI those that have it. NULL: none has it.
    Column("assets", JSON(none_as_null=True)),
    Index("ix_partition_event_state", "state"),
)
