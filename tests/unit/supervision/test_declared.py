"""Heartbeats and the reaper while the declarations cannot be read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.control import Actor, Control, connect
from penstock.errors import DeclarationError
from penstock.settings import settings
from penstock.supervision import declared, reaper
from penstock.supervision.declared import declared_windows, read_declared, stored_windows
from tests.chaos.projects import other_project
from tests.support.airflow_tasks import context
from tests.support.control_tables import create_tables

pytestmark = pytest.mark.processes

WINDOWED = """
from datetime import timedelta
from penstock.streams import EmitFinal, Input, Stream, Topic, TopicOutput
STREAM = Stream("sales", "shop", {"rows": Input(Topic("in"))}, lambda rows: rows,
                TopicOutput(Topic("out"), value="value"), EmitFinal(timedelta(60), timedelta(1)))
"""
HANGS, ENDS, FAILS = "while True: pass\n", "import os\nos._exit(0)\n", "import os\nos._exit(3)\n"


@pytest.fixture
def odd(tmp_path: Path, airflow_home: None) -> Iterator[Path]:  # noqa: ARG001
    """A file beside those of an app with windows; it is to be written."""
    import airflow.sdk  # noqa: F401  # it configures logging

    for app in ("shop", "odd"):
        (tmp_path / "jobs" / app).mkdir(parents=True)
        (tmp_path / "jobs" / app / "__init__.py").touch()
    (tmp_path / "jobs" / "shop" / "sales.py").write_text(WINDOWED)
    variables = {"PENSTOCK_CONTROL_URL": f"sqlite:///{tmp_path}/control.db", "PENSTOCK_HOME": tmp_path / "home"}
    with other_project(tmp_path, variables):
        yield tmp_path / "jobs" / "odd" / "odd.py"


@pytest.fixture
def control(odd: Path) -> Iterator[Control]:  # noqa: ARG001
    made = connect()
    create_tables(made)
    yield made
    made.engine.dispose()


def heartbeat_run() -> tuple[list[str], float]:
    """The topics that a run of the DAG sends heartbeats of, and for how long."""
    from airflow.sdk.exceptions import TaskDeferred

    from penstock.airflow.operators import SendHeartbeats

    with pytest.raises(TaskDeferred) as deferred:
        SendHeartbeats(task_id="beat").execute(context())
    _, given = deferred.value.trigger.serialize()
    return [one["topic"] for one in given["windows"]], given["until"] - time.time()


@pytest.mark.parametrize(
    ("code", "why"),
    [(HANGS, r"odd\.py"), (ENDS, "it ended without an answer"), (FAILS, "the declarations could not be read")],
)
def test_a_module_that_gives_no_answer_stops_no_heartbeats(
    odd: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str, why: str
) -> None:
    odd.write_text(code)
    monkeypatch.setattr(declared, "READ_TIMEOUT", 6.0)
    topics, lasts = heartbeat_run()
    assert topics == []
    assert lasts <= 60, "it is read again soon, as nothing is known"
    odd.unlink()
    assert heartbeat_run()[0] == ["in"]
    odd.write_text(code)
    caplog.clear()
    topics, lasts = heartbeat_run()
    assert topics == ["in"]
    assert lasts > settings().supervise_epoch - 60
    with pytest.raises(DeclarationError, match=why):
        read_declared()
    assert "stored last" in caplog.text


def test_windows_that_cannot_be_stored_are_used(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    assert not odd.exists()
    monkeypatch.setattr(declared, "write_private", full)
    assert [one["topic"] for one in declared_windows()] == ["in"]
    assert not stored_windows().exists()


def test_the_reaper_spares_apps_that_may_be_declared(
    odd: Path, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.airflow.operators import EndOrphanedDrivers
    from penstock.catalog import load

    control.sync(load())
    passed: list[set[str]] = []

    def reap(_: Control, apps: set[str], __: Actor) -> list[str]:
        passed.append(apps)
        return []

    monkeypatch.setattr(reaper, "reap", reap)
    monkeypatch.setattr(declared, "READ_TIMEOUT", 6.0)
    task: Any = EndOrphanedDrivers(task_id="reap")
    odd.write_text(HANGS)
    assert task.execute(context()) == []
    assert passed == [], "without a driver nothing is read"
    assert control.claim("shop", None, host="elsewhere", spec_hash="", owner="me", log="")
    task.execute(context())
    odd.unlink()
    task.execute(context())
    assert passed == [{"shop"}, {"shop"}]
