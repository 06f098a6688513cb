"""Standbys: the driver of the next release starts beside the running one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create what is missing: MySQL commits each statement, so an upgrade that failed may have left one column."""
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("app")}
    for column in (sa.Column("standby", sa.String(32)), sa.Column("standby_for", sa.Integer)):
        if column.name not in present:
            op.add_column("app", column)
