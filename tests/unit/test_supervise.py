"""Supervision with a real (SQLite) control database and real processes, without Airflow and Spark."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from penstock import settings as settings_module
from penstock.control import Actor, AppRow, Control, DriverRow, schema
from penstock.errors import ControlError
from penstock.settings import Settings, settings
from penstock.supervision import launch, processes, supervise
from penstock.supervision.supervise import BACKOFF, Evidence, Facts, Supervisor, Watch, decide
from tests.support import wait_until

ME = Actor("me", "cli")
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
NOW = 10_000_000


class Platform:
    """A control database with one app of one stream, and what its supervisors launched."""

    def __init__(self, tmp: Path) -> None:
        self.control = Control(f"sqlite:///{tmp / 'control.db'}")
        self.control.migrate()
        with self.control.engine.begin() as c:
            c.execute(schema.app.insert().values(name="a", release_seq=0, restarts=0))
            c.execute(schema.stream.insert().values(name="s", app="a", desired="on"))
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

    def age(self, incarnation: str, seconds: float) -> None:
        """Let a driver's beat and launch lie further back."""
        d = schema.driver
        back = int(seconds * 1000)
        with self.control.engine.begin() as c:
            c.execute(
                update(d)
                .where(d.c.incarnation == incarnation)
                .values(beat_at=d.c.beat_at - back, launched_at=d.c.launched_at - back)
            )

    def close(self) -> None:
        for d in self.control.drivers(live=False):
            processes.kill(d)
        self.control.engine.dispose()


