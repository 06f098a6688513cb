"""Names as long as those of topics, and of captures and views with what is put before or behind them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

TABLES = (
    "app", "stream", "lease", "progress", "progress_history", "progress_history_hourly", "fault", "replacement",
    "heartbeat", "heartbeat_hold", "data_loss", "capture", "view_instance", "backfill_run", "partition_event",
)  # fmt: skip


def upgrade() -> None:
    """Widen the columns; SQLite, which does not look at the length, copies the tables."""
    for table in TABLES:
        with op.batch_alter_table(table) as columns:
            columns.alter_column("name", existing_type=sa.String(120), type_=sa.String(249), existing_nullable=False)
