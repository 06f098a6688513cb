"""A control database with one app, and real processes for its drivers; neither Airflow nor Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from penstock.control import Actor, Control, DriverRow, connect, tables
from penstock.settings import PROJECT
from penstock.supervision.supervisor import Supervisor
from tests.chaos.projects import other_project
from tests.support.control_tables import create_tables

ME = Actor("me", "cli")
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@contextmanager
def chaos_project(home: Path) -> Iterator[Control]:
    """The project of the chaos tests, with an empty control database in a folder and supervisors that look often."""
    variables = {
        "PENSTOCK_CONTROL_URL": f"sqlite:///{home}/control.db",
        "PENSTOCK_HOME": home / "home",
        "PENSTOCK_SUPERVISE_EVERY": 0.05,
    }
    with other_project(PROJECT / "tests" / "chaos" / "project", variables):
        made = connect()
        create_tables(made)
        yield made
        made.engine.dispose()


class Platform:
    """A control database with one app of one stream, and what its supervisors launched."""

    def __init__(self, tmp: Path) -> None:
        self.control = Control(f"sqlite:///{tmp / 'control.db'}")
        create_tables(self.control)
        with self.control.engine.begin() as c:
            c.execute(tables.app.insert().values(name="a", release_seq=0, restarts=0))
            c.execute(tables.stream.insert().values(name="s", app="a", desired="on"))
        self.launched: list[str] = []

    def supervisor(self, owner: str = "one", command: Sequence[str] = SLEEP) -> Supervisor:
        def build(incarnation: str) -> Sequence[str]:
            self.launched.append(incarnation)
            return command

        return Supervisor(self.control, "a", owner, build)

    def driver(self) -> DriverRow:
        row = self.control.app("a")
        assert row
        assert row.incarnation
        found = self.control.driver(row.incarnation)
        assert found
        return found

    def verbs(self) -> list[str]:
        return [str(a["verb"]) for a in reversed(self.control.actions())]

    def crowd(self, count: int = 250) -> None:
        """Let others do much that is recorded."""
        with self.control.engine.begin() as c:
            row = {"at": 0, "actor": "others", "source": "cli", "verb": "stop", "target": "another"}
            c.execute(tables.action.insert(), [row] * count)

    def age(self, incarnation: str, seconds: float) -> None:
        """Let a driver's beat and launch lie further back."""
        d = tables.driver
        back = int(seconds * 1000)
        with self.control.engine.begin() as c:
            c.execute(
                update(d)
                .where(d.c.incarnation == incarnation)
                .values(alive_at=d.c.alive_at - back, launched_at=d.c.launched_at - back)
            )

    def close(self) -> None:
        for d in self.control.drivers(live=False):
            d.session.kill()
        self.control.engine.dispose()


def airflow_says(monkeypatch: pytest.MonkeyPatch, states: dict[str, dict[str, str | None]] | Exception) -> None:
    """What Airflow answers when it is asked for the states of tasks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    def answer(**_: Any) -> dict[str, dict[str, str | None]]:
        if isinstance(states, Exception):
            raise states
        return states

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", answer)
