"""How a driver waits for its standby, and the standby for it; with a real (SQLite) control database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.control import AppRow, DriverRow
from penstock.errors import ControlError
from penstock.settings import settings
from penstock.supervision import reaper, standby
from penstock.supervision.decision.facts import Evidence
from penstock.supervision.standby import StandbyWait, lost_place, stand_by
from tests.support.supervised_platform import ME, Platform
from tests.support.wait import wait_until


class Release:
    """A running driver of app `a`, which was released; its processes and those of standbys only sleep."""

    def __init__(self, p: Platform) -> None:
        self.p, self.control, self.supervisor = p, p.control, p.supervisor()
        self.supervisor.tick()
        self.running = p.driver()
        p.control.update_driver(self.running.incarnation, state="running")
        p.control.release("a", ME)
        self.obstacle = ""
        self.wait = StandbyWait(p.control, self.running.incarnation, lambda: self.obstacle)

    def app(self) -> AppRow:
        row = self.control.app("a")
        assert row
        return row

    def is_over(self) -> bool:
        return self.wait.is_over(self.app(), self.running.release_seq)

    def standby(self) -> DriverRow:
        row = self.control.driver(self.app().standby or "")
        assert row
        return row

    def launched(self) -> DriverRow:
        """The standby, launched as the driver asks for it."""
        assert not self.is_over()
        self.supervisor.tick()
        return self.standby()

    def end_running(self) -> None:
        self.control.end_driver(self.running.incarnation, "release 1", "released")
        assert self.running.session.kill()


@pytest.fixture
def released(p: Platform) -> Release:
    return Release(p)


# The running driver


def test_a_driver_drains_once_its_standby_is_ready(released: Release) -> None:
    found = released.launched()
    assert not released.is_over()
    assert released.supervisor.tick().why == "it waits for the standby of release 1"
    assert released.control.report_standby(found.incarnation)
    assert released.is_over()
    assert [d.incarnation for d in released.control.drivers()] == [found.incarnation, released.running.incarnation]
    assert found.owner == "one"
    released.p.supervisor("two").tick()
    assert (released.standby().owner, released.p.driver().owner) == ("two", "two")


def test_a_driver_that_can_have_none_drains_at_once(released: Release) -> None:
    released.obstacle = "this host has 7 MiB of memory left"
    assert released.is_over()
    released.supervisor.tick()
    assert len(released.p.launched) == 1


def test_a_driver_whose_standby_nobody_launches_drains(released: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not released.is_over()
    assert not released.is_over()
    monkeypatch.setattr(standby, "LAUNCH_TIMEOUT", 0.0)
    assert released.is_over()


@pytest.mark.parametrize("case", ["killed", "ended", "not ready in time", "hangs"])
def test_a_driver_gives_up_a_standby_that_cannot_take_over(
    released: Release, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    found = released.launched()
    if case == "killed":
        found.session.kill()
    elif case == "ended":
        released.control.end_driver(found.incarnation, "nothing is declared", "not begun")
        found.session.kill()
    elif case == "not ready in time":
        monkeypatch.setattr(standby, "WAIT_TIMEOUT", 0.0)
    else:
        released.control.report_standby(found.incarnation)
        released.p.age(found.incarnation, 20)
    assert released.is_over()
    released.end_running()
    assert released.supervisor.tick().action == "rest"
    assert not released.control.take_over("a", found.incarnation)
    assert not found.session.alive()
    assert released.p.driver().incarnation not in (found.incarnation, released.running.incarnation)
    assert released.p.driver().release_seq == 1
    assert len(released.p.launched) == 3


def test_a_later_release_gets_a_standby_of_its_own(released: Release) -> None:
    first = released.launched()
    released.control.report_standby(first.incarnation)
    released.control.release("a", ME)
    second = released.launched()
    assert second.release_seq == 2
    assert not first.session.alive()
    assert not released.is_over()
    released.control.report_standby(second.incarnation)
    assert released.is_over()


def test_two_supervisors_launch_one_standby(released: Release) -> None:
    assert not released.is_over()
    gate = threading.Barrier(4)

    def run(n: int) -> None:
        gate.wait()
        released.p.supervisor(f"s{n}").tick()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(released.p.launched) == 2


# The standby


class Waiting:
    """A standby that waits in a thread."""

    def __init__(self, released: Release) -> None:
        self.row, self.leaving, self.said = released.launched(), threading.Event(), list[str]()
        self.control, self.healthy, self.calls = released.control, True, list[str]()
        self.thread = threading.Thread(target=self._wait)
        self.thread.start()
        wait_until(lambda: released.standby().state == "standby", 10, every=0.02)

    def _wait(self) -> None:
        app = self.control.app("a")
        assert app
        self.said.append(stand_by(self.control, app, self.row, self, self.leaving))
        self.calls.append("ends")

    def open(self) -> None:
        self.calls.append("open")

    def warm_up(self, is_over: Callable[[], bool]) -> None:
        assert not is_over()
        self.calls.append("warm up")

    def close(self) -> None:
        self.calls.append("close")

    def health_check(self) -> None:
        if not self.healthy:
            raise RuntimeError("no JVM")

    def ends(self) -> str:
        self.thread.join(10)
        return self.said[0]


@pytest.fixture
def waiting(released: Release, monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    monkeypatch.setenv("PENSTOCK_PROGRESS_EVERY", "0.1")
    settings.cache_clear()
    made = Waiting(released)
    yield made
    made.leaving.set()
    made.thread.join()


def test_a_standby_takes_the_app_over_from_a_driver_that_has_drained(released: Release, waiting: Waiting) -> None:
    assert not waiting.said
    released.end_running()
    assert waiting.ends() == ""
    assert waiting.calls == ["open", "warm up", "ends"]
    assert released.p.driver().incarnation == waiting.row.incarnation
    assert released.supervisor.tick().action == "rest"
    assert len(released.p.launched) == 2


def test_a_standby_takes_over_from_a_driver_that_is_killed(released: Release, waiting: Waiting) -> None:
    assert released.running.session.kill()
    released.supervisor.tick()
    assert waiting.ends() == ""
    assert released.p.driver().incarnation == waiting.row.incarnation
    assert len(released.p.launched) == 2


def test_a_standby_takes_over_from_a_driver_that_does_not_drain(released: Release, waiting: Waiting) -> None:
    evidence = Evidence(released.running.incarnation, released.running.alive_at, leaving_for=999)
    released.supervisor.tick(evidence)
    assert not released.running.session.alive()
    assert waiting.ends() == ""


def test_a_standby_leaves_when_another_release_follows(released: Release, waiting: Waiting) -> None:
    released.control.release("a", ME)
    assert waiting.ends() == "release 2 followed"
    assert waiting.calls == ["open", "warm up", "close", "ends"]


def test_a_standby_leaves_when_its_app_is_stopped(released: Release, waiting: Waiting) -> None:
    released.control.set_desired(["s"], "off", ME)
    assert waiting.ends() == "no stream of the app is wanted"


def test_a_standby_leaves_when_it_is_given_up(released: Release, waiting: Waiting) -> None:
    assert released.control.give_up_standby("a", waiting.row.incarnation)
    assert waiting.ends() == "it was given up"


def test_a_standby_leaves_when_it_is_asked_to(waiting: Waiting) -> None:
    waiting.leaving.set()
    assert waiting.ends() == "SIGTERM"


def test_a_standby_that_cannot_run_says_why(waiting: Waiting) -> None:
    waiting.healthy = False
    assert waiting.ends() == "it cannot run: RuntimeError: no JVM"


def test_a_standby_outlives_an_outage_of_the_database(
    released: Release, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def away(_: str) -> bool:
        asked.set()
        raise ControlError("away")

    with monkeypatch.context() as m:
        m.setattr(released.control, "report_standby", away)
        assert asked.wait(10)
    released.end_running()
    assert waiting.ends() == ""


def test_a_standby_that_does_not_hear_that_it_has_taken_over_is_one_no_more(
    released: Release, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over = released.control.take_over

    def lose_answer(app: str, incarnation: str) -> bool:
        if take_over(app, incarnation):
            time.sleep(settings().progress_every)
            raise ControlError("away")
        return False

    monkeypatch.setattr(released.control, "take_over", lose_answer)
    released.end_running()
    assert waiting.ends() == ""
    assert released.p.driver().state == "launching"


def test_a_driver_that_another_has_followed_is_no_standby(released: Release) -> None:
    found = released.launched()
    assert lost_place(released.app(), found) == ""
    released.end_running()
    assert released.control.claim("a", released.running.incarnation, host="h", owner="o", log="")
    assert lost_place(released.app(), found) == f"driver {released.p.driver().incarnation[:8]} has its place"


# Who ends it


def test_a_driver_that_is_stopped_for_a_mark_has_no_standby_left(released: Release) -> None:
    found = released.launched()
    released.control.report_standby(found.incarnation)
    assert reaper.stop(released.control, "a", "one", "its task was marked")
    assert released.control.drivers() == []
    assert not found.session.alive()


def test_the_reaper_leaves_a_standby_alone_until_it_is_of_no_use(released: Release) -> None:
    found = released.launched()
    assert list(reaper.reap(released.control, {"a"}, ME)) == []
    released.p.age(found.incarnation, 181)
    [line] = reaper.reap(released.control, {"a"}, ME)
    assert "not ready within 180 s" in line
    assert not found.session.alive()
    assert released.running.session.alive()


def test_the_reaper_ends_a_standby_whose_launcher_died(released: Release) -> None:
    assert not released.is_over()
    assert released.control.claim_standby(released.app(), host=released.running.host, owner="dead", log="")
    assert list(reaper.reap(released.control, {"a"}, ME)) == []
    released.p.age(released.standby().incarnation, 181)
    [line] = reaper.reap(released.control, {"a"}, ME)
    assert "its launcher died" in line
    assert released.is_over()
