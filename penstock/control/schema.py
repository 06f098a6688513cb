"""The version of the control database's schema, and its upgrade by Alembic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from penstock.control import tables
from penstock.errors import ControlError

VERSION_TABLE = "penstock_alembic_version"
"""Alembic's default name would collide with Airflow's table in the same database."""
LOCK_TIMEOUT = 60
"""Seconds to wait for another process that migrates."""
ADVISORY_LOCK = 0x50656E73746F636B
"""Key of PostgreSQL's advisory lock."""


def _config(**attributes: Any) -> Config:
    config = Config(attributes=attributes)
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    return config


@cache
def head() -> str:
    """The revision that this code needs."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def _known() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def current(connection: Connection) -> str | None:
    """The revision of a database; None before its first migration has ended."""
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def is_own(_: Any, name: str | None, kind: str, __: bool, ___: Any) -> bool:
    """Alembic's `include_object`: whether a table is Penstock's; the database may have other tables."""
    return kind != "table" or name in tables.metadata.tables


def upgrade(engine: Engine) -> None:
    """Upgrade a database to `head()`. If several processes do so at once, the others wait for one of them.

    Raises:
        ControlError: The database has tables of Penstock without a version, so that their columns are unknown, or of
            a version that this code does not know; or another process holds the lock.
    """
    with _locked(engine) as connection:
        found = current(connection)
        if found == head():
            return
        if found is not None and found not in _known():
            raise ControlError(
                "the tables of the control database are of a later version of Penstock",
                got=f"revision {found}; this code has {head()}",
                hint="run the version of Penstock that migrated them, or set PENSTOCK_CONTROL_URL to another database",
            )
        names = set(inspect(connection).get_table_names())
        old = sorted(names & tables.metadata.tables.keys())
        if old and VERSION_TABLE not in names:
            raise ControlError(
                "the tables of the control database have no version",
                got=f"tables {', '.join(old)}, and no table {VERSION_TABLE}",
                hint="set PENSTOCK_CONTROL_URL to an empty database, or drop these tables: `penstock clean`",
            )
        command.upgrade(_config(connection=connection), "head")


@contextmanager
def _locked(engine: Engine) -> Iterator[Connection]:
    """A connection in a transaction that holds a lock against other migrations."""
    with engine.begin() as connection:
        match engine.dialect.name:
            case "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield connection
            case "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
                yield connection
            case _:
                # DDL commits implicitly in MySQL, so a lock of the transaction would be released early.
                lock = {"name": f"{connection.engine.url.database}.{VERSION_TABLE}"[:64], "seconds": LOCK_TIMEOUT}
                if not connection.execute(text("SELECT GET_LOCK(:name, :seconds)"), lock).scalar():
                    raise ControlError(
                        "another process migrates the control database",
                        got=f"no lock within {LOCK_TIMEOUT} s",
                        hint="try again when it has ended",
                    )
                try:
                    yield connection
                finally:
                    connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": lock["name"]})
