"""No client connects to an embedded server's port on which a server of another home listens."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.capture.source import connections as databases
from penstock.control import connect
from penstock.errors import PenstockError
from penstock.host import session
from penstock.host.process import ProcessRecord
from penstock.kafka.client import client_config
from penstock.object_store import endpoint
from penstock.registry import endpoint as registry
from penstock.settings import settings
from penstock.sinks.core import connections as stores
from tests.chaos.projects import other_project

# By the port's use: the run record's name, the variable of the port, and what needs the address.
CLIENTS: dict[str, tuple[str, str, Callable[[], object]]] = {
    "client": ("broker", "KAFKA", lambda: client_config(settings().bootstrap)),
    "control": ("mariadb", "MARIADB", lambda: connect().now()),
    "demo": ("mariadb", "MARIADB", lambda: databases.url(databases.DEMO, "mysql")),
    "mongodb": ("mongodb", "MONGODB", lambda: stores.url("mongodb")),
    "elasticsearch": ("elasticsearch", "ELASTICSEARCH", lambda: stores.required_url("elasticsearch", "one")),
    "s3": ("s3", "S3", endpoint.find_endpoint),
    "schema_registry": ("schema_registry", "SCHEMA_REGISTRY", registry.find_endpoint),
}


@pytest.fixture
def other_server() -> Iterator[int]:
    """The port of a server that this home has not started."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.processes
@pytest.mark.parametrize("client", CLIENTS)
def test_the_server_of_another_home_is_refused(client: str, other_server: int, tmp_path: Path) -> None:
    name, variable, use = CLIENTS[client]
    started = session.started(os.getpid()) or 0.0
    # A server of this home that has crashed: its pid is that of another process now.
    crashed = ProcessRecord(name, os.getpid(), started - 1, session.boot_id(), {"port": other_server})
    crashed.write(tmp_path / "run")
    with other_project(tmp_path, {"PENSTOCK_HOME": tmp_path, f"PENSTOCK_{variable}_PORT": other_server}):
        with pytest.raises(PenstockError, match=rf"another home.*pid {os.getpid()} .*PENSTOCK_{variable}_PORT"):
            use()
        if name != "mariadb":
            ProcessRecord(name, os.getpid(), started, session.boot_id(), crashed.ports).write(tmp_path / "run")
            assert use()


@pytest.mark.processes
def test_a_server_that_is_down_is_not_refused(other_server: int, tmp_path: Path) -> None:
    """It may start again; and what names an address alone connects to nothing."""
    names_alone: dict[str, Callable[[], object]] = {
        "MARIADB": lambda: databases.url(databases.DEMO, "mysql", ask=False),
        "MONGODB": lambda: stores.url("mongodb", connecting=False) or "no record",
    }
    for variable, use in names_alone.items():
        with other_project(tmp_path, {"PENSTOCK_HOME": tmp_path, f"PENSTOCK_{variable}_PORT": other_server}):
            assert use()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with other_project(tmp_path, {"PENSTOCK_HOME": tmp_path, "PENSTOCK_KAFKA_PORT": closed.getsockname()[1]}):
            assert client_config(settings().bootstrap)
