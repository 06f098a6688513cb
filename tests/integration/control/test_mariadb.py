"""The control database on MariaDB: its schema, and what happens to the locks of a process that is paused."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import JSON, text

from penstock.control import Control, connect, schema, tables
from penstock.devstack.servers.mariadb import MariaDB
from penstock.errors import ControlError
from tests.chaos.projects import other_project

pytestmark = pytest.mark.integration


def test_a_paused_transaction_gives_its_lease_up(mariadb: MariaDB) -> None:
    control, successor = Control(mariadb.url), Control(mariadb.url)
    control.migrate()
    control.take_lease("a-paused-one", "paused", 0.001)
    with control.engine.connect() as held:
        held.execute(text("UPDATE lease SET expires_at = expires_at WHERE name = 'a-paused-one'"))
        # Without an end to the other's transaction this fails by its time limit.
        assert successor.take_lease("a-paused-one", "successor", 60).holder == "successor"
        held.invalidate()
    for one in (control, successor):
        one.engine.dispose()


def differs(_: Any, __: Any, ___: Any, ____: Any, declared: Any) -> bool | None:
    """Alembic's `compare_type`: MariaDB keeps JSON as a long text."""
    return False if isinstance(declared, JSON) else None


def test_the_migrations_make_the_declared_tables(mariadb: MariaDB) -> None:
    """Also where several migrate at once, and after a first migration that was cut off."""
    server = Control(mariadb.url)
    with server.engine.begin() as c:
        c.execute(text("DROP DATABASE IF EXISTS penstock_schema"))
        c.execute(text("CREATE DATABASE penstock_schema"))
    url = mariadb.url_of("penstock_schema")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Control(url).migrate(), range(4)))
    control = Control(url)
    with control.begin() as c:
        c.execute(text(f"DELETE FROM {schema.VERSION_TABLE}"))
        c.execute(text("DROP TABLE lease"))
        c.execute(text("DROP INDEX ix_action_request ON action"))
    control.migrate()
    with control.begin() as c:
        options = {"include_object": schema.is_own, "compare_type": differs}
        assert compare_metadata(MigrationContext.configure(c, opts=options), tables.metadata) == []
        c.execute(text("DROP DATABASE penstock_schema"))
    for one in (server, control):
        one.engine.dispose()


def test_the_embedded_server_of_another_home_is_refused(mariadb: MariaDB, tmp_path: Path) -> None:
    """Its apps and streams may have the same names: a release would run this project's code there."""
    link = tmp_path / "link"
    link.symlink_to(mariadb.home)
    port = {"PENSTOCK_MARIADB_PORT": mariadb.port}
    for home in (mariadb.home, link):
        with other_project(tmp_path, {**port, "PENSTOCK_HOME": home}):
            assert connect().now()
    with other_project(tmp_path, {**port, "PENSTOCK_HOME": tmp_path / "home"}):
        for _ in range(2):
            with pytest.raises(ControlError, match=f"another home.* in {re.escape(str(mariadb.folder))}.*_PORT"):
                connect().now()
    with other_project(tmp_path, {"PENSTOCK_CONTROL_URL": mariadb.url, "PENSTOCK_HOME": tmp_path / "home"}):
        assert connect().now()
