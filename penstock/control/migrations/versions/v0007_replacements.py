"""Replacements: new versions of streams that are built beside the running ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

metadata = sa.MetaData()

table = sa.Table(
    "replacement",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(120), nullable=False, index=True),
    sa.Column("app", sa.String(120), nullable=False, index=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("options", sa.JSON, nullable=False),
    sa.Column("figures", sa.JSON, nullable=False),
    sa.Column("actor", sa.String(200), nullable=False),
    sa.Column("requested_at", sa.BigInteger, nullable=False),
    sa.Column("reported_at", sa.BigInteger, nullable=False),
    sa.Column("cut_requested_at", sa.BigInteger),
    sa.Column("cut_at", sa.BigInteger),
    sa.Column("ended_at", sa.BigInteger),
    sa.Column("release_seq", sa.Integer),
)


def upgrade() -> None:
    """Create what is missing: MySQL commits each statement, so an upgrade that failed may have left the table."""
    connection = op.get_bind()
    metadata.create_all(connection)
    for index in table.indexes:
        index.create(connection, checkfirst=True)
