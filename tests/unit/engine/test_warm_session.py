"""Who gets the session that is kept ready, and when its keeper ends; no JVM runs."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from penstock.cli.spark import short_session
from penstock.devstack.servers.base import ManagedServer
from penstock.devstack.servers.warm_session import WarmSession
from penstock.engine import warm_session
from penstock.engine.jvm import shared_jvm
from penstock.errors import HostError
from penstock.settings import settings


class Jvm:
    """In the place of a session and its JVM. events: what was done with it, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.ended = False

    def newSession(self) -> Jvm:  # noqa: N802
        self.events.append("new session")
        return self


@pytest.fixture
def jvm(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jvm]:
    """A JVM that is kept; the process's zone is not changed."""
    made = Jvm()

    def connect(port: int, token: str, _variables: object) -> Jvm:
        made.events.append(f"connect {port} {token}")
        return made

    monkeypatch.setattr("penstock.java.jars.jars_of", lambda _: [])
    monkeypatch.setattr(warm_session, "use_utc", lambda: None)
    monkeypatch.setattr(shared_jvm, "address", lambda _: (4040, "token"))
    monkeypatch.setattr(shared_jvm, "connect", connect)
    monkeypatch.setattr(shared_jvm, "stop_work", lambda one: one.events.append("stop work"))
    monkeypatch.setattr(shared_jvm, "has_ended", lambda one: one.ended)
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    assert not (home / "run").exists()
    with warm_session._publish(made):  # type: ignore[arg-type]
        yield made


def is_borrowed() -> bool:
    with warm_session.borrow() as spark:
        return spark is not None


