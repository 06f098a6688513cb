"""What a driver reports of its streams when one of them cannot say how it is."""

from __future__ import annotations

import logging
import signal
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from penstock import catalog
from penstock.control import ProgressRow, tables
from penstock.errors import BrokerError, ControlError
from penstock.settings import settings
from penstock.supervision import lifecycle
from penstock.supervision.lease_keeper import LeaseHolder
from penstock.supervision.lifecycle import Driver
from tests.support.supervised_platform import ME, Platform


class Bare(Driver):
    """A driver whose runs a test gives it."""

    def create_run(self, name: str, figures: ProgressRow) -> Any: ...


class Told:
    """A run that reports a row, or raises."""

    def __init__(self, said: ProgressRow | Exception) -> None:
        self.offsets: dict[str, dict[int, int]] = {}
        self.said = said
        self.measured = False

    @property
    def active(self) -> bool:
        return True

    def report(self) -> ProgressRow:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def lag(self, *_: Any) -> None:
        self.report()
        self.measured = True


@pytest.fixture
def made(p: Platform, monkeypatch: pytest.MonkeyPatch) -> Bare:
    """The driver of app `a`, with the streams `bad` and `s`; the first cannot say how it is."""
    monkeypatch.setattr(catalog, "load_partial", lambda **_: (SimpleNamespace(apps={}), []))
    found = Bare("a", "i", p.control)
    found._runs = {"bad": Told(RuntimeError("no figures")), "s": Told(ProgressRow("s", "a", "i", rows_in=7))}  # type: ignore[dict-item]
    return found


def test_a_run_that_cannot_report_keeps_no_other_from_it(
    p: Platform, made: Bare, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        made._report(keep=True)
    assert {name: row.rows_in for name, row in p.control.progress().items()} == {"s": 7}
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        "stream bad cannot be reported: RuntimeError: no figures"
    ], "once, not at each report"


def test_the_path_of_released_code_does_not_hide_the_reason(p: Platform, made: Bare) -> None:
    row = ProgressRow(
        "s", "a", "i", error=f"{settings().project}/sql/captures/shops.sql:3:1: connection shop is missing"
    )
    made._runs = {"s": Told(row)}  # type: ignore[dict-item]
    made._report(keep=True)
    assert p.control.progress()["s"].error == "sql/captures/shops.sql:3:1: connection shop is missing"


