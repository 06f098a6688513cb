"""The leases of a driver beside a command that runs one of its captures in the foreground."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from penstock import catalog
from penstock.capture.driver import CaptureDriver
from penstock.capture.runner import CaptureRun
from penstock.control import ProgressRow, tables
from penstock.errors import ControlError, LeaseHeld, LeaseLost
from penstock.supervision.lease_keeper import LeaseHolder
from tests.support.supervised_platform import ME, Platform

COMMAND = "cli-1"


class Resting(CaptureRun):
    """A capture whose thread a test ends."""

    def __init__(self, name: str) -> None:
        super().__init__(SimpleNamespace(name=name, fingerprint=""), None, "", ProgressRow(name, "a", "i"))  # type: ignore[arg-type]
        self._stop_timeout = 0.01

    def reconcile(self) -> None:
        if not self.active:
            self.start()

    def _work(self, stopping: Any) -> None:
        stopping.wait(60)


@pytest.fixture
def made(p: Platform, monkeypatch: pytest.MonkeyPatch) -> CaptureDriver:
    """A driver of the captures `s` and `t`, which runs and has their leases."""
    with p.control.engine.begin() as c:
        c.execute(tables.stream.insert().values(name="t", app="a", desired="on"))
    monkeypatch.setattr(catalog, "load_partial", lambda **_: (SimpleNamespace(apps={}), []))
    found = CaptureDriver("a", "i", p.control)
    found._runs = {name: Resting(name) for name in "st"}
    found._leases = LeaseHolder(p.control, "st", "i")
    found._leases.take()
    found._look()
    return found


def active(driver: CaptureDriver) -> list[str]:
    return [name for name, run in driver._runs.items() if run.active]


def test_no_lease_is_given_up_while_it_is_not_known_what_is_wanted(
    p: Platform, made: CaptureDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> NoReturn:
        raise ControlError("the control database does not answer")

    for run in made._runs.values():
        run.stop()
    made._desired = {}
    with monkeypatch.context() as patch:
        patch.setattr(p.control, "open_replacement", fail)
        made._look()
    assert set(p.control.leases()) == {"s", "t"}


def test_a_command_may_run_a_capture_that_is_stopped(
    p: Platform, made: CaptureDriver, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LeaseHeld):
        p.control.take_lease("s", COMMAND, 15)
    p.control.set_desired(["s"], "off", ME)
    for _ in range(2):
        made._look()
    p.control.take_lease("s", COMMAND, 15)
    made._leases.renew()
    assert active(made) == ["t"]
    p.control.set_desired(["s"], "on", ME)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            made._look()
    assert active(made) == ["t"]
    assert len([r for r in caplog.records if "s is not started" in r.getMessage()]) == 1, "once, not at each look"
    p.control.drop_leases(["s"], COMMAND)
    made._look()
    assert active(made) == ["s", "t"]
    made._leases.renew()
    with pytest.raises(LeaseHeld):
        p.control.take_lease("s", COMMAND, 15)
    for run in made._runs.values():
        run.stop()


def test_a_thread_that_does_not_end_keeps_the_lease(p: Platform, made: CaptureDriver) -> None:
    hung = made._runs["s"]
    assert isinstance(hung, CaptureRun)
    thread, event = hung._thread, hung._stopping
    hung._stopping = type(event)()
    p.control.set_desired(["s"], "off", ME)
    for _ in range(2):
        made._look()
    assert active(made) == ["t"]
    with pytest.raises(LeaseHeld):
        p.control.take_lease("s", COMMAND, 15)
    event.set()
    assert thread is not None
    thread.join()
    made._look()
    p.control.take_lease("s", COMMAND, 15)
    made._runs["t"].stop()


def test_the_driver_starts_beside_a_command_and_not_beside_another_driver(p: Platform) -> None:
    p.control.take_lease("s", COMMAND, 15)
    leases = LeaseHolder(p.control, "st", "i")
    leases.take()
    assert (leases.owns("s"), leases.owns("t")) == (False, True)
    p.control.drop_leases(["s"], COMMAND)
    assert leases.owns("s")
    leases.drop()
    assert p.control.leases() == {}
    other = p.control.claim("a", None, host="elsewhere", spec_hash="", owner="o", log="")
    assert other
    p.control.take_lease("s", other, 15)
    with pytest.raises(LeaseHeld):
        LeaseHolder(p.control, "st", "i").take()
    p.control.drop_leases(["s"], other)
    leases.take()
    p.control.drop_leases(["s"], "i")
    p.control.take_lease("s", other, 15)
    with pytest.raises(LeaseLost):
        leases.owns("s")
