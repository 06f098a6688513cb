"""Fixtures of the integration tests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from penstock.devstack import new_project
from penstock.devstack.demo_database import DemoDatabase
from penstock.devstack.servers.elasticsearch import ElasticsearchServer
from penstock.devstack.servers.influxdb import InfluxDBServer
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.devstack.servers.s3 import S3Server
from penstock.host.ports import free_port
from penstock.settings import PROJECT, settings
from tests.support import influxdb, mongodb, s3_store
from tests.support.caches import clear_caches, unload_jobs
from tests.support.captures import Source
from tests.support.certificates import Authority
from tests.support.elasticsearch import SMALL, Server
from tests.support.guarded_broker import Guarded, guarded_broker
from tests.support.postgres import Postgres
from tests.support.schema_registry import close_clients


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of a broker and of its clients."""
    return Authority(tmp_path_factory.mktemp("ca"), "right")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Guarded]:
    """A real Kafka broker with TLS and logins."""
    with guarded_broker(tmp_path_factory.mktemp("guarded"), authority) as part:
        yield part


@pytest.fixture
def source(
    request: pytest.FixtureRequest, mariadb: MariaDB, broker: Broker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Source]:
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", mariadb.url_of("demo"))
    made = Source("_".join(re.findall(r"\w+", request.node.name))[:60], mariadb, broker, home)
    yield made
    for poller in made.pollers:
        poller.close()
    for connection in made.connections:
        connection.close()


@pytest.fixture
def demo(mariadb: MariaDB, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DemoDatabase]:  # noqa: ARG001
    """The demo database as its files make it, and the connection by which captures find it."""
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", mariadb.url_of("demo"))
    made = DemoDatabase(mariadb.url_of("demo"), PROJECT / "sql" / "tables")
    made.create()
    yield made
    with made._engine.begin() as c:
        for name in made.tables:
            c.exec_driver_sql(f"DROP TABLE {name}")
    made._engine.dispose()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL server."""
    with Postgres() as part:
        yield part


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real object store. Each file has a bucket or prefix of its own there."""
    with s3_store.server(tmp_path_factory.mktemp("s3 Büro")) as part:
        yield part


@pytest.fixture(scope="session")
def mongodb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a MongoDB server. Each test has a database of its own there."""
    with mongodb.store(tmp_path_factory.mktemp("mongodb Büro")) as url:
        yield url


@pytest.fixture(scope="session")
def influxdb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InfluxDBServer]:
    """A real InfluxDB. Each test has a database of its own there."""
    with influxdb.server(tmp_path_factory.mktemp("influxdb Büro")) as part:
        yield part


@pytest.fixture(scope="session")
def search(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Elasticsearch: one that TEST_ELASTICSEARCH_URL names, else one started here."""
    if url := os.environ.get("TEST_ELASTICSEARCH_URL"):
        yield Server(url)
        return
    with ElasticsearchServer(tmp_path_factory.mktemp("elasticsearch Büro"), port=free_port(2), config=SMALL) as part:
        yield Server(part.url, part)


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistryServer]:
    """A real schema registry. Each test has subjects of its own there."""
    with SchemaRegistryServer(tmp_path_factory.mktemp("registry Büro"), port=free_port()) as part:
        yield part


@pytest.fixture
def registry(schema_registry: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistryClient]:
    """Confluent's client of the registry, which is that of this process's settings."""
    monkeypatch.setenv("PENSTOCK_SCHEMA_REGISTRY_URL", schema_registry.url)
    settings.cache_clear()
    with closing(SchemaRegistryClient({"url": schema_registry.url})) as client:
        yield client
    close_clients()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new project, as the one that this process works on."""
    new_project.create(tmp_path / "shop")
    monkeypatch.setenv("PENSTOCK_PROJECT", str(tmp_path / "shop"))
    monkeypatch.syspath_prepend(str(tmp_path / "shop"))
    clear_caches()
    unload_jobs()
    yield tmp_path / "shop"
    unload_jobs()
    monkeypatch.undo()
    clear_caches()
