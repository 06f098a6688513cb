"""A stream that is up, and whose broker says nothing any more."""

from __future__ import annotations

import time
from threading import Lock
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.control import ProgressRow
from penstock.engine.progress import broker_watch
from penstock.engine.progress.broker_watch import BrokerWatch
from penstock.engine.progress.caught_up import CaughtUpTracker
from penstock.engine.progress.metrics import StreamMetrics
from penstock.engine.query.run_state import RunEvent, RunPhase, RunState
from penstock.engine.query.stream_run import StreamRun

ENDS = {("a", 0): 5, ("a", 1): 7}


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> StreamRun:
    """One that has just heard of both partitions of its topic, and whose query is up."""
    monkeypatch.setattr(broker_watch, "BROKER_SILENT_S", 0.05)
    made: Any = StreamRun.__new__(StreamRun)
    made.stream = SimpleNamespace(name="s")
    made.offsets = {"a": {0: 5, 1: 7}}
    made._metrics = StreamMetrics(ProgressRow("s", "app", "i", state="idle"))
    made._caught_up, made._broker = CaughtUpTracker(None, waits=False), BrokerWatch()
    made._query, made._state, made._changing = SimpleNamespace(isActive=True), RunState(RunPhase.RUNNING), Lock()
    made._committed_at = 0.0
    return cast("StreamRun", made)


def looked(stream: StreamRun, times: int) -> str:
    """Its state when its driver has looked after it so many times more, and the time has passed."""
    for _ in range(times):
        stream._broker.tick()
    time.sleep(0.1)
    stream._check_broker()
    return stream.figures.state


def test_a_stream_whose_broker_is_silent_fails_until_it_is_heard_again(stream: StreamRun) -> None:
    assert looked(stream, broker_watch.MAX_UNANSWERED_TICKS + 1) == "failing"
    assert "waits for the broker, which does not say how far its topics reach" in (stream.figures.error or "")
    # Of one partition it hears nothing.
    stream.lag(stream.offsets, {("a", 0): 5}, ENDS, 0.0)
    assert looked(stream, 0) == "failing"
    stream.lag(stream.offsets, ENDS, ENDS, 0.0)
    stream._check_broker()
    assert stream.figures.state == "idle"


def test_a_driver_that_asked_nobody_and_a_stream_that_writes_tell_nothing_of_the_broker(stream: StreamRun) -> None:
    """Another stream of its app may have held the driver up."""
    assert looked(stream, broker_watch.MAX_UNANSWERED_TICKS) == "idle"
    stream._broker.tick()
    stream._committed_at = time.monotonic()
    stream._check_broker()
    assert stream.figures.state == "idle"


def test_what_its_query_failed_with_stays_the_reason(stream: StreamRun) -> None:
    assert looked(stream, broker_watch.MAX_UNANSWERED_TICKS + 1) == "failing"
    stream._apply(RunEvent.FAILED, error="no")
    stream.lag(stream.offsets, ENDS, ENDS, 0.0)
    stream._check_broker()
    assert (stream.figures.state, stream.figures.error) == ("failing", "no")


def test_one_whose_query_has_ended_is_not_well_because_of_that(stream: StreamRun) -> None:
    """Its driver may be held up for long by another stream before it says what the query ended with."""
    assert looked(stream, broker_watch.MAX_UNANSWERED_TICKS + 1) == "failing"
    stream._query = cast("Any", SimpleNamespace(isActive=False))
    assert looked(stream, 0) == "failing"


def test_it_is_through_no_input_that_an_open_transaction_hides(stream: StreamRun) -> None:
    """Others may have committed behind it, and beats must not move time past their records."""
    asked = time.monotonic()
    stream.lag(stream.offsets, ENDS, {**ENDS, ("a", 1): 9}, asked)
    assert stream._caught_up.behind_ms is None
    stream.lag({"a": {0: 5, 1: 9}}, ENDS, ENDS, asked)
    stream._caught_up.batch_written({"a": {0: 5, 1: 9}})
    assert stream._caught_up.behind_ms is not None
