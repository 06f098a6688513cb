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
