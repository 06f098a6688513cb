"""Who gets a gateway of the JVM that apps share, and what is left when its driver has gone; no JVM runs."""

from __future__ import annotations

import fcntl
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError

from penstock.engine import shared_session
from penstock.engine.jvm import shared_jvm
from penstock.engine.jvm.shared_jvm import Gateway
from penstock.engine.shared_session import SessionServer
from penstock.errors import HostError
from penstock.host.files import write_private
from penstock.host.process import wait_for
from penstock.settings import settings
from penstock.supervision import launch


class Jvm:
    """In the place of a session and its JVM. events: what was done with it, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def gateway(self) -> Gateway:
        self.events.append("gateway")
        return Gateway(4040, "secret", SimpleNamespace(shutdown=lambda: self.events.append("shutdown")))


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Jvm:
    made = Jvm()
    monkeypatch.setattr(Gateway, "open", lambda one: one.gateway())
    monkeypatch.setattr(shared_jvm, "stop_queries", lambda one, driver: one.events.append(f"stop {driver}") or [])
    monkeypatch.setattr(shared_session, "_end_workers", lambda workers: made.events.append(f"end {workers}"))
    return made


@pytest.fixture
def server(jvm: Jvm) -> Iterator[SessionServer]:
    with SessionServer(jvm) as made:  # type: ignore[arg-type]
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: SessionServer, driver: str, **changed: str) -> tuple[socket.socket, str]:
    connection = socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=10)
    connection.sendall(json.dumps({"token": server.token, "driver": driver, "workers": "w"} | changed).encode() + b"\n")
    with connection.makefile() as answer:
        return connection, answer.readline()


@pytest.mark.processes
def test_a_driver_has_a_gateway_until_its_connection_is_closed(server: SessionServer, jvm: Jvm) -> None:
    first, answer = ask(server, "one")
    assert json.loads(answer) == {"port": 4040, "token": "secret"}
    second, _ = ask(server, "two")
    first.close()
    assert wait_for(lambda: len(jvm.events) == 4, 10)
    assert jvm.events == ["gateway", "gateway", "stop one", "shutdown"], "another driver has these workers"
    assert server.idle_seconds == 0
    second.close()
    assert wait_for(lambda: server.idle_seconds > 0, 10)
    assert jvm.events[4:] == ["stop two", "shutdown", "end w"]


@pytest.mark.processes
@pytest.mark.parametrize("text", [b"\n", b"GET / HTTP/1.0\n", b'{"token": 1}\n', b'["token"]\n', b""])
def test_others_get_no_answer(server: SessionServer, jvm: Jvm, text: bytes) -> None:
    with closing(socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=10)) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    connection, answer = ask(server, "one", token="wrong")
    connection.close()
    assert (answer, jvm.events) == ("", [])


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("variables", "together"),
    [
        ({}, []),
        ({"TOGETHER": "all"}, ["metrics", "quality"]),
        ({"TOGETHER": "quality, agents"}, ["quality"]),
        ({"TOGETHER": "all", "SPARK_MASTER": "spark://host:7077"}, []),
    ],
)
def test_which_drivers_share_a_jvm(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], together: list[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    settings.cache_clear()
    assert [app for app in ("metrics", "quality") if launch.python_command(app, "one")] == together
    assert launch.python_command("captures", "one")


@pytest.mark.processes
def test_the_process_has_no_code_of_a_release(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = home / "releases" / "1"
    monkeypatch.setenv("PENSTOCK_PROJECT", str(release))
    monkeypatch.setenv("PYTHONPATH", f"{release}:{release}/src:/elsewhere")
    settings.cache_clear()
    path = shared_session._environment()["PYTHONPATH"].split(":")
    assert "/elsewhere" in path
    assert not [folder for folder in path if folder.startswith(str(release))]


@pytest.mark.parametrize("starts", [True, False])
def test_a_process_that_is_about_to_end_is_followed_by_another(monkeypatch: pytest.MonkeyPatch, starts: bool) -> None:
    ended, stopped = SimpleNamespace(process=lambda: None), list[object]()
    left = [ended, ended]
    monkeypatch.setattr(shared_session, "_process", left.pop)
    monkeypatch.setattr(shared_session, "_address", lambda: {"port": 1} if starts and not left else None)
    monkeypatch.setattr("penstock.host.process.stop", stopped.append)
    monkeypatch.setattr(shared_session, "last_log", lambda: Path("/nowhere"))
    if starts:
        assert shared_session._started() == {"port": 1}
    else:
        with pytest.raises(HostError, match="does not start; got: nothing in /nowhere"):
            shared_session._started()
    assert (left, stopped) == ([], [] if starts else [ended])


def test_the_file_of_a_process_that_was_killed_leads_nowhere(home: Path) -> None:
    file = home / "run" / f"{shared_session.name()}.address"
    file.parent.mkdir(parents=True)
    write_private(file, json.dumps({"port": 4040, "token": "hidden", "log": ""}))
    assert file.stat().st_mode & 0o777 == 0o600
    assert not shared_session.is_ready()
    with file.open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert shared_session.is_ready()


@pytest.mark.parametrize("error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111)])
def test_a_jvm_that_ends_under_a_command_is_told(error: Exception) -> None:
    with pytest.raises(HostError, match=r"has ended during the command; got: .*; hint: run it again.*/the.log"):
        with shared_jvm.clear_end("/the.log"):
            raise error


@pytest.mark.usefixtures("home")
def test_another_session_runs_with_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    name = shared_session.name()
    monkeypatch.setenv("PENSTOCK_DRIVER_MEMORY", "2g")
    settings.cache_clear()
    assert shared_session.name() == name, "it has a heap of its own"
    monkeypatch.setenv("PENSTOCK_SPARK_CONF", '{"spark.sql.ansi.enabled": "false"}')
    settings.cache_clear()
    assert shared_session.name() != name