@pytest.fixture
def p(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    settings_module.settings.cache_clear()
    made = Platform(tmp_path)
    yield made
    made.close()
    settings_module.settings.cache_clear()


def row(**values: Any) -> DriverRow:
    given: dict[str, Any] = {
        "incarnation": "i1", "app": "a", "host": "h", "pid": 7, "pid_started": 1.0, "release_seq": 0, "spec_hash": "",
        "owner": "o", "state": "running", "launched_at": NOW - 600_000, "beat_at": NOW, "ended_at": None,
        "reason": None, "log": "",
    }  # fmt: skip
    return DriverRow(**{**given, **values})


def facts(driver: DriverRow | None, **values: Any) -> Facts:
    given: dict[str, Any] = {
        "app": AppRow("a", 0, driver.incarnation if driver else None, 0), "wanted": True, "driver": driver,
        "alive": True, "headless": False, "recent": [driver] if driver else [], "now": NOW,
    }  # fmt: skip
    return Facts(**{**given, **values})


def say(f: Facts) -> str:
    return decide(f, Settings()).do


# What is decided


def test_absent_and_wanted_is_launched_and_unwanted_is_left() -> None:
    assert say(facts(None)) == "launch"
    assert say(facts(None, wanted=False)) == "rest"
    assert say(facts(row(state="ended", ended_at=NOW))) == "launch"
    assert say(facts(row(state="ended", ended_at=NOW), wanted=False)) == "rest"


def test_a_dead_or_headless_driver_is_cleared() -> None:
    assert say(facts(row(), alive=False)) == "clear"
    assert say(facts(row(), headless=True)) == "clear"
    assert say(facts(row(), alive=False, wanted=False)) == "clear"


def test_unknown_is_not_dead_while_it_beats() -> None:
    assert say(facts(row(), alive=None)) == "rest"
    quiet = row(beat_at=NOW - 40_000)
    assert say(facts(quiet, alive=None)) == "rest", "one look proves nothing"
    seen = Evidence("i1", quiet.beat_at, silent=11)
    assert say(facts(quiet, alive=None, evidence=seen)) == "clear"


def test_hung_needs_a_watcher_that_saw_the_silence() -> None:
    quiet = row(beat_at=NOW - 40_000)
    assert say(facts(quiet)) == "rest"
    assert say(facts(quiet, evidence=Evidence("i1", quiet.beat_at, silent=9))) == "rest"
    assert say(facts(quiet, evidence=Evidence("i1", quiet.beat_at, silent=11))) == "clear"
    assert say(facts(quiet, evidence=Evidence("i1", quiet.beat_at - 1, silent=11))) == "rest", "it beat meanwhile"
    assert say(facts(quiet, evidence=Evidence("i0", quiet.beat_at, silent=11))) == "rest", "another driver's silence"
    assert say(facts(row(beat_at=NOW - 20_000), evidence=Evidence("i1", NOW - 20_000, silent=20))) == "rest"


def test_a_starting_driver_gets_longer() -> None:
    def at(seconds: int) -> DriverRow:
        return row(state="launching", launched_at=NOW - seconds * 1000, beat_at=NOW - seconds * 1000)

    for seconds, do in ((60, "rest"), (190, "clear")):
        d = at(seconds)
        assert say(facts(d, evidence=Evidence("i1", d.beat_at, silent=seconds))) == do


def test_a_launcher_that_died_before_it_started_anything() -> None:
    def nameless(seconds: int) -> DriverRow:
        return row(state="launching", pid=None, pid_started=None, launched_at=NOW - seconds * 1000)

    assert say(facts(nameless(5), alive=None)) == "rest"
    assert say(facts(nameless(21), alive=None)) == "clear"


@pytest.mark.parametrize("leaving", [{"wanted": False}, {"app": AppRow("a", 1, "i1", 0)}])
def test_a_driver_gets_its_time_to_drain(leaving: dict[str, Any]) -> None:
    assert say(facts(row(), **leaving)) == "rest"
    assert say(facts(row(), **leaving, evidence=Evidence("i1", NOW, leaving=59))) == "rest"
    assert say(facts(row(), **leaving, evidence=Evidence("i1", NOW, leaving=61))) == "clear"
    assert say(facts(row(), evidence=Evidence("i1", NOW, leaving=61))) == "rest", "called back meanwhile"


def test_backoff_grows_with_young_deaths_only() -> None:
    def dead(n: int, lived: int, ago: int, seq: int = 0) -> DriverRow:
        return row(
            incarnation=f"i{n}", state="ended", reason="boom", release_seq=seq,
            launched_at=NOW - ago * 1000 - lived * 1000, beat_at=NOW - ago * 1000, ended_at=NOW - ago * 1000,
        )  # fmt: skip

    for n, delay in enumerate(BACKOFF):
        recent = [dead(i, lived=3, ago=1 + 100 * i) for i in range(n)]
        step = decide(facts(recent[0] if recent else None, recent=recent), Settings())
        assert step.do == ("wait" if delay > 1 else "launch"), n
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


# What a watcher remembers


def test_a_watcher_forgets_while_the_database_is_away_or_itself_slept(
    p: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    p.supervisor().tick()
    d = p.driver()
    p.control.driver_set(d.incarnation, state="running", launched_at=d.launched_at - 1000)
    p.age(d.incarnation, 100)
    watch = Watch(p.control, "a", clock=lambda: now[0])

    def look(seconds: float = 1.0) -> str:
        now[0] += seconds
        return watch.look().do

    assert [look() for _ in range(11)] == ["rest"] * 10 + ["clear"]
    with monkeypatch.context() as m:
        m.setattr(p.control, "app", lambda _: (_ for _ in ()).throw(ControlError("away")))
        with pytest.raises(ControlError):
            look()
    assert [look() for _ in range(11)] == ["rest"] * 10 + ["clear"]
    assert look(60) == "rest", "the watcher slept: the driver may have slept with it"
    assert [look() for _ in range(10)][-1] == "clear"
    p.control.driver_beat(d.incarnation)
    assert look() == "rest"


def test_a_watcher_changes_nothing(p: Platform) -> None:
    assert Watch(p.control, "a").look().do == "launch"
    assert p.control.drivers(live=False) == []
    assert Watch(p.control, "unknown").look().do == "rest"
    assert p.supervisor().control is p.control


# What is done


def test_launch_adopt_and_nothing_more(p: Platform) -> None:
    assert p.supervisor("one").tick().do == "rest"
    d = p.driver()
    assert d.owner == "one"
    assert d.pid
    assert os.getsid(d.pid) == d.pid
    assert processes.alive(d)
    assert p.supervisor("one").tick().do == "rest"
    assert p.supervisor("two").tick().do == "rest"
    assert p.driver().owner == "two"
    assert len(p.launched) == 1
    assert p.verbs() == ["launch", "adopt"]


def test_a_killed_driver_is_replaced_at_once(p: Platform) -> None:
    s = p.supervisor()
    s.tick()
    first = p.driver()
    assert processes.kill(first)
    assert Watch(p.control, "a").look().do == "clear"
    assert s.tick().do == "rest"
    assert p.driver().incarnation != first.incarnation
    assert processes.alive(p.driver())
    ended = p.control.driver(first.incarnation)
    assert ended
    assert ended.reason == "its process is gone"
    assert p.verbs() == ["launch", "end", "launch"]


def test_a_stopped_driver_is_killed_on_evidence_only(p: Platform) -> None:
    s = p.supervisor()
    s.tick()
    first = p.driver()
    assert first.pid
    p.control.driver_set(first.incarnation, state="running", launched_at=first.launched_at - 1000)
    os.kill(first.pid, signal.SIGSTOP)
    p.age(first.incarnation, 100)
    assert s.tick().do == "rest"
    assert p.driver().incarnation == first.incarnation
    s.tick(Evidence(first.incarnation, p.driver().beat_at, silent=60))
    assert processes.alive(first) is False
    assert p.driver().incarnation != first.incarnation
    assert p.verbs() == ["launch", "kill", "launch"]


def test_release_waits_for_the_drain(p: Platform) -> None:
    s = p.supervisor()
    s.tick()
    first = p.driver()
    p.control.release("a", ME)
    assert s.tick().do == "rest"
    assert processes.alive(first)
    p.control.driver_ended(first.incarnation, "drained for release 1")
    assert processes.kill(first)
    assert s.tick().do == "rest"
    second = p.driver()
    assert second.release_seq == 1
    p.control.release("a", ME)
    s.tick(Evidence(second.incarnation, second.beat_at, leaving=999))
    assert processes.alive(second) is False
    assert p.driver().release_seq == 2


def test_unwanted_is_not_launched_again(p: Platform) -> None:
    s = p.supervisor()
    s.tick()
    p.control.set_desired(["s"], "off", ME)
    processes.kill(p.driver())
    assert s.tick().do == "rest"
    assert p.driver().state == "ended"
    assert len(p.launched) == 1
    p.control.set_desired(["s"], "on", ME)
    s.tick()
    assert len(p.launched) == 2


def test_a_crash_loop_is_slowed_down_and_says_so_once(p: Platform) -> None:
    s = p.supervisor()
    for _ in range(2):
        s.tick()
        processes.kill(p.driver())
    assert s.tick().do == "wait"
    assert s.tick().do == "wait"
    assert len(p.launched) == 2
    waits = [a for a in p.control.actions() if a["verb"] == "wait"]
    assert len(waits) == 1
    assert "2 in a row died young" in waits[0]["detail"]


def test_a_command_that_is_not_there_is_recorded(p: Platform) -> None:
    step = p.supervisor(command=["no-such-program"]).tick()
    assert step.do == "wait"
    assert "no such program" in (p.driver().reason or "")
    assert "could not be launched" in p.control.actions()[1]["detail"]


def test_two_supervisors_at_once_launch_once(p: Platform) -> None:
    gate = threading.Barrier(4)

    def run(n: int) -> None:
        gate.wait()
        p.supervisor(f"s{n}").tick()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(p.launched) == 1
    assert len([d for d in p.control.drivers() if processes.alive(d)]) == 1


def test_a_database_that_goes_away_in_mid_launch_leaves_no_process(
    p: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[int, float]] = []
    real = launch.start

    def start(*args: Any, **kwargs: Any) -> tuple[int, float]:
        started.append(real(*args, **kwargs))
        return started[-1]

    def away(*_: Any, **__: Any) -> None:
        raise ControlError("away")

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr(p.control, "driver_set", away)
    with pytest.raises(ControlError):
        p.supervisor().tick()
    assert processes.started(started[0][0]) is None


def test_the_log_is_written_and_old_ones_go(p: Platform) -> None:
    p.supervisor(command=[sys.executable, "-c", "print('hello')\nimport time; time.sleep(60)"]).tick()
    log = Path(p.driver().log)
    wait_until(lambda: log.read_text() == "hello\n")
    folder = settings().logs
    for n in range(30):
        (folder / f"driver-a-20200101T{n:06d}000000.log").touch()
    assert launch.new_log("a").parent == folder
    assert log.exists()
    assert len(list(folder.iterdir())) == launch.KEPT_LOGS - 1


# Stop by its owner


def test_only_the_owner_stops_a_driver(p: Platform) -> None:
    p.supervisor("one").tick()
    assert supervise.stop(p.control, "a", "two", "marked failed") is False
    assert processes.alive(p.driver())
    assert supervise.stop(p.control, "a", "one", "marked failed") is True
    assert p.driver().state == "ended"
    assert p.driver().reason == "marked failed"
    assert processes.alive(p.driver()) is False


def test_a_driver_adopted_meanwhile_is_not_killed(p: Platform) -> None:
    deaf = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
    p.supervisor("one", deaf).tick()
    time.sleep(0.5)  # until it ignores the signal
    p.supervisor("two").control.driver_set(p.driver().incarnation, owner="two")
    assert supervise.stop(p.control, "a", "one", "cleared", patience=0.3) is False
    assert processes.alive(p.driver())


# The reaper


def reap(p: Platform, *declared: str) -> list[str]:
    return list(supervise.reap(p.control, set(declared), ME))


def test_the_reaper_leaves_what_is_owned(p: Platform) -> None:
    p.supervisor().tick()
    assert reap(p, "a") == []
    p.control.set_desired(["s"], "off", ME)
    assert reap(p, "a") == [], "it gets its time to drain"
    assert processes.alive(p.driver())


def test_the_reaper_ends_the_undeclared_the_superseded_and_the_dead(p: Platform) -> None:
    p.supervisor().tick()
    first = p.driver()
    assert p.control.claim("a", first.incarnation, host=processes.host(), spec_hash="", owner="x", log="")
    [line] = reap(p, "a")
    assert "has its place" in line
    assert processes.alive(first) is False
    second = p.driver()
    p.control.driver_set(second.incarnation, pid=first.pid, pid_started=first.pid_started)
    [line] = reap(p, "a")
    assert "its process is gone" in line
    p.control.release("a", ME)  # so that nothing slows the next launch down
    p.supervisor().tick()
    [line] = reap(p)
    assert "not declared" in line
    assert p.control.drivers() == []


def test_the_reaper_ends_the_unwanted_that_stays(p: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    p.supervisor().tick()
    p.control.set_desired(["s"], "off", ME)
    monkeypatch.setenv("PENSTOCK_DRAIN_TIMEOUT", "0.01")
    settings_module.settings.cache_clear()
    time.sleep(0.05)
    [line] = reap(p, "a")
    assert "not wanted" in line
    assert processes.alive(p.driver()) is False


def test_the_reaper_does_not_judge_another_host(p: Platform) -> None:
    p.supervisor().tick()
    d = p.driver()
    assert p.control.claim("a", d.incarnation, host="elsewhere", spec_hash="", owner="x", log="")
    other = p.driver()
    assert p.control.claim("a", other.incarnation, host="elsewhere", spec_hash="", owner="x", log="")
    reap(p, "a")
    left = {r.incarnation for r in p.control.drivers()}
    assert other.incarnation in left
    assert d.incarnation not in left
