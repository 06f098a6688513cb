"""The button Test of Airflow's form of a Connection, with right and wrong credentials, against real servers."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.devstack.servers.influxdb import CONFIG, InfluxDBServer
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.devstack.servers.s3 import S3Server
from penstock.host.ports import free_port
from penstock.object_store.endpoint import ACCESS_KEY
from penstock.registry.endpoint import API
from penstock.views.api.request_metrics import RequestMetrics
from penstock.views.api.routes import create_app
from penstock.views.api.server import ViewsServer
from tests.support.certificates import Authority
from tests.support.elasticsearch import Server
from tests.support.guarded_broker import PASSWORD, USER, Guarded
from tests.support.http_client import HTTP
from tests.support.postgres import Postgres
from tests.support.view_api import Doors

pytestmark = [pytest.mark.integration, pytest.mark.long]

# No button may hang longer: Airflow's API server waits for it.
TIMEOUT = 20.0


@pytest.fixture(scope="module", autouse=True)
def _airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as m:
        m.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
        yield


def press(conn_type: str, **fields: Any) -> tuple[bool, str]:
    """What the button says: the Connection is in the environment under an id of its own, as Airflow's route puts it."""
    from airflow.models.connection import Connection

    extra = fields.pop("extra", None)
    connection = Connection(
        conn_id="aBcDeF", conn_type=conn_type, extra=json.dumps(extra) if extra is not None else None, **fields
    )
    with pytest.MonkeyPatch.context() as m, warnings.catch_warnings():
        # Of Airflow, about Airflow.
        warnings.filterwarnings("ignore", r"ProvidersManager\.hooks is deprecated")
        m.setitem(os.environ, "AIRFLOW_CONN_ABCDEF", connection.get_uri())
        began = time.monotonic()
        status, message = connection.test_connection()  # type: ignore[no-untyped-call]
    assert time.monotonic() - began < TIMEOUT, message
    assert "aBcDeF" not in message
    assert "hidden" not in message
    return status, message


def refused(result: tuple[bool, str], *texts: str) -> None:
    status, message = result
    assert not status, message
    for text in texts:
        assert text in message
    assert "hint: " in message


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_kafka(guarded: Guarded, authority: Authority, tmp_path: Path) -> None:
    def press_kafka(password: str = PASSWORD, host: str = guarded.outside, **extra: str) -> tuple[bool, str]:
        options = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.ca), **extra}
        return press("penstock_kafka", host=host, login=USER, password=password, extra=options)

    status, message = press_kafka()
    assert status, message
    assert message.startswith("1 brokers of cluster ")
    refused(press_kafka("hidden too"), "the broker refused Penstock's login", "its login, password and sasl.mechanism")
    wrong = str(Authority(tmp_path, "wrong").ca)
    refused(press_kafka(**{"ssl.ca.location": wrong}), "no TLS connection to the broker", "ssl.ca.location")
    refused(press_kafka(host=f"127.0.0.1:{free_port()}"), "did not answer", "Connection refused", "check that they run")
    refused(press_kafka(**{"security.protocol": "SASL"}), "cannot be used: security.protocol: Input should be")


def test_databases(mariadb: MariaDB, postgres: Postgres, tmp_path: Path) -> None:
    right = {"host": "127.0.0.1", "port": mariadb.port, "login": "penstock", "password": "penstock"}
    status, message = press("penstock_database", **right, schema="demo", extra={"dialect": "mysql"})
    assert status, message
    assert message.startswith("mysql 1")
    wrong = right | {"password": "hidden"}
    refused(press("penstock_database", **wrong, extra={"dialect": "mysql"}), "Access denied", "login and password")
    refused(
        press("penstock_database", **right, schema="none", extra={"dialect": "mysql"}),
        "Access denied",
        "'none'",
        "check the connection's schema",
    )
    refused(press("penstock_database", **right), "connection names no dialect; got: type penstock_database")
    refused(
        press("penstock_database", **right, extra={"dialect": "mysql", "colour": "x"}), "'colour'", "connection's extra"
    )
    with silent_port() as port:
        refused(press("penstock_database", **{**right, "port": port}, extra={"dialect": "mysql"}), "host, port")

    place = urlsplit(postgres.url)
    login = {"host": place.hostname, "port": place.port, "login": "postgres", "extra": {"dialect": "postgres"}}
    status, message = press("penstock_database", **login, schema="postgres")
    assert (status, message) == (True, "postgresql 17.6, database postgres")
    refused(
        press("penstock_database", **login, schema="none"),
        'database "none" does not exist',
        "check the connection's schema",
    )
    refused(
        press("penstock_database", **login | {"login": "nobody"}, password="hidden"), '"nobody" does not exist', "login"
    )

    file = tmp_path / "x.db"
    refused(press("penstock_database", host=str(file), extra={"dialect": "sqlite"}), "there is no such file")
    assert not file.exists()
    file.touch()
    status, message = press("penstock_database", host=str(file), extra={"dialect": "sqlite"})
    assert status, message


def test_elasticsearch(search: Server) -> None:
    """The embedded one asks for no login."""
    place = urlsplit(search.url)
    status, message = press("penstock_elasticsearch", host=place.hostname, port=place.port)
    assert status, message
    assert message.startswith("Elasticsearch 9.")
    refused(press("penstock_elasticsearch", host="127.0.0.1", port=free_port(), password="hidden"), "does not answer")
    refused(press("penstock_elasticsearch", port=9200), "connection has no host")
    tls = {"host": place.hostname, "port": place.port, "schema": "https"}
    refused(press("penstock_elasticsearch", **tls), "does not use TLS", "write http instead of https")
    with silent_port() as port:
        refused(press("penstock_elasticsearch", host="127.0.0.1", port=port), "Elasticsearch does not answer")


