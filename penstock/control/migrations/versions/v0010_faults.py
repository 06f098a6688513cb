"""Faults: what failed, since when, and until when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

metadata = sa.MetaData()

table = sa.Table(
    "fault",
    metadata,
    sa.Column("kind", sa.String(20), primary_key=True),
    sa.Column("name", sa.String(120), primary_key=True),
    sa.Column("since", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("app", sa.String(120), nullable=False),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("ended_at", sa.BigInteger),
    sa.Index("ix_fault_ended_at", "ended_at"),
)


def upgrade() -> None:
    """Create what is missing: MySQL commits each statement, so an upgrade that failed may have left the table."""
    connection = op.get_bind()
    metadata.create_all(connection)
    for index in table.indexes:
        index.create(connection, checkfirst=True)
