"""What the process of a replacement does about a step that fails."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.control import Control, ProgressRow, ReplacementRow
from penstock.engine.replacement import driver
from penstock.engine.replacement.driver import MAX_INTERRUPTED, ReplacementRun
from penstock.engine.replacement.replacement import Replacement, ReplacementProgress
from penstock.engine.replacement.step_error import StepInterrupted
from penstock.errors import PenstockError
from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput

STREAM = Stream(
    "replaced", "tests", {"given": Input(Topic("given"))}, lambda given: given.select(F.col("value").alias("k")),
    TopicOutput(Topic("out"), key="k", value="k"), Stateless(),
)  # fmt: skip


class NoReplacement:
    """A control database that has none."""

    def replacement_of(self, _name: str) -> None:
        return None


class FailingRun(ReplacementRun):
    """Its steps fail one after the other; what makes the replacement fail is kept."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__(STREAM, cast(Control, NoReplacement()), ProgressRow("replaced", "tests", "1"), ())
        self.errors, self.ended_by = errors, cast("Exception | None", None)

    def _step(self, stopping: threading.Event) -> float | None:  # noqa: ARG002
        if not self.errors:
            return None
        raise self.errors.pop(0)

    def _fail(self, error: Exception) -> float:
        self.ended_by, self.errors = error, []
        return 0.0

    def work(self) -> Exception | None:
        self._work(threading.Event())
        return self.ended_by


class StoppedRun(FailingRun):
    """It is stopped in the middle of a step."""

    def _step(self, stopping: threading.Event) -> float | None:
        stopping.set()
        raise PenstockError("the query was stopped")


class LongStep:
    """A replacement whose step takes until it is interrupted."""

    def __init__(self) -> None:
        self.new, self.begun, self._ended = self, threading.Event(), threading.Event()

    def interrupt(self) -> None:
        self._ended.set()

    def advance(self) -> None:
        self.begun.set()
        self._ended.wait(60)

    def close(self) -> None:
        """Nothing to close."""


class LongRun(FailingRun):
    """It has one step, which takes long."""

    def __init__(self, step: LongStep) -> None:
        super().__init__([])
        self._replacement = cast(Replacement, step)

    def _step(self, stopping: threading.Event) -> float | None:  # noqa: ARG002
        assert self._replacement
        self._replacement.advance()
        return 0.0


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "RETRY_EVERY", 0.0)


def interrupted(times: int) -> list[Exception]:
    return [StepInterrupted("a step failed") for _ in range(times)]


def test_a_step_that_was_interrupted_runs_again() -> None:
    assert FailingRun(interrupted(MAX_INTERRUPTED)).work() is None


def test_a_step_that_is_interrupted_each_time_ends_the_replacement() -> None:
    assert isinstance(FailingRun(interrupted(MAX_INTERRUPTED + 1)).work(), StepInterrupted)


def test_another_error_ends_it_at_once() -> None:
    error = PenstockError("rows differ")
    assert FailingRun([error, *interrupted(1)]).work() is error


def test_a_step_that_is_stopped_is_no_failure() -> None:
    assert StoppedRun([]).work() is None


def test_a_stop_ends_the_step_that_runs() -> None:
    step = LongStep()
    run = LongRun(step)
    run.start()
    assert step.begun.wait(10)
    began = time.monotonic()
    run.stop()
    assert not run.active
    assert time.monotonic() - began < 10


def test_how_much_there_is_to_read_is_reported_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = SimpleNamespace(open=lambda: None, progress=ReplacementProgress(total=70, lag=70))
    for name in ("open_session", "session_for", "find_archive"):
        monkeypatch.setattr(driver, name, lambda *_: None)
    monkeypatch.setattr(driver, "Replacement", lambda *_: opened)
    reported: list[dict[str, Any]] = []
    control = SimpleNamespace(report_replacement=lambda _id, **values: reported.append(values))
    run = ReplacementRun(STREAM, cast(Control, control), ProgressRow("replaced", "tests", "1"), ())
    row = SimpleNamespace(id="r", app="tests", options={}, figures={})
    run._open(cast(ReplacementRow, row))
    [values] = reported
    assert values.keys() == {"figures"}, "why a step runs again stays"
    assert (values["figures"]["records"], values["figures"]["total"], values["figures"]["lag"]) == (0, 70, 70)
    row.figures = values["figures"]
    run._open(cast(ReplacementRow, row))
    assert len(reported) == 1, "a later process does not begin anew"


class CutControl:
    """A control database in which the stream's last batch was committed at `batch_at`, and the time is 70,000 ms."""

    def __init__(self, *batch_at: int) -> None:
        self.batch_at, self.figures = list(batch_at), dict[str, Any]()

    def replacement(self, _id: str) -> SimpleNamespace:
        return SimpleNamespace(figures={"records": 3})

    def move_replacement(self, *_: object, **__: object) -> bool:
        return True

    def progress(self, _app: str) -> dict[str, SimpleNamespace]:
        at = self.batch_at.pop(0) if len(self.batch_at) > 1 else self.batch_at[0]
        return {"replaced": SimpleNamespace(batch_at=at)}

    def report_replacement(self, _id: str, *, figures: dict[str, Any]) -> None:
        self.figures = figures

    def now(self) -> int:
        return 70_000


@pytest.mark.parametrize(
    ("batch_at", "pause"),
    [((10_000, 10_000, 12_500), {"pause_ms": 2_500}), ((10_000,), {"pause_over_ms": 60_000}), ((0,), None)],
    ids=["ended", "longer", "no batch before"],
)
def test_the_pause_of_the_output(
    batch_at: tuple[int, ...], pause: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PAUSE_TIMEOUT", 0.3)
    monkeypatch.setattr(driver, "CUT_EVERY", 0.01)
    control = CutControl(*batch_at)
    run = ReplacementRun(STREAM, cast(Control, control), ProgressRow("replaced", "tests", "1"), ())
    run._end_cut(cast(ReplacementRow, SimpleNamespace(id="1", app="tests")), {"cut_ms": 7})
    assert control.figures == ({"records": 3, "cut_ms": 7, **pause} if pause else {})