def test_mongodb(mongodb_url: str) -> None:
    """The embedded one asks for no login."""
    place = urlsplit(mongodb_url)
    status, message = press(
        "penstock_mongodb", host=place.hostname, port=place.port, login=place.username, password=place.password,
        schema=place.path.strip("/"), extra={"srv": None, "ssl": False},
    )  # fmt: skip
    assert status, message
    assert message.startswith("MongoDB ")
    refused(press("penstock_mongodb", host="127.0.0.1", port=free_port(), login="u", password="hidden"), "not answer")
    refused(
        press("penstock_mongodb", host="none.invalid", extra={"srv": True}), "DNS", "connection's host, and its extra"
    )


class GuardedInfluxDB(InfluxDBServer):
    """An InfluxDB that asks for a login."""

    def prepare(self) -> None:
        super().prepare()
        config = CONFIG.format(folder=self.folder, http=self.port, rpc=self.port + 1)
        text = config.replace("[http]", "[http]\n  auth-enabled = true\n  ping-auth-enabled = false")
        (self.folder / "influxdb.conf").write_text(text)


def test_influxdb(influxdb_server: InfluxDBServer, tmp_path: Path) -> None:
    assert influxdb_server.running(), "where it cannot be had, the test is skipped"
    with GuardedInfluxDB(tmp_path, port=free_port(2)) as server:
        create = "CREATE USER penstock WITH PASSWORD 'mill' WITH ALL PRIVILEGES"
        HTTP.post(f"{server.url}/query", params={"q": create}).raise_for_status()
        place: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "login": "penstock"}
        status, message = press("penstock_influxdb", **place, password="mill")
        assert status, message
        assert message.startswith("InfluxDB 1.")
        refused(press("penstock_influxdb", **place, password="hidden"), "refuses the login; got: status 401")
        refused(press("penstock_influxdb", host="127.0.0.1", port=free_port()), "the server does not answer")
        other = {"host": "127.0.0.1", "port": free_port()}
        refused(press("penstock_influxdb", **other, schema="https"), "the server does not answer")


def test_a_schema_registry(schema_registry: SchemaRegistryServer) -> None:
    """The embedded one asks for no login."""
    place = {"host": "127.0.0.1", "port": schema_registry.port, "login": "u", "password": "hidden"}
    status, message = press("penstock_schema_registry", **place, schema=API)
    assert status, message
    assert message.endswith(" subjects visible")
    refused(press("penstock_schema_registry", **place, schema="apis/none"), "got: status 404", "check the path")
    away = place | {"port": free_port()}
    refused(press("penstock_schema_registry", **away), "the schema registry does not answer")
    refused(press("penstock_schema_registry", port=8081), "connection has no host")
    with silent_port() as port:
        refused(press("penstock_schema_registry", host="127.0.0.1", port=port), "does not answer", "Timeout")


def test_an_object_store(object_store: S3Server) -> None:
    extra = {"endpoint_url": object_store.url, "region_name": None}
    status, message = press("penstock_s3", login=ACCESS_KEY, password=object_store.secret_key, extra=extra)
    assert status, message
    assert message.endswith(" buckets visible")
    refused(press("penstock_s3", login=ACCESS_KEY, password="hidden", extra=extra), "refuses the key", "its secret")
    refused(press("penstock_s3", login="nobody", password="hidden", extra=extra), "refuses the key", "the access key")
    away = {"endpoint_url": f"http://127.0.0.1:{free_port()}"}
    refused(press("penstock_s3", login="K", password="hidden", extra=away), "does not answer", "check endpoint_url")
    refused(press("penstock_s3", login="K", extra=extra), "connection has half of a key")


def test_the_views(tmp_path: Path) -> None:
    instance = Doors(tmp_path, token="mill")
    port = free_port()
    app, metrics = create_app(instance.service, "mill"), RequestMetrics([])
    server = ViewsServer(app, "127.0.0.1", port, "mill", metrics)
    server.start()
    try:
        status, message = press("penstock_views", host="127.0.0.1", port=port, password="mill")
        assert (status, message) == (True, f"1 views are served at 127.0.0.1:{port}")
        with pytest.MonkeyPatch.context() as m:
            from penstock.settings import settings

            m.setenv("PENSTOCK_VIEWS_PORT", str(port))
            settings.cache_clear()
            assert press("penstock_views", password="mill")[0], "without a host, where the settings say"
        settings.cache_clear()
        refused(press("penstock_views", host="127.0.0.1", port=port, password="hidden"), "status 401", "password")
        refused(press("penstock_views", host="127.0.0.1", port=port), "connection has no password")
    finally:
        server.stop()
        for pool in instance.pools:
            pool.close()


def test_a_webhook() -> None:
    posted: list[Any] = []

    class Channel(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if self.path == "/right" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    server = ThreadingHTTPServer(("127.0.0.1", 0), Channel)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        status, message = press("penstock_webhook", password=f"{url}/right")
        assert (status, message) == (True, f"a test message was posted to 127.0.0.1:{server.server_port}")
        assert "a test of Penstock's alerts" in posted[0]["text"]
        refused(press("penstock_webhook", password=f"{url}/hidden"), "refuses the request; got: status 404")
        refused(press("penstock_webhook", password="hidden"), "connection has no URL")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    refused(press("penstock_webhook", password=f"{url}/hidden"), "the server does not answer")
