"""A control database of these tests' own on MariaDB and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import make_url, text

from penstock.control import Control


@pytest.fixture(scope="package", params=["mariadb", "postgres"])
def own_control(request: pytest.FixtureRequest) -> Iterator[Control]:
    """Each test has apps of other names in it."""
    running: Any = request.getfixturevalue(request.param)
    server = Control(running.url.replace("postgresql://", "postgresql+psycopg://"))
    with server.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE DATABASE penstock_of_tests"))
    own = make_url(server.engine.url).set(database="penstock_of_tests")
    control = Control(own.render_as_string(hide_password=False))
    control.migrate()
    yield control
    control.engine.dispose()
    with server.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("DROP DATABASE penstock_of_tests"))
    server.engine.dispose()
