"""The assets of a partition's event, as Airflow got them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create what is missing: MySQL commits each statement, so an upgrade that failed may have left the column."""
    if "assets" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("partition_event")}:
        op.add_column("partition_event", sa.Column("assets", sa.JSON))
