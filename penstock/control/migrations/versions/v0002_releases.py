"""Releases with the snapshot of their code."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

metadata = sa.MetaData()

sa.Table(
    "release",
    metadata,
    sa.Column("app", sa.String(120), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.String(64)),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.String(200), nullable=False),
    sa.Column("source", sa.String(20), nullable=False),
    sa.Column("note", sa.Text, nullable=False),
)
sa.Table(
    "code_snapshot",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("used_at", sa.BigInteger, nullable=False),
)


def upgrade() -> None:
    """Create what is missing: MySQL commits each statement, so an upgrade that failed leaves some of it."""
    connection = op.get_bind()
    metadata.create_all(connection)
    if "digest" not in {column["name"] for column in sa.inspect(connection).get_columns("app")}:
        op.add_column("app", sa.Column("digest", sa.String(64)))
