"""How a capture reaches its database, and what it says where it does not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import make_url

from penstock.capture.source import connections
from penstock.capture.source.base import SourceError
from penstock.capture.source.mysql import MySQL
from penstock.errors import DeclarationError
from penstock.host.ports import free_port

DELAY = timedelta(seconds=5)


@pytest.mark.parametrize(
    ("given", "dialect", "url"),
    [
        ("mysql://u:p%40ss@h:3306/shop", "mysql", "mysql+pymysql://u:p%40ss@h:3306/shop"),
        ("postgres://u@h/shop", "postgres", "postgresql+psycopg://u@h/shop"),
        ("sqlite:////data/x.db", "sqlite", "sqlite:////data/x.db"),
        ('{"conn_type": "mysql", "host": "h", "login": "u", "password": "p@", "port": 1, "schema": "s"}', "mysql",
         "mysql+pymysql://u:p%40@h:1/s"),
    ],
)  # fmt: skip
def test_a_connection_as_airflow_gives_it(given: str, dialect: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_SHOP", given)
    assert connections.url("my-shop", dialect).render_as_string(hide_password=False) == url


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "connection shop is missing.*AIRFLOW_CONN_SHOP='mysql://"),
        ("{secret", "connection shop cannot be read"),
        ("mysql://u:p@secret@h/s", "connection shop cannot be read.*%40 for @"),
        ("postgres://u:secret@h/s", "connection shop is of another engine; got: postgres"),
    ],
)
def test_a_connection_that_does_not_serve(given: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", given)
    with pytest.raises(DeclarationError, match=message) as found:
        connections.url("shop", "mysql")
    assert "secret" not in str(found.value)


@pytest.mark.processes
def test_a_database_that_is_away_says_where_it_should_be() -> None:
    database = MySQL(make_url(f"mysql+pymysql://u:secret@127.0.0.1:{free_port()}/x"), DELAY)
    with pytest.raises(SourceError, match=r"cannot be connected to; .*127\.0\.0\.1.*its connection") as found:
        database.clock()
    assert "secret" not in str(found.value)
