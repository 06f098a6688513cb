"""The history of streams by hours, for the days whose reports are deleted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

metadata = sa.MetaData()

table = sa.Table(
    "progress_history_hourly",
    metadata,
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
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
    sa.Index("ix_history_hourly_at", "at"),
)


def upgrade() -> None:
    """Create what is missing: MySQL commits each statement, so an upgrade that failed may have left the table."""
    connection = op.get_bind()
    metadata.create_all(connection)
    for index in table.indexes:
        index.create(connection, checkfirst=True)
