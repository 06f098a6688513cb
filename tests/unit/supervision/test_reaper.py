"""How drivers are ended: by their owner, and by the reaper."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.control import DriverRow, tables
from penstock.host import session
from penstock.settings import settings
from penstock.supervision import reaper as reaper
from tests.support.supervised_platform import ME, Platform
from tests.support.wait import wait_until

UNCAUGHT = "2026-01-01T00:00:00.000Z ERROR spark SparkUncaughtExceptionHandler: Uncaught exception in thread t"

# Stop by its owner


def test_only_the_owner_stops_a_driver(p: Platform) -> None:
    p.supervisor("one").tick()
    assert reaper.stop(p.control, "a", "two", "marked failed") is False
    assert p.driver().session.alive()
    assert reaper.stop(p.control, "a", "one", "marked failed") is True
    assert p.driver().state == "ended"
    assert p.driver().reason == "marked failed"
    assert p.driver().session.alive() is False


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "Terminating due to java.lang.OutOfMemoryError: Java heap space",
            "its JVM ran out of memory: Java heap space",
        ),
        (
            f"{UNCAUGHT}\n    org.apache.arrow.memory.OutOfMemoryException: Failure allocating buffer.",
            "its JVM ran out of memory: Failure allocating buffer.",
        ),
        ("    Terminating due to java.lang.OutOfMemoryError: what a record says", "marked failed"),
    ],
    ids=["the JVM", "Spark", "a record"],
)
def test_a_driver_that_ran_out_of_memory_ends_with_that_reason(p: Platform, said: str, reason: str) -> None:
    talks = f"import time; print({said!r}, flush=True); print('x' * 200_000, flush=True); time.sleep(600)"
    p.supervisor("one", [sys.executable, "-c", talks]).tick()
    wait_until(lambda: "xxx" in Path(p.driver().log).read_text(), what="it has spoken")
    assert reaper.stop(p.control, "a", "one", "marked failed") is True
    assert p.driver().reason == reason
    assert reason in p.control.actions()[0]["detail"]


def test_a_driver_adopted_meanwhile_is_not_killed(p: Platform) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    p.supervisor("one", [sys.executable, "-c", deaf]).tick()
    wait_until(lambda: Path(p.driver().log).read_text() == "deaf\n", what="it ignores the signal")
    p.supervisor("two").control.update_driver(p.driver().incarnation, owner="two")
    assert reaper.stop(p.control, "a", "one", "cleared", timeout=0.3) is False
    assert p.driver().session.alive()


# The reaper


def reap(p: Platform, *declared: str) -> list[str]:
    return list(reaper.reap(p.control, set(declared), ME))


def test_the_reaper_leaves_what_is_owned(p: Platform) -> None:
    p.supervisor().tick()
    assert reap(p, "a") == []
    p.control.set_desired(["s"], "off", ME)
    assert reap(p, "a") == [], "it gets its time to drain"
    assert p.driver().session.alive()


def test_the_reaper_ends_the_undeclared_the_superseded_and_the_dead(p: Platform) -> None:
    p.supervisor().tick()
    first = p.driver()
    assert p.control.claim("a", first.incarnation, host=session.host(), spec_hash="", owner="x", log="")
    [line] = reap(p, "a")
    assert "has its place" in line
    assert first.session.alive() is False
    second = p.driver()
    p.control.update_driver(second.incarnation, pid=first.pid, pid_started=first.pid_started)
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
    settings.cache_clear()
    time.sleep(0.05)
    [line] = reap(p, "a")
    assert "not wanted" in line
    assert p.driver().session.alive() is False


def test_a_stop_is_not_forgotten_behind_what_others_do(p: Platform) -> None:
    p.supervisor().tick()
    p.age(p.driver().incarnation, 3600)
    p.control.report_driver_alive(p.driver().incarnation)
    p.control.set_desired(["s"], "off", ME)
    p.crowd()
    assert reap(p, "a") == [], "it gets its time to drain"
    assert p.driver().session.alive()


def test_a_stop_that_an_older_version_wrote_down_counts_from_now(p: Platform) -> None:
    p.supervisor().tick()
    p.age(p.driver().incarnation, 3600)
    p.control.report_driver_alive(p.driver().incarnation)
    with p.control.engine.begin() as c:
        c.execute(tables.stream.update().values(desired="off", changed_at=None))
    assert reap(p, "a") == []
    assert p.control.stopped_since("a")


def test_a_driver_that_is_launched_while_the_reaper_looks_keeps_its_place(
    p: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    p.supervisor().tick()
    p.driver().session.kill()
    drivers = p.control.drivers

    def slowly(*given: Any, **more: Any) -> list[DriverRow]:
        monkeypatch.setattr(p.control, "drivers", drivers)
        p.supervisor().tick()
        return drivers(*given, **more)

    monkeypatch.setattr(p.control, "drivers", slowly)
    assert reap(p, "a") == []
    assert len(p.launched) == 2
    assert p.driver().session.alive()


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
