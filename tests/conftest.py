"""Fixtures shared by all layers: a home of its own per test, and real servers, started once per run when asked for."""

from __future__ import annotations

import os
import shlex
import ssl
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import certifi
import pytest
from pymysql.connections import Connection
from pyspark.sql import SparkSession
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from penstock.control import Control, connect
from penstock.devstack.servers.elasticsearch import ElasticsearchServer
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.engine.session import JAVA_OPTIONS
from penstock.errors import HostError
from penstock.host import ports
from penstock.host.ports import free_port
from penstock.java import runtime
from penstock.settings import PROJECT, connections, settings
from penstock.testing import spark_session
from penstock.testing.plugin import QUICK, WAYS, CaseItem
from penstock.testing.topics import delete_all
from tests.support import mysql
from tests.support.control_tables import create_tables
from tests.support.mysql import MariaDBWithLogin, MySQL
from tests.support.stream_cases import MAX_QUICK_STEPS

BROWSER = "tests/browser/"
# The workers that start a server, by the fixture whose name the text of a file has; tests of a file without one of
# these run in the others.
SERVER_WORKERS = {
    "spark: SparkSession": {0, 1}, "search: ": {0}, "schema_registry: ": {1}, "mysql_server": {2}, "postgres: ": {3},
}  # fmt: skip


class ByServers(LoadFileScheduling):  # type: ignore[misc]  # its module is not typed
    """Runs the tests of a file in one worker, so that they share servers, and files that use a server in few workers.

    A Spark session that is warm runs a query at a fraction of the CPU of a new one. The browser's tests share one
    Airflow and are one unit. A worker that has nothing else to do takes any file.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return BROWSER if file.startswith(BROWSER) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        worker = self.nodes.index(node)
        for scope in self.workqueue:
            if worker in _workers(scope):
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)


@cache
def _workers(scope: str) -> set[int]:
    path = PROJECT / scope
    text = "spark: SparkSession" if path.suffix == ".yaml" else path.read_text() if path.is_file() else ""
    wanted = [workers for fixture, workers in SERVER_WORKERS.items() if fixture in text]
    return set.intersection(*wanted) or wanted[0] if wanted else {2, 3}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByServers:
    return ByServers(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, CaseItem) and item.step_count > MAX_QUICK_STEPS and any(map(item.get_closest_marker, WAYS)):
        item.add_marker("long")


@pytest.fixture(scope="session", autouse=True)
def _session_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test may touch the data of a platform that runs on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_HOME", str(tmp_path_factory.mktemp("home")))
        settings.cache_clear()
        yield
    settings.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def _quick_jvms() -> Iterator[None]:
    """JVMs of tests live for minutes: what the second compiler makes of their code they would not live to use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_JAVA_OPTIONS", shlex.join([*JAVA_OPTIONS, *QUICK]))
        for part in (Broker, ElasticsearchServer):
            patch.setattr(part, "java_options", (*part.java_options, *QUICK))
        settings.cache_clear()
        yield
    settings.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def _shared_tls_contexts() -> Iterator[None]:
    """To load all authorities takes 23 ms: httpx does it for each client, PyMySQL for each connection, to a server
    without TLS, too. Contexts with options are not shared. Tested with PyMySQL 1.2.4, whose private name this is."""
    create, create_preferred = ssl.create_default_context, Connection._create_ssl_ctx  # type: ignore[attr-defined]

    @cache
    def preferred() -> ssl.SSLContext:
        context: ssl.SSLContext = create_preferred(Connection(defer_connect=True, ssl_disabled=True), {})
        return context

    @cache
    def certified() -> ssl.SSLContext:
        return create(cafile=certifi.where())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_create_ssl_ctx", lambda self, to: create_preferred(self, to) if to else preferred())
        patch.setattr(ssl, "create_default_context", lambda *args, **options: (
            certified() if not args and options == {"cafile": certifi.where()} else create(*args, **options)
        ))  # fmt: skip
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_ports() -> Iterator[None]:
    """Of workers that run beside each other none takes a port that is free but spoken for by another."""
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{what}", "") for what in ("", "_COUNT"))
    size = len(ports.PORTS) // int(count or 1)
    first = ports.PORTS.start + size * int(worker.removeprefix("gw") or 0)
    with pytest.MonkeyPatch.context() as patch:
        # Not to the end: who asks for several in a row gets some behind the first.
        patch.setattr(ports, "PORTS", range(first, first + size - 10))
        yield


@pytest.fixture(autouse=True)
def _outside_airflow() -> Iterator[None]:
    """Whatever has imported operators before: the settings of a test ask no Airflow for Connections."""
    before = [*connections._lookups]
    connections.set_lookup(None)
    yield
    connections._lookups[:] = before


@pytest.fixture(autouse=True)
def _own_import_path() -> Iterator[None]:
    """A project that a test has read is not imported by the next one: every project calls its package `jobs`."""
    before = [*sys.path]
    yield
    sys.path[:] = before


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of this test's own; what it sets in PENSTOCK_* holds after `settings.cache_clear()`."""
    place = tmp_path / "penstock"
    place.mkdir()
    monkeypatch.setenv("PENSTOCK_HOME", str(place))
    settings.cache_clear()
    runtime.find.cache_clear()
    yield place
    settings.cache_clear()
    runtime.find.cache_clear()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """An empty control database, on SQLite."""
    made = Control(f"sqlite:///{tmp_path / 'control.db'}")
    create_tables(made)
    yield made
    made.engine.dispose()
    connect.cache_clear()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real Kafka broker. Records of tests have old timestamps, and are not deleted for their age meanwhile."""
    config = {"log.retention.check.interval.ms": str(24 * 3_600_000)}
    with Broker(home=tmp_path_factory.mktemp("broker"), port=free_port(2), config=config) as part:
        yield part


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """A real MariaDB server."""
    with MariaDBWithLogin(home=tmp_path_factory.mktemp("mariadb Büro"), port=free_port()) as part:
        yield part


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySQL]:
    """A real MySQL server; the test is skipped where none can be had."""
    try:
        mysql.root()
    except HostError as e:
        pytest.skip(str(e))
    with MySQL(home=tmp_path_factory.mktemp("mysql"), port=free_port()) as part:
        yield part


@pytest.fixture(scope="session")
def spark(_session_home: None) -> Iterator[SparkSession]:
    """One Spark session for all tests that need no driver process of their own, on a machine whose clock shows local
    time."""
    os.environ["TZ"] = "EST5EDT,M3.2.0,M11.1.0"
    time.tzset()
    with spark_session() as session:
        yield session


@pytest.fixture(scope="session")
def started_case_broker(broker: Broker) -> Broker:
    """The broker of the cases in YAML."""
    return broker


@pytest.fixture
def fresh_broker(broker: Broker) -> Broker:
    """The broker, without topics."""
    delete_all(broker.bootstrap)
    return broker
