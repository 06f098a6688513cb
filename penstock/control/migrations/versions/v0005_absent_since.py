"""Since when an app or a stream is not declared any more."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create what is missing: MySQL commits each statement, so an upgrade that failed may have left one column."""
    for table in ("app", "stream"):
        if "absent_since" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}:
            op.add_column(table, sa.Column("absent_since", sa.BigInteger))
