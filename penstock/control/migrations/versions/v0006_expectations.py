"""The violations of a stream's expectations, in its progress."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create what is missing: MySQL commits each statement, so an upgrade that failed may have left the column."""
    if "expectations" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("progress")}:
        op.add_column("progress", sa.Column("expectations", sa.JSON))
