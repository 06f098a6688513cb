"""What is decided of given facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.control import AppRow, DriverRow
from penstock.settings import Settings
from penstock.supervision.decision.decide import BACKOFF, decide
from penstock.supervision.decision.facts import Evidence, Facts

NOW = 10_000_000


def row(**values: Any) -> DriverRow:
    given: dict[str, Any] = {
        "incarnation": "i1", "app": "a", "host": "h", "pid": 7, "pid_started": 1.0, "release_seq": 0, "spec_hash": "",
        "owner": "o", "state": "running", "launched_at": NOW - 600_000, "alive_at": NOW, "ended_at": None,
        "reason": None, "log": "",
    }  # fmt: skip
    return DriverRow(**{**given, **values})


def facts(driver: DriverRow | None, **values: Any) -> Facts:
    given: dict[str, Any] = {
        "app": AppRow("a", 0, driver.incarnation if driver else None, 0), "wanted": True, "driver": driver,
        "alive": True, "leader_gone": False, "recent": [driver] if driver else [], "now": NOW,
    }  # fmt: skip
    return Facts(**{**given, **values})


def say(f: Facts) -> str:
    return decide(f, Settings()).action


def test_absent_and_wanted_is_launched_and_unwanted_is_left() -> None:
    assert say(facts(None)) == "launch"
    assert say(facts(None, wanted=False)) == "rest"
    assert say(facts(row(state="ended", ended_at=NOW))) == "launch"
    assert say(facts(row(state="ended", ended_at=NOW), wanted=False)) == "rest"


def test_a_dead_or_headless_driver_is_cleared() -> None:
    assert say(facts(row(), alive=False)) == "clear"
    assert say(facts(row(), leader_gone=True)) == "clear"
    assert say(facts(row(), alive=False, wanted=False)) == "clear"


def test_unknown_is_not_dead_while_it_beats() -> None:
    assert say(facts(row(), alive=None)) == "rest"
    quiet = row(alive_at=NOW - 40_000)
    assert say(facts(quiet, alive=None)) == "rest", "one look proves nothing"
    seen = Evidence("i1", quiet.alive_at, silent_for=11)
    assert say(facts(quiet, alive=None, evidence=seen)) == "clear"


def test_hung_needs_a_watcher_that_saw_the_silence() -> None:
    quiet = row(alive_at=NOW - 40_000)
    assert say(facts(quiet)) == "rest"
    assert say(facts(quiet, evidence=Evidence("i1", quiet.alive_at, silent_for=9))) == "rest"
    assert say(facts(quiet, evidence=Evidence("i1", quiet.alive_at, silent_for=11))) == "clear"
    assert say(facts(quiet, evidence=Evidence("i1", quiet.alive_at - 1, silent_for=11))) == "rest", "it beat meanwhile"
    assert say(facts(quiet, evidence=Evidence("i0", quiet.alive_at, silent_for=11))) == "rest", (
        "another driver's silence"
    )
    assert say(facts(row(alive_at=NOW - 20_000), evidence=Evidence("i1", NOW - 20_000, silent_for=20))) == "rest"


def test_a_starting_driver_gets_longer() -> None:
    def at(seconds: int) -> DriverRow:
        return row(state="launching", launched_at=NOW - seconds * 1000, alive_at=NOW - seconds * 1000)

    for seconds, do in ((60, "rest"), (190, "clear")):
        d = at(seconds)
        assert say(facts(d, evidence=Evidence("i1", d.alive_at, silent_for=seconds))) == do


def test_a_launcher_that_died_before_it_started_anything() -> None:
    def nameless(seconds: int) -> DriverRow:
        return row(state="launching", pid=None, pid_started=None, launched_at=NOW - seconds * 1000)

    assert say(facts(nameless(5), alive=None)) == "rest"
    assert say(facts(nameless(21), alive=None)) == "clear"


@pytest.mark.parametrize("leaving", [{"wanted": False}, {"app": AppRow("a", 1, "i1", 0)}])
def test_a_driver_gets_its_time_to_drain(leaving: dict[str, Any]) -> None:
    assert say(facts(row(), **leaving)) == "rest"
    assert say(facts(row(), **leaving, evidence=Evidence("i1", NOW, leaving_for=59))) == "rest"
    assert say(facts(row(), **leaving, evidence=Evidence("i1", NOW, leaving_for=61))) == "clear"
    assert say(facts(row(), evidence=Evidence("i1", NOW, leaving_for=61))) == "rest", "called back meanwhile"


def test_backoff_grows_with_young_deaths_only() -> None:
    def dead(n: int, lived: int, ago: int, seq: int = 0) -> DriverRow:
        return row(
            incarnation=f"i{n}", state="ended", reason="boom", release_seq=seq,
            launched_at=NOW - ago * 1000 - lived * 1000, alive_at=NOW - ago * 1000, ended_at=NOW - ago * 1000,
        )  # fmt: skip

    for n, delay in enumerate(BACKOFF):
        recent = [dead(i, lived=3, ago=1 + 100 * i) for i in range(n)]
        step = decide(facts(recent[0] if recent else None, recent=recent), Settings())
        assert step.action == ("wait" if delay > 1 else "launch"), n
        assert not delay or step.wait == pytest.approx(delay - 1)
    young = [dead(i, lived=3, ago=1 + 100 * i) for i in range(5)]
    assert say(facts(young[0], recent=young)) == "wait"
    assert "5 in a row died young" in decide(facts(young[0], recent=young), Settings()).why
    assert "boom" in decide(facts(young[0], recent=young), Settings()).why
    old = [dead(9, lived=40, ago=1), *young]
    assert say(facts(old[0], recent=old)) == "launch", "one that worked ends the row"
    released = AppRow("a", 1, "i0", 0)
    assert say(facts(young[0], recent=young, app=released)) == "launch", "new code gets its chance at once"
    later = [replace(d, ended_at=NOW - 100_000) for d in young]
    assert say(facts(later[0], recent=later)) == "launch"


# The standby of a release

ASKED = AppRow("a", 1, "i1", 0, standby="s1", standby_for=1)


def standby(seconds: float = 5, **values: Any) -> DriverRow:
    """A standby of release 1 that was launched so long ago, and has just reported."""
    given = {"incarnation": "s1", "release_seq": 1, "state": "standby", "launched_at": NOW - int(seconds * 1000)}
    return row(**{**given, **values})


@pytest.mark.parametrize(
    ("app", "found", "action"),
    [
        (replace(ASKED, standby_for=None, standby=None), None, "rest"),
        (replace(ASKED, standby_for=0, standby=None), None, "rest"),
        (replace(ASKED, standby=None), None, "launch_standby"),
        (replace(ASKED, standby="s0"), standby(incarnation="s0", release_seq=0, state="ended"), "launch_standby"),
        (replace(ASKED, standby="s0"), standby(incarnation="s0", release_seq=0), "clear_standby"),
        (ASKED, standby(state="launching"), "rest"),
        (ASKED, standby(), "rest"),
        (ASKED, standby(state="ended"), "rest"),
    ],
    ids=[
        "none is asked for", "one was asked for an earlier release", "one is asked for", "an earlier one has ended",
        "an earlier one lives", "it starts", "it is ready", "it has failed, and there is no second one",
    ],
)  # fmt: skip
def test_a_release_has_one_standby_if_the_running_driver_asks_for_it(
    app: AppRow, found: DriverRow | None, action: str
) -> None:
    assert say(facts(row(), app=app, standby=found, standby_alive=True)) == action


def test_no_standby_is_launched_of_an_app_that_drains_or_is_not_wanted() -> None:
    asked = replace(ASKED, standby=None)
    assert say(facts(row(state="draining"), app=asked)) == "rest"
    assert say(facts(row(), app=asked, wanted=False)) == "rest"
    assert say(facts(row(), app=asked, alive=False)) == "clear"


@pytest.mark.parametrize(
    ("found", "more"),
    [
        (standby(), {"wanted": False}),
        (standby(release_seq=0), {}),
        (standby(), {"standby_alive": False}),
        (standby(state="draining"), {}),
        (standby(state="launching", pid=None, seconds=21), {"standby_alive": None}),
        (standby(state="launching", seconds=181), {}),
        (standby(alive_at=NOW - 31_000, seconds=60), {}),
    ],
    ids=["unwanted", "released again", "killed", "given up", "its launcher died", "never ready", "hung"],
)
@pytest.mark.parametrize("driver", [row(), row(state="ended", ended_at=NOW - 1000)], ids=["running", "ended"])
def test_a_standby_of_no_use_is_cleared(driver: DriverRow, found: DriverRow, more: dict[str, Any]) -> None:
    given = {"standby_alive": True, **more}
    assert say(facts(driver, app=ASKED, standby=found, **given)) == "clear_standby"
    assert say(facts(driver, app=ASKED, standby=replace(found, state="ended"), **given)) != "clear_standby"


def test_a_standby_gets_its_time_to_take_over() -> None:
    def at(seconds: int, found: DriverRow) -> str:
        ended = row(state="ended", ended_at=NOW - seconds * 1000)
        return say(facts(ended, app=ASKED, standby=found, standby_alive=True))

    assert [at(1, standby()), at(4, standby()), at(6, standby())] == ["rest", "rest", "clear_standby"]
    assert at(60, standby(state="launching", seconds=74)) == "rest", "it starts, as another one would have to"
    assert at(1, standby(state="ended")) == "launch"


def test_a_driver_that_waits_for_its_standby_need_not_leave_yet() -> None:
    def leaving(found: DriverRow | None, **values: Any) -> bool:
        given = {"app": ASKED, "standby": found, **values}
        return facts(row(**given.pop("driver", {})), **given).leaving

    assert not leaving(None, app=replace(ASKED, standby=None))
    assert not leaving(standby(state="launching"))
    assert not leaving(standby(release_seq=0)), "that of the release before"
    assert leaving(standby())
    assert leaving(standby(state="ended"))
    assert leaving(standby(state="launching"), wanted=False)
    assert leaving(standby(state="launching"), driver={"state": "draining"})
    assert leaving(None, app=replace(ASKED, standby=None, standby_for=None))


# A clock of the database that was set back: what is written down seems to come


def test_a_driver_that_ended_before_the_clock_was_set_back_is_followed_at_once() -> None:
    ahead = NOW + 3_600_000
    dead = row(state="ended", launched_at=ahead - 600_000, alive_at=ahead, ended_at=ahead)
    assert say(facts(dead)) == "launch"
    young = row(state="ended", launched_at=ahead, alive_at=ahead, ended_at=ahead)
    assert say(facts(young, recent=[young] * 5)) == "launch"


def test_a_driver_that_hangs_since_before_the_clock_was_set_back_is_cleared() -> None:
    ahead = NOW + 3_600_000
    hung = row(launched_at=ahead - 600_000, alive_at=ahead)
    assert say(facts(hung, evidence=Evidence("i1", ahead, silent_for=20))) == "rest"
    assert say(facts(hung, evidence=Evidence("i1", ahead, silent_for=40))) == "clear"
