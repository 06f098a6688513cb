"""Releases of an app with a standby, by processes of drivers that only write lines; kills at each point.

Neither Spark nor a broker nor Airflow runs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from penstock import catalog
from penstock.control import Actor, Control, DriverRow
from penstock.settings import settings
from penstock.supervision import launch
from penstock.supervision.decision import standby as decided
from penstock.supervision.supervisor import Supervisor
from tests.chaos.projects import other_project
from tests.support.wait import wait_until

ME = Actor("me", "cli")
STREAM = """STREAM INTO lines
READ given AS JSON (n INT NOT NULL, at BIGINT NOT NULL) EVENT TIME timestamp_millis(at) AHEAD 1 HOUR
KEY (n) EMIT FINAL WINDOW 1 SECOND GRACE 0 SECONDS LATE BY 0 SECONDS APP small
AS SELECT n, count(*) AS lines FROM given GROUP BY n, window(event_time, '1 second')
"""
TOPIC = """from penstock.streams import Topic
GIVEN = Topic("given", partitions=1)
"""


class SmallApp:
    """An app of one stream that writes lines, with a supervisor."""

    def __init__(self, control: Control, home: Path) -> None:
        self.control, self.home = control, home
        self.supervisor = Supervisor(control, "small", "test", self._command)

    def _command(self, incarnation: str) -> list[str]:
        return [sys.executable, "-m", "tests.support.small_driver", *launch.driver_arguments("small", incarnation)]

    def opens(self, behaviour: str) -> None:
        """How the drivers that are launched from now on open their sessions."""
        (self.home / "opens").write_text(behaviour)

    def lines(self) -> list[tuple[str, float]]:
        """Who wrote each line, and when."""
        file = self.home / "output"
        words = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [(incarnation, float(at)) for incarnation, _, at in words]

    def current(self) -> DriverRow:
        row = self.control.app("small")
        assert row
        return self.row(row.incarnation or "")

    def standby(self) -> DriverRow | None:
        row = self.control.app("small")
        return self.control.driver(row.standby) if row and row.standby else None

    def row(self, incarnation: str) -> DriverRow:
        row = self.control.driver(incarnation)
        assert row
        return row

    def writes(self, other_than: str = "") -> DriverRow:
        """The driver that writes lines now, once it does."""

        def is_written() -> bool:
            self.supervisor.tick()
            before = len(self.lines())
            current = self.current().incarnation
            time.sleep(0.15)
            return current != other_than and any(by == current for by, _ in self.lines()[before:])

        wait_until(is_written, 120, every=0.1, what="the driver writes lines")
        return self.current()

    def standby_in(self, *states: str) -> DriverRow:
        """The standby, once it opens its session or has done so, and is in one of these states."""

        def found() -> DriverRow | None:
            self.supervisor.tick()
            row = self.standby()
            opens = row is not None and (self.home / f"opens-{row.incarnation}").exists()
            return row if row and opens and row.state in states else None

        row = wait_until(found, 60, every=0.05, what=f"the standby is {' or '.join(states)}")
        assert row
        return row

    def release(self, running: DriverRow, state: str) -> DriverRow:
        """Release the app; its standby, once it is `launching` or `standby`. Then the running driver does not stop its
        stream until it `may_stop`."""
        self.opens("2")
        self.control.release("small", ME)
        found = self.standby_in("launching")
        self.opens("0")
        if state == "standby":
            (self.home / "writes").touch()
            self.standby_in("standby")
            wait_until(lambda: self.row(running.incarnation).state == "draining", 20, what="the driver drains")
        return found

    def may_stop(self) -> None:
        (self.home / "writes").unlink(missing_ok=True)

    def check(self, drivers: int) -> None:
        """Check that no two drivers wrote at once, how many did, and that no other process is left."""
        writers = [by for by, _ in self.lines()]
        changes = sum(a != b for a, b in pairwise(writers))
        assert changes == len(set(writers)) - 1 == drivers - 1
        current = self.current()
        rows = self.control.drivers(live=False)
        left = [d for d in rows if d.incarnation != current.incarnation]
        wait_until(lambda: not any(d.session.alive() for d in left), 30, what="no other driver is left")
        assert [d.incarnation for d in self.control.drivers()] == [current.incarnation]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[SmallApp]:
    project, home = tmp_path / "project", tmp_path / "home"
    home.mkdir()
    for folder, name, text in (("sql/streams", "lines.sql", STREAM), ("jobs", "topics.py", TOPIC)):
        (project / folder).mkdir(parents=True)
        (project / folder / name).write_text(text)
    url = f"sqlite:///{tmp_path / 'control.db'}"
    with other_project(project, {"PENSTOCK_HOME": home, "PENSTOCK_CONTROL_URL": url, "PENSTOCK_PROGRESS_EVERY": 0.2}):
        control = Control(url)
        control.migrate()
        control.sync(catalog.load(project))
        made = SmallApp(control, home)
        made.opens("0")
        yield made
        for driver in control.drivers(live=False):
            driver.session.kill()
        control.engine.dispose()


def test_a_release_hands_the_app_over_to_its_standby(app: SmallApp) -> None:
    first = app.writes()
    app.control.release("small", ME)
    app.standby_in("launching")
    assert app.current().incarnation == first.incarnation
    second = app.writes(first.incarnation)
    assert second.release_seq == 1
    assert app.row(first.incarnation).end_code == "released"
    app.check(2)
    assert app.control.leases()["lines"].holder == second.incarnation
    # A stop leaves no standby.
    app.release(second, "launching")
    app.control.set_desired(["lines"], "off", ME)
    wait_until(lambda: not app.control.drivers(), 30, what="neither is left")
    assert app.row(second.incarnation).end_code == "unwanted"


@pytest.mark.long
@pytest.mark.parametrize("behaviour", ["fails", "hangs"])
def test_a_standby_that_does_not_open_its_session_is_followed_the_old_way(
    app: SmallApp, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    monkeypatch.setattr(decided, "READY_TIMEOUT", 5.0)
    first = app.writes()
    app.opens(behaviour)
    app.control.release("small", ME)
    failed = app.standby_in("launching", "ended")
    app.opens("0")
    assert app.writes(first.incarnation).incarnation != failed.incarnation
    app.check(2)


@pytest.mark.long
@pytest.mark.parametrize("state", ["launching", "standby"])
def test_a_standby_that_is_killed_costs_no_release(app: SmallApp, state: str) -> None:
    first = app.writes()
    found = app.release(first, state)
    assert found.session.kill()
    app.may_stop()
    second = app.writes(first.incarnation)
    assert (second.incarnation != found.incarnation, second.release_seq) == (True, 1)
    app.check(2)


@pytest.mark.long
def test_a_standby_that_hangs_costs_no_release(app: SmallApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decided, "TAKEOVER_TIMEOUT", 2.0)
    monkeypatch.setenv("PENSTOCK_STUCK_AFTER", "5")
    settings.cache_clear()
    first = app.writes()
    found = app.release(first, "standby")
    (app.home / "hung").write_text(found.incarnation)
    # It may take over until it hangs.
    wait_until(lambda: app.control.now() - app.row(found.incarnation).alive_at > 1500, 20, what="it hangs")
    app.may_stop()
    second = app.writes(first.incarnation)
    assert (second.incarnation != found.incarnation, second.release_seq) == (True, 1)
    app.check(2)


@pytest.mark.long
@pytest.mark.parametrize("state", ["launching", "standby"])
def test_a_driver_that_is_killed_while_its_standby_waits_is_followed_by_it(app: SmallApp, state: str) -> None:
    first = app.writes()
    found = app.release(first, state)
    assert first.session.kill()
    assert app.writes(first.incarnation).incarnation == found.incarnation
    row = app.control.app("small")
    assert row
    assert row.restarts == (1 if state == "launching" else 0), "one that is to leave may end as it likes"
    app.check(2)


@pytest.mark.long
def test_a_release_that_another_follows_leaves_no_standby(app: SmallApp) -> None:
    first = app.writes()
    overtaken = app.release(first, "launching")
    app.control.release("small", ME)
    second = app.writes(first.incarnation)
    assert second.release_seq == 2
    assert app.row(overtaken.incarnation).state == "ended"
    app.check(2)


@pytest.mark.long
def test_without_a_supervisor_a_standby_takes_over_all_the_same(app: SmallApp) -> None:
    """Its launcher was killed once it had been launched: nobody looks after either driver."""
    first = app.writes()
    found = app.release(first, "launching")
    wait_until(lambda: app.current().incarnation == found.incarnation, 60, what="the standby takes over")
    wait_until(lambda: app.lines()[-1][0] == found.incarnation, 30, what="it writes")
    assert app.row(first.incarnation).end_code == "released"
    app.check(2)


@pytest.mark.long
def test_a_launcher_that_dies_before_it_starts_a_standby_costs_no_release(
    app: SmallApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = app.writes()
    app.control.release("small", ME)
    wait_until(lambda: (row := app.control.app("small")) and row.standby_for == 1, 10, what="a standby is asked for")
    row = app.control.app("small")
    assert row
    assert app.control.claim_standby(row, host="h", owner="dead", log="")
    monkeypatch.setattr(decided, "RECORD_TIMEOUT", 1.0)
    assert app.writes(first.incarnation).release_seq == 1
    app.check(2)


@pytest.mark.long
def test_all_that_are_asked_to_leave_leave(app: SmallApp) -> None:
    """As `penstock down` asks them, without a supervisor."""
    app.release(app.writes(), "launching")
    for driver in app.control.drivers():
        app.control.mark_driver_asked_to_leave(driver.incarnation)
        os.kill(driver.pid or 0, signal.SIGTERM)
    wait_until(lambda: not app.control.drivers(), 30, what="all have left")
    assert {d.end_code for d in app.control.drivers(live=False)} == {"asked"}
