"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.parts import Broker, MariaDB
from tests.captures import Source
from tests.postgres import Postgres


@pytest.fixture
def source(
    request: pytest.FixtureRequest, mariadb: MariaDB, broker: Broker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Source]:
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", mariadb.url_of("demo"))
    made = Source(request.node.name.split("[")[0][:60], mariadb, broker, home)
    yield made
    for poller in made.pollers:
        poller.close()
    for connection in made.connections:
        connection.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL server."""
    with Postgres() as part:
        yield part
