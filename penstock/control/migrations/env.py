"""Alembic's environment: migrates over the connection of `schema.upgrade`, or else of `PENSTOCK_CONTROL_URL`."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from penstock.control import connect, schema, tables


def run(connection: Connection) -> None:
    context.configure(
        connection,
        target_metadata=tables.metadata,
        version_table=schema.VERSION_TABLE,
        include_object=schema.is_own,
    )
    with context.begin_transaction():
        context.run_migrations()


if connection_of_caller := context.config.attributes.get("connection"):
    run(connection_of_caller)
else:
    with connect().engine.connect() as connection:
        run(connection)
