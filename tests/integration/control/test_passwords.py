"""Passwords with characters beyond Latin-1, at the servers that speak MySQL's protocol."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest
from sqlalchemy import make_url

from penstock.airflow.connection_probes import probe_database
from penstock.capture.source.mysql import MySQL
from penstock.control import Control
from penstock.devstack.servers.mariadb import MariaDB
from penstock.errors import ControlError
from penstock.settings.connections import AirflowConnection
from tests.support.mysql import PASSWORD

pytestmark = pytest.mark.integration


# MariaDB logs in by `mysql_native_password`, MySQL by `caching_sha2_password`.
@pytest.mark.parametrize("name", ["mariadb", "mysql_server"])
def test_the_control_database_captures_and_the_test_button_log_in(name: str, request: pytest.FixtureRequest) -> None:
    server: MariaDB = request.getfixturevalue(name)
    url = make_url(server.url).set(username="umlaut", password=PASSWORD)
    control = Control(url.render_as_string(hide_password=False))
    assert control.now()
    control.engine.dispose()
    with closing(MySQL(url, timedelta(seconds=5))) as source:
        assert source.server()
    connection = AirflowConnection("shop", "mysql", "127.0.0.1", server.port, "umlaut", PASSWORD, "penstock_control")
    assert probe_database(connection).startswith("mysql ")


def test_a_wrong_password_is_refused_by_the_server(mariadb: MariaDB) -> None:
    url = make_url(mariadb.url).set(username="umlaut", password="Größe, Мир: €")
    with pytest.raises(ControlError, match=r"Access denied.* login and password of PENSTOCK_CONTROL_URL"):
        Control(url.render_as_string(hide_password=False)).now()