def test_a_driver_continues_to_report_after_an_unexpected_error(
    p: Platform, made: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = p.control.report
    answers = iter([RuntimeError("odd"), None])

    def odd(rows: list[ProgressRow], *, keep: bool) -> dict[str, str]:
        if error := next(answers):
            raise error
        return report(rows, keep=keep)

    monkeypatch.setattr(p.control, "report", odd)
    made._report(keep=False)
    made._report(keep=False)
    assert p.control.progress()["s"].rows_in == 7


def test_a_run_whose_lag_cannot_be_measured_keeps_no_other_from_it(made: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("end_offsets", "log_end_offsets", "admin"):
        monkeypatch.setattr(lifecycle, name, lambda *_: {})
    made._measure_lag()
    assert made._runs["s"].measured  # type: ignore[attr-defined]


@pytest.mark.parametrize("answers", [True, False], ids=["", "a broker that is down keeps no lease"])
def test_the_lag_of_a_stopped_stream_counts_its_last_batch(
    made: Bare, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    asked: list[set[tuple[str, int]]] = []

    def ends(_client: object, partitions: set[tuple[str, int]], _broker: str) -> dict[tuple[str, int], int]:
        asked.append(partitions)
        if not answers:
            raise BrokerError("no broker")
        return {}

    run: Any = made._runs["s"]
    monkeypatch.setattr(run, "stop", lambda: run.offsets.update(orders={0: 1}), raising=False)
    for name, function in (("end_offsets", ends), ("log_end_offsets", ends), ("admin", lambda _: None)):
        monkeypatch.setattr(lifecycle, name, function)
    made._measure_lag()
    made._drain()
    assert ({("orders", 0)} in asked, run.measured) == (answers, answers)


def test_a_stream_that_has_not_heard_where_its_topics_end_is_not_idle(
    p: Platform, made: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("end_offsets", "log_end_offsets", "admin"):
        monkeypatch.setattr(lifecycle, name, lambda *_: {})
    made._runs = {"s": Told(ProgressRow("s", "a", "i", state="idle"))}  # type: ignore[dict-item]
    made._report(keep=False)
    assert p.control.progress()["s"].state == "starting"
    made._measure_lag()
    made._report(keep=False)
    assert p.control.progress()["s"].state == "idle"


def test_a_driver_works_until_its_standby_is_ready(p: Platform, made: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    over: list[bool] = [False, True]
    monkeypatch.setattr(made._standby_wait, "is_over", lambda *_: over.pop(0))
    made._runs = {}
    made._look()
    assert over == [False, True], "there is no release"
    p.control.release("a", ME)
    made._look()
    assert not made._leaving.is_set()
    made._look()
    assert made._why == ("release 1", "released")


def begin_cut(p: Platform) -> str:
    """The id of a replacement of stream `s` whose cut has begun."""
    with p.control.engine.begin() as c:
        c.execute(tables.app.update().values(digest="old"))
    row = p.control.request_replacement("s", "a", "new", "old", ME, {})
    p.control.move_replacement(row.id, "following")
    assert p.control.begin_cut(row.id)
    return row.id


@pytest.mark.parametrize(("release", "reconciled"), [(0, ["s"]), (1, [])], ids=["the version before", "the next"])
def test_only_the_driver_of_the_cut_waits_for_its_end(
    p: Platform, made: Bare, monkeypatch: pytest.MonkeyPatch, release: int, reconciled: list[str]
) -> None:
    """That of the version before works until its standby is ready, also if its query has to be started again."""
    begin_cut(p)
    started: list[str] = []
    run = SimpleNamespace(active=False, running=True, reconcile=lambda: started.append("s"))
    made._runs, made._release = {"s": run}, release
    monkeypatch.setattr(made._standby_wait, "is_over", lambda *_: False)
    monkeypatch.setattr(made._leases, "owns", lambda _: True)
    made._look()
    assert (started, made._replaced) == (reconciled, "" if reconciled else "s")


def test_a_driver_that_no_standby_can_follow_drains_at_once(p: Platform, made: Bare) -> None:
    made._runs = {}
    p.control.release("a", ME)
    made._look()
    assert made._why == ("release 1", "released")


def test_a_driver_whose_streams_have_not_begun_waits_for_a_database_that_is_down(
    p: Platform, made: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> NoReturn:
        raise ControlError("the control database does not answer")

    started: list[str] = []
    made._runs = {"s": SimpleNamespace(active=False, running=False, reconcile=lambda: started.append("s"))}
    monkeypatch.setattr(made._leases, "owns", lambda _: True)
    with monkeypatch.context() as patch:
        patch.setattr(p.control, "open_replacement", fail)
        made._look()
    assert (made._leaving.is_set(), started) == (False, [])
    made._look()
    assert started == ["s"]


def test_a_driver_that_was_given_up_while_nobody_could_kill_it_drains(
    p: Platform, made: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnceError(Exception):
        pass

    def end(_: float) -> NoReturn:
        raise OnceError

    monkeypatch.setattr(lifecycle, "time", SimpleNamespace(sleep=end))
    monkeypatch.setattr(made, "_report_resources", lambda: None)
    made._runs = {}
    p.supervisor().tick()
    made.incarnation = p.driver().incarnation
    for given_up in (False, True):
        if given_up:
            p.control.end_driver(made.incarnation, "silent for 30 s; it may run on another host")
        with pytest.raises(OnceError):
            made._keep()
        assert made._leaving.is_set() == given_up
    assert made._why == ("it was given up", "asked")


@pytest.mark.parametrize("state", ["running", "ended"])
def test_an_app_goes_back_to_the_driver_that_has_its_leases_unless_it_was_given_up(
    p: Platform, made: Bare, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    p.supervisor().tick()
    holder = p.driver().incarnation
    p.control.update_driver(holder, host="another", state=state)
    p.control.take_lease("s", holder, 15)
    made.incarnation = p.control.claim("a", holder, host="h", owner="one", log="") or ""
    made._names, made._leases = ["s"], LeaseHolder(p.control, ["s"], made.incarnation)
    assert made.run() == lifecycle.LEASES_ELSEWHERE
    assert p.driver().incarnation == (holder if state == "running" else made.incarnation)


def test_a_driver_looks_more_often_while_one_of_its_streams_is_replaced(
    made: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        made._replaced = "s"
        if len(waits) == 2:
            made._leave("it is over", "asked")

    monkeypatch.setattr(made._leaving, "wait", wait)
    monkeypatch.setattr(made, "_look", lambda: None)
    monkeypatch.setattr(made, "_measure_lag", lambda: None)
    made._loop()
    assert waits == [lifecycle.LOOK_EVERY, lifecycle.CUT_LOOK_EVERY]


def test_a_stream_that_is_replaced_waits_for_no_other_start(
    p: Platform, made: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = begin_cut(p)
    monkeypatch.setattr(p.control, "desired", lambda _: dict.fromkeys("rst", "on"))
    started: list[str] = []

    def run(name: str) -> Any:
        one = SimpleNamespace(active=False, running=True)

        def reconcile() -> None:
            if not one.active:
                started.append(name)
                one.active = True

        one.reconcile = reconcile
        return one

    made._runs, made._release = {name: run(name) for name in ("r", "s", "t")}, 1
    monkeypatch.setattr(made._leases, "owns", lambda _: True)
    made._look()
    assert started == ["r"], "the end of the cut is looked for before the next start"
    p.control.move_replacement(cut, "cut")
    made._look()
    assert started == ["r", "s", "t"]


def test_streams_of_an_app_end_their_batches_at_the_same_time(made: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "admin", lambda _: None)
    both = threading.Barrier(2)
    for run in made._runs.values():
        monkeypatch.setattr(run, "stop", lambda: both.wait(10), raising=False)
    made._drain()
    assert not both.broken