def set_conf(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()


def test_one_has_it_at_a_time_and_finds_and_leaves_no_query(jvm: Jvm) -> None:
    with warm_session.borrow() as spark:
        assert id(spark) == id(jvm)
        assert jvm.events == ["connect 4040 token", "stop work", "new session"]
        assert not is_borrowed()
    assert jvm.events[3:] == ["stop work"]
    assert is_borrowed()


@pytest.mark.processes
@pytest.mark.parametrize(
    "variables",
    [
        {"PENSTOCK_SPARK_CONF": '{"spark.sql.ansi.enabled": "false"}'},
        {"PENSTOCK_SPARK_MASTER": "spark://localhost:7077"},
        {"PENSTOCK_JAVA_OPTIONS": "-Xss1m"},
        {"PENSTOCK_PROJECT": "."},
    ],
)
@pytest.mark.usefixtures("jvm")
def test_a_command_with_other_settings_leaves_it_to_others(tmp_path: Path, variables: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as of_command:
        set_conf(of_command, **{k: str(tmp_path) if v == "." else v for k, v in variables.items()})
        borrowed = warm_session.borrow()
        assert borrowed.__enter__() is None
    settings.cache_clear()
    assert is_borrowed()
    borrowed.__exit__(None, None, None)


@pytest.mark.usefixtures("jvm")
def test_memory_and_cores_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    set_conf(monkeypatch, PENSTOCK_SPARK_MASTER="local[1]", PENSTOCK_DRIVER_MEMORY="512m")
    assert is_borrowed()


@pytest.mark.usefixtures("jvm")
def test_another_version_of_spark_does_not_borrow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "9.9")
    assert not is_borrowed()
    assert warm_session.is_outdated()


@pytest.mark.usefixtures("jvm")
@pytest.mark.parametrize(("java_options", "events"), [("-Xss1m", ["stop", "start"]), ("", ["start"])])
def test_a_running_session_with_other_settings_is_replaced(
    home: Path, monkeypatch: pytest.MonkeyPatch, java_options: str, events: list[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(WarmSession, "running", lambda _: "a process")
    monkeypatch.setattr(WarmSession, "stop", lambda _: done.append("stop"))
    monkeypatch.setattr(ManagedServer, "start", lambda _: done.append("start"))
    if java_options:
        set_conf(monkeypatch, PENSTOCK_JAVA_OPTIONS=java_options)
    WarmSession(home).start()
    assert done == events


def test_other_code_of_the_library_has_workers_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock/codec.py").touch()
    monkeypatch.setattr(warm_session, "LIBRARY", tmp_path)
    before = warm_session._library_code()
    assert warm_session._library_code() == before
    os.utime(tmp_path / "penstock/codec.py", (1, 1))
    assert warm_session._library_code() != before


@pytest.mark.usefixtures("jvm")
def test_the_file_has_no_secrets_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    file = warm_session._file()
    assert file.stat().st_mode & 0o777 == 0o600
    set_conf(monkeypatch, PENSTOCK_SPARK_CONF='{"spark.hadoop.fs.s3a.secret.key": "hidden"}')
    with warm_session._publish(Jvm()):  # type: ignore[arg-type]
        assert "hidden" not in file.read_text()


def test_the_file_of_a_keeper_that_was_killed_leads_nowhere(jvm: Jvm, home: Path) -> None:
    server = WarmSession(home)
    assert server.ready()
    text = warm_session._file().read_text()
    warm_session._file().unlink()
    warm_session._file().write_text(text)
    assert json.loads(text)["port"] == 4040
    assert not server.ready()
    assert not is_borrowed()
    assert jvm.events == []


@pytest.mark.usefixtures("jvm")
def test_the_server_of_another_home_is_not_ready(tmp_path: Path) -> None:
    assert not WarmSession(tmp_path / "other").ready()


def test_a_jvm_with_which_nothing_can_be_done_is_not_borrowed(jvm: Jvm, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise ConnectionError("Answer from Java side is empty")

    monkeypatch.setattr(shared_jvm, "connect", fail)
    assert not is_borrowed()
    assert jvm.events == []


@pytest.mark.usefixtures("jvm")
def test_a_jvm_that_ends_under_a_command_is_told() -> None:
    with pytest.raises(HostError, match=r"has ended during the command; got: .*; hint: run it again"):
        with warm_session.borrow():
            raise Py4JNetworkError("Answer from Java side is empty")


@pytest.mark.usefixtures("jvm")
def test_spark_does_not_log_the_errors_of_a_command_that_borrows() -> None:
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.NOTSET)
    with short_session("explain"):
        assert logging.getLogger("SQLQueryContextLogger").level == logging.CRITICAL


def ticks(monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> None:
    """What happens in each of the keeper's seconds."""
    waiting = list(actions)
    # Threads of py4j sleep too, so the keeper alone has another clock.
    clock = SimpleNamespace(sleep=lambda _: waiting.pop(0)(), monotonic=time.monotonic)
    monkeypatch.setattr(warm_session, "time", clock)


def test_after_a_borrower_the_keeper_stops_its_work_and_replaces_the_jvm(
    jvm: Jvm, monkeypatch: pytest.MonkeyPatch
) -> None:
    borrowed = warm_session.borrow()

    def killed() -> None:
        borrowed.__exit__(None, None, None)
        jvm.events.clear()

    monkeypatch.setattr(warm_session, "MAX_BORROWERS", 1)
    ticks(monkeypatch, borrowed.__enter__, killed)
    warm_session._keep(jvm)  # type: ignore[arg-type]
    assert jvm.events == ["stop work"]
    # Nobody connects to a JVM that is about to end.
    assert not warm_session._file().exists()


def test_a_jvm_that_ends_before_anybody_used_it_is_not_started_again(jvm: Jvm, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks(monkeypatch, lambda: setattr(jvm, "ended", True))
    with pytest.raises(HostError, match="has ended before anybody used it"):
        warm_session._keep(jvm)  # type: ignore[arg-type]
    assert not is_borrowed()


@pytest.mark.usefixtures("jvm")
def test_a_second_keeper_is_refused() -> None:
    with pytest.raises(HostError, match="a session is kept already"):
        warm_session.main()
