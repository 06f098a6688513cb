"""Partitions that are closed, and whether Airflow has the event of each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

metadata = sa.MetaData()

table = sa.Table(
    "partition_event",
    metadata,
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("partition_key", sa.String(20), primary_key=True),
    sa.Column("revision", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("changed_at", sa.BigInteger, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("run", sa.String(500)),
    sa.Column("reset_id", sa.String(32), nullable=False),
    sa.Index("ix_partition_event_state", "state"),
)


def upgrade() -> None:
    """Create what is missing: MySQL commits each statement, so an upgrade that failed may have left the table."""
    connection = op.get_bind()
    metadata.create_all(connection)
    for index in table.indexes:
        index.create(connection, checkfirst=True)
