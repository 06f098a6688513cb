"""Standbys in the control database: which one is launched, and which one takes its app over."""

from __future__ import annotations

import pytest

from penstock.control import Actor, AppRow, Control, EndCode, tables

ME = Actor("me", "cli")


class Released:
    """App `a`, whose driver runs when it is released, and asks for a standby of release 1."""

    def __init__(self, control: Control) -> None:
        self.control = control
        with control.engine.begin() as c:
            c.execute(tables.app.insert().values(name="a", release_seq=0, restarts=0))
        self.running = self._claimed(control.claim("a", None, host="h", owner="o", log=""))
        control.release("a", ME, digest="new")
        control.request_standby("a", self.running, 1)

    def app(self) -> AppRow:
        row = self.control.app("a")
        assert row
        return row

    def standby(self) -> str:
        return self._claimed(self.control.claim_standby(self.app(), host="h", owner="o", log=""))

    def state(self, incarnation: str) -> str:
        row = self.control.driver(incarnation)
        assert row
        return row.state

    def _claimed(self, incarnation: str | None) -> str:
        assert incarnation
        return incarnation


@pytest.fixture
def released(control: Control) -> Released:
    return Released(control)


def test_a_standby_is_of_the_release_and_leaves_the_app_to_its_driver(released: Released) -> None:
    standby = released.standby()
    row = released.control.driver(standby)
    assert row
    assert (row.state, row.release_seq, row.spec_hash) == ("launching", 1, "new")
    assert (released.app().incarnation, released.app().standby) == (released.running, standby)


def test_of_two_supervisors_one_launches_a_standby(released: Released) -> None:
    seen = released.app()
    assert released.control.claim_standby(seen, host="h", owner="o", log="")
    assert released.control.claim_standby(seen, host="h", owner="o", log="") is None


def test_nobody_launches_a_standby_that_nobody_waits_for(released: Released) -> None:
    released.control.release("a", ME)
    assert released.control.claim_standby(released.app(), host="h", owner="o", log="") is None
    released.control.request_standby("a", "another driver", 2)
    released.control.request_standby("a", released.running, 1)
    assert released.app().standby_for == 1, "neither of another driver, nor of a release that another has followed"
    released.control.request_standby("a", released.running, 2)
    assert released.standby()


def test_a_standby_takes_over_when_the_driver_before_it_has_ended(released: Released) -> None:
    standby = released.standby()
    assert released.control.report_standby(standby)
    assert not released.control.take_over("a", standby)
    assert released.state(standby) == "standby"
    released.control.end_driver(released.running, "release 1", "released")
    assert released.control.take_over("a", standby)
    app = released.app()
    assert (app.incarnation, app.standby, app.standby_for, app.restarts) == (standby, None, None, 0)
    assert released.state(standby) == "launching", "it runs once its session says so, as any driver"
    assert not released.control.take_over("a", standby), "once"
    assert not released.control.give_up_standby("a", standby)
    assert released.state(standby) == "launching"


@pytest.mark.parametrize(("code", "restarts"), [("released", 0), ("lost", 1)])
def test_to_take_over_from_a_driver_that_was_lost_is_a_restart(
    released: Released, code: EndCode, restarts: int
) -> None:
    standby = released.standby()
    released.control.report_standby(standby)
    released.control.end_driver(released.running, "it ended", code)
    assert released.control.take_over("a", standby)
    assert released.app().restarts == restarts


@pytest.mark.parametrize("case", ["not ready", "released again", "given up", "ended", "another was launched"])
def test_a_standby_never_takes_over(released: Released, case: str) -> None:
    control, standby = released.control, released.standby()
    if case != "not ready":
        control.report_standby(standby)
    if case == "released again":
        control.release("a", ME)
    if case == "given up":
        assert control.give_up_standby("a", standby)
        assert not control.report_standby(standby), "it hears of it"
    if case == "ended":
        control.end_driver(standby, "killed")
    control.end_driver(released.running, "release 1", "released")
    if case == "another was launched":
        assert control.claim("a", released.running, host="h", owner="o", log="")
    before = released.app().incarnation
    assert not control.take_over("a", standby)
    assert released.app().incarnation == before
