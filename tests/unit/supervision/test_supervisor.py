"""Supervision with a real (SQLite) control database and real processes, without Airflow and Spark."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from penstock.control import EndCode, tables
from penstock.errors import ControlError
from penstock.host import session
from penstock.settings import settings
from penstock.supervision import launch
from penstock.supervision.decision.facts import Evidence, facts_of
from penstock.supervision.decision.watch import AppWatch
from penstock.supervision.reaper import stop
from tests.support.supervised_platform import ME, Platform
from tests.support.wait import wait_until

# What a watcher remembers


def test_a_watcher_forgets_while_the_database_is_away_or_itself_slept(
    p: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    p.supervisor().tick()
    d = p.driver()
    p.control.update_driver(d.incarnation, state="running", launched_at=d.launched_at - 1000)
    p.age(d.incarnation, 100)
    watch = AppWatch(p.control, "a", clock=lambda: now[0])

    def look(seconds: float = 1.0) -> str:
        now[0] += seconds
        return watch.look().action

    assert [look() for _ in range(11)] == ["rest"] * 10 + ["clear"]
    with monkeypatch.context() as m:
        m.setattr(p.control, "app", lambda _: (_ for _ in ()).throw(ControlError("away")))
        with pytest.raises(ControlError):
            look()
    assert [look() for _ in range(11)] == ["rest"] * 10 + ["clear"]
    assert look(60) == "rest", "the watcher slept: the driver may have slept with it"
    assert [look() for _ in range(10)][-1] == "clear"
    p.control.report_driver_alive(d.incarnation)
    assert look() == "rest"


def test_a_watcher_changes_nothing(p: Platform) -> None:
    assert AppWatch(p.control, "a").look().action == "launch"
    assert p.control.drivers(live=False) == []
    assert AppWatch(p.control, "unknown").look().action == "rest"
    assert p.supervisor().control is p.control


# What is done


def test_launch_adopt_and_nothing_more(p: Platform) -> None:
    assert p.supervisor("one").tick().action == "rest"
    d = p.driver()
    assert d.owner == "one"
    assert d.pid
    assert os.getsid(d.pid) == d.pid
    assert d.session.alive()
    assert p.supervisor("one").tick().action == "rest"
    assert p.supervisor("two").tick().action == "rest"
    assert p.driver().owner == "two"
    assert len(p.launched) == 1
    assert p.verbs() == ["launch", "adopt"]


def test_a_killed_driver_is_replaced_at_once(p: Platform) -> None:
    s = p.supervisor()
    s.tick()
    first = p.driver()
    assert first.session.kill()
    assert AppWatch(p.control, "a").look().action == "clear"
    assert s.tick().action == "rest"
    assert p.driver().incarnation != first.incarnation
    assert p.driver().session.alive()
    ended = p.control.driver(first.incarnation)
    assert ended
    assert ended.reason == "its process is gone"
    assert p.verbs() == ["launch", "end", "launch"]


def test_a_stopped_driver_is_killed_on_evidence_only(p: Platform) -> None:
    s = p.supervisor()
    s.tick()
    first = p.driver()
    assert first.pid
    p.control.update_driver(first.incarnation, state="running", launched_at=first.launched_at - 1000)
    os.kill(first.pid, signal.SIGSTOP)
    p.age(first.incarnation, 100)
    assert s.tick().action == "rest"
    assert p.driver().incarnation == first.incarnation
    s.tick(Evidence(first.incarnation, p.driver().alive_at, silent_for=60))
    assert first.session.alive() is False
    assert p.driver().incarnation != first.incarnation
    assert p.verbs() == ["launch", "kill", "launch"]


def test_release_waits_for_the_drain(p: Platform) -> None:
    s = p.supervisor()
    s.tick()
    first = p.driver()
    p.control.release("a", ME)
    assert s.tick().action == "rest"
    assert first.session.alive()
    p.control.end_driver(first.incarnation, "drained for release 1")
    assert first.session.kill()
    assert s.tick().action == "rest"
    second = p.driver()
    assert second.release_seq == 1
    p.control.release("a", ME)
    s.tick(Evidence(second.incarnation, second.alive_at, leaving_for=999))
    assert second.session.alive() is False
    assert p.driver().release_seq == 2


def test_a_launch_after_a_crash_counts_as_a_restart(p: Platform) -> None:
    def restarts(reason: str, code: EndCode, *, asked: bool = False) -> int:
        if asked:
            p.control.mark_driver_asked_to_leave(p.driver().incarnation)
        p.control.end_driver(p.driver().incarnation, reason, code)
        p.driver().session.kill()
        p.control.release("a", ME)  # so that nothing slows the next launch down
        p.supervisor().tick()
        row = p.control.app("a")
        assert row
        return row.restarts

    p.supervisor().tick()
    assert restarts("release 1", "released") == 0
    assert restarts("no stream of the app is wanted", "unwanted") == 0
    assert restarts("SIGTERM", "signal", asked=True) == 0
    assert restarts("SIGTERM", "signal") == 1, "from anywhere"
    assert restarts("release 6, says a record", "lost") == 2, "what is said decides nothing"
    assert restarts("anything", "released") == 2


def test_a_driver_that_is_stopped_for_a_mark_is_no_restart(p: Platform) -> None:
    p.supervisor("one").tick()
    assert stop(p.control, "a", "one", "its task was marked")
    assert p.driver().end_code == "asked"
    p.supervisor().tick()
    row = p.control.app("a")
    assert row
    assert row.restarts == 0


def test_a_stream_that_is_not_desired_is_not_launched_again(p: Platform) -> None:
    s = p.supervisor()
    s.tick()
    p.control.set_desired(["s"], "off", ME)
    p.driver().session.kill()
    assert s.tick().action == "rest"
    assert p.driver().state == "ended"
    assert len(p.launched) == 1
    p.control.set_desired(["s"], "on", ME)
    s.tick()
    assert len(p.launched) == 2


def test_a_crash_loop_is_slowed_down_and_says_so_once(p: Platform) -> None:
    s = p.supervisor()
    for _ in range(2):
        s.tick()
        p.driver().session.kill()
    assert s.tick().action == "wait"
    p.crowd()
    assert s.tick().action == "wait"
    assert len(p.launched) == 2
    waits = [a for a in p.control.actions(1000) if a["verb"] == "wait"]
    assert len(waits) == 1
    assert "2 in a row died young" in waits[0]["detail"]


def test_a_command_that_is_not_there_is_recorded(p: Platform) -> None:
    step = p.supervisor(command=["no-such-program"]).tick()
    assert step.action == "wait"
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
    assert len([d for d in p.control.drivers() if d.session.alive()]) == 1


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
    monkeypatch.setattr(p.control, "update_driver", away)
    with pytest.raises(ControlError):
        p.supervisor().tick()
    assert session.started(started[0][0]) is None


def test_the_log_is_written_and_old_ones_go(p: Platform) -> None:
    p.supervisor(command=[sys.executable, "-c", "print('hello')\nimport time; time.sleep(60)"]).tick()
    log = Path(p.driver().log)
    wait_until(lambda: log.read_text() == "hello\n")
    folder = settings().logs
    for n in range(30):
        (folder / f"driver-a-20200101T{n:06d}000000.log").touch()
    assert launch.new_log("a").parent == folder
    assert log.exists()
    assert len(list(folder.iterdir())) == launch.LOGS_KEPT - 1


def test_the_logs_of_an_app_whose_name_goes_on_stay(p: Platform) -> None:
    p.supervisor().tick()
    own, folder = Path(p.driver().log), settings().logs
    for n in range(launch.LOGS_KEPT):
        (folder / f"driver-a-24h-20990101T{n:06d}000000.log").touch()
    before = set(folder.iterdir())
    launch.new_log("a")
    assert set(folder.iterdir()) == before
    assert launch.logs_of("a") == [own]


def test_a_crash_loop_is_slowed_down_though_the_clock_was_set_back(p: Platform) -> None:
    s = p.supervisor()
    s.tick()
    p.driver().session.kill()
    s.tick()
    with p.control.engine.begin() as c:  # all so far was written an hour ahead
        t, hour = tables.driver.c, 3_600_000
        ahead = {"launched_at": t.launched_at + hour, "alive_at": t.alive_at + 2 * hour, "ended_at": t.ended_at + hour}
        c.execute(update(tables.driver).values(**ahead))
    for _ in range(3):
        p.driver().session.kill()
        step = s.tick()
    assert step.action == "wait"
    assert "2 in a row died young" in step.why
    assert 0 < step.wait <= 5
    assert len(p.launched) == 4


def test_a_release_that_was_refused_before_the_clock_was_set_back_is_asked_for_again(p: Platform) -> None:
    p.supervisor().tick()
    p.control.update_driver(p.driver().incarnation, state="running")
    for ahead, lacks in ((-60_000, []), (3_600_000, ["s"])):
        with p.control.engine.begin() as c:
            c.execute(update(tables.app).values(refused_at=p.control.now() + ahead))
        found = facts_of(p.control, "a")
        assert found
        assert found.unknown_streams == lacks
