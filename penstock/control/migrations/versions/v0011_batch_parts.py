"""The time of a batch by its parts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

TABLES = ("progress", "progress_history", "progress_history_hourly")
COLUMNS = ("offsets_ms", "planning_ms", "processing_ms", "checkpoint_ms")


def upgrade() -> None:
    """Add what is missing: MySQL commits each statement, so an upgrade that failed may have left some columns."""
    inspector = sa.inspect(op.get_bind())
    for table in TABLES:
        present = {column["name"] for column in inspector.get_columns(table)}
        for name in COLUMNS:
            if name not in present:
                op.add_column(table, sa.Column(name, sa.Integer))
