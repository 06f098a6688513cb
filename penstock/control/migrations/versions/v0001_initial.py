"""The tables of the first version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
metadata = sa.MetaData()

sa.Table(
    "app",
    metadata,
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("release_seq", sa.Integer, nullable=False, default=0),
    sa.Column("incarnation", sa.String(32)),
    sa.Column("restarts", sa.Integer, nullable=False, default=0),
    sa.Column("refused_at", sa.BigInteger),
    sa.Column("refused", sa.Text),
)
sa.Table(
    "stream",
    metadata,
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("app", sa.String(120), nullable=False, index=True),
    sa.Column("desired", sa.String(3), nullable=False),
    sa.Column("changed_at", sa.BigInteger),
)
sa.Table(
    "driver",
    metadata,
    sa.Column("incarnation", sa.String(32), primary_key=True),
    sa.Column("app", sa.String(120), nullable=False, index=True),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer),
    sa.Column("pid_started", sa.Double),
    sa.Column("release_seq", sa.Integer, nullable=False),
    sa.Column("spec_hash", sa.String(64), nullable=False),
    sa.Column("owner", sa.String(500), nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("launched_at", sa.BigInteger, nullable=False),
    sa.Column("alive_at", sa.BigInteger, nullable=False),
    sa.Column("ended_at", sa.BigInteger),
    sa.Column("reason", sa.Text),
    sa.Column("end_code", sa.String(10)),
    sa.Column("log", sa.String(500), nullable=False),
    sa.Column("master", sa.String(500)),
    sa.Column("submission", sa.String(120)),
)
sa.Table(
    "lease",
    metadata,
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("holder", sa.String(32), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
)
sa.Table(
    "progress",
    metadata,
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("app", sa.String(120), nullable=False, index=True),
    sa.Column("incarnation", sa.String(32), nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("reported_at", sa.BigInteger, nullable=False),
    sa.Column("batch_id", sa.BigInteger),
    sa.Column("batch_at", sa.BigInteger),
    sa.Column("batch_ms", sa.Integer),
    sa.Column("rows_per_s", sa.Double, nullable=False, default=0.0),
    sa.Column("rows_in", sa.BigInteger, nullable=False, default=0),
    sa.Column("rows_out", sa.BigInteger, nullable=False, default=0),
    sa.Column("late", sa.BigInteger, nullable=False, default=0),
    sa.Column("dead", sa.BigInteger, nullable=False, default=0),
    sa.Column("watermark", sa.BigInteger),
    sa.Column("state_rows", sa.BigInteger),
    sa.Column("state_bytes", sa.BigInteger),
    sa.Column("lag", sa.BigInteger),
    sa.Column("behind_ms", sa.BigInteger),
    sa.Column("topics", sa.JSON, nullable=False),
    sa.Column("restarts", sa.Integer, nullable=False, default=0),
    sa.Column("store", sa.JSON),
    sa.Column("error", sa.Text),
    sa.Column("error_at", sa.BigInteger),
)
sa.Table(
    "progress_history",
    metadata,
    sa.Column("id", ID, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String(120), nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("rows_per_s", sa.Double, nullable=False),
    sa.Column("batch_ms", sa.Integer),
    sa.Column("batch_age_ms", sa.BigInteger),
    sa.Column("lag", sa.BigInteger),
    sa.Column("watermark_age_ms", sa.BigInteger),
    sa.Column("state_rows", sa.BigInteger),
    sa.Column("state_bytes", sa.BigInteger),
    sa.Column("rows_in", sa.BigInteger, nullable=False),
    sa.Column("rows_out", sa.BigInteger, nullable=False),
    sa.Column("late", sa.BigInteger, nullable=False),
    sa.Column("dead", sa.BigInteger, nullable=False),
    sa.Column("restarts", sa.Integer, nullable=False),
    sa.Index("ix_history_name_at", "name", "at"),
    sa.Index("ix_history_at", "at"),
)
sa.Table(
    "action",
    metadata,
    sa.Column("id", ID, primary_key=True, autoincrement=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.String(200), nullable=False),
    sa.Column("source", sa.String(20), nullable=False),
    sa.Column("verb", sa.String(20), nullable=False),
    sa.Column("target", sa.String(120), nullable=False),
    sa.Column("detail", sa.Text),
    sa.Column("request", sa.String(32)),
    sa.Index("ix_action_at", "at"),
    sa.Index("ix_action_request", "request"),
)
sa.Table(
    "heartbeat",
    metadata,
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("partitions", sa.Integer, nullable=False),
    sa.Column("sender", sa.String(255), nullable=False),
)
sa.Table(
    "heartbeat_hold",
    metadata,
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("at", sa.BigInteger),
    sa.Column("why", sa.Text, nullable=False),
)
sa.Table(
    "data_loss",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(120), nullable=False, index=True),
    sa.Column("topic", sa.String(249), nullable=False),
    sa.Column("kind", sa.String(12), nullable=False),
    sa.Column("partition", sa.Integer, nullable=False),
    sa.Column("start", sa.BigInteger, nullable=False),
    sa.Column("end", sa.BigInteger, nullable=False),
    sa.Column("records", sa.BigInteger),
    sa.Column("topic_id", sa.String(40), nullable=False, default=""),
    sa.Column("found_at", sa.BigInteger, nullable=False),
    sa.Column("accepted_at", sa.BigInteger),
    sa.Column("accepted_by", sa.String(200)),
    sa.Column("passed_at", sa.BigInteger),
)
sa.Table(
    "capture",
    metadata,
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("reported_at", sa.BigInteger, nullable=False, default=0),
    sa.Column("phase", sa.String(12), nullable=False, default=""),
    sa.Column("why", sa.Text),
    sa.Column("fingerprint", sa.String(16), nullable=False, default=""),
    sa.Column("low", sa.Text),
    sa.Column("polls", sa.BigInteger, nullable=False, default=0),
    sa.Column("snapshot_rows", sa.BigInteger, nullable=False, default=0),
    sa.Column("snapshot_total", sa.BigInteger, nullable=False, default=0),
    sa.Column("oldest_at", sa.BigInteger),
    sa.Column("skipped_until", sa.BigInteger),
    sa.Column("reconcile", sa.Text),
    sa.Column("drift", sa.JSON),
    sa.Column("dead_letter_rows", sa.JSON),
    sa.Column("requested", sa.String(12)),
    sa.Column("request_id", sa.String(32)),
    sa.Column("answered_request_id", sa.String(32)),
    sa.Column("answer", sa.Text),
)
sa.Table(
    "view_instance",
    metadata,
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("incarnation", sa.String(32), nullable=False),
    sa.Column("url", sa.String(500), nullable=False),
    sa.Column("alive_at", sa.BigInteger, nullable=False),
    sa.Column("partitions", sa.JSON, nullable=False),
    sa.Column("request_metrics", sa.JSON),
)
sa.Table(
    "backfill_run",
    metadata,
    sa.Column("run", sa.String(500), primary_key=True),
    sa.Column("name", sa.String(120), nullable=False),
    sa.Column("begin", sa.BigInteger),
    sa.Column("end", sa.BigInteger),
    sa.Column("target", sa.String(249), nullable=False),
    sa.Column("dry", sa.Boolean, nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("files", sa.BigInteger, nullable=False),
    sa.Column("files_done", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("rows_done", sa.BigInteger, nullable=False),
    sa.Column("rate", sa.Double, nullable=False),
    sa.Column("remaining_ms", sa.BigInteger),
    sa.Column("verified", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("owner", sa.String(500), nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("reported_at", sa.BigInteger, nullable=False),
    sa.Column("ended_at", sa.BigInteger),
    sa.Index("ix_backfill_run_reported_at", "reported_at"),
)


def upgrade() -> None:
    """Create what is missing: MySQL commits each statement, so an upgrade that failed leaves some of the tables."""
    connection = op.get_bind()
    metadata.create_all(connection)
    for table in metadata.sorted_tables:
        for index in table.indexes:
            index.create(connection, checkfirst=True)
