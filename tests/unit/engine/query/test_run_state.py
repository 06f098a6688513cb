"""The phases of a stream's run."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.engine.query.run_state import RETRY_DELAYS_S, RunEvent, RunPhase, RunState

E = RunEvent


def after(*events: RunEvent) -> RunState:
    state = RunState()
    for event in events:
        state = state.after(event)
    return state


@pytest.mark.parametrize(
    ("events", "published"),
    [
        ([], "stopped"),
        ([E.START], "starting"),
        ([E.START, E.LOADING], "loading"),
        ([E.START, E.LOADING, E.LOADED], "idle"),
        ([E.START, E.STARTED], "idle"),
        ([E.START, E.STARTED, E.STORE_WAITS], "waiting"),
        ([E.START, E.STARTED, E.STORE_WAITS, E.RESUMED], "idle"),
        ([E.START, E.STARTED, E.STALLED], "failing"),
        ([E.START, E.STARTED, E.BROKER_SILENT], "failing"),
        ([E.START, E.STARTED, E.BROKER_SILENT, E.BROKER_ANSWERED], "idle"),
        ([E.START, E.FAILED], "failing"),
        ([E.START, E.BLOCKED], "blocked"),
        ([E.START, E.FAILED, E.START, E.STARTED], "failing"),
        ([E.START, E.BLOCKED, E.START, E.STARTED], "blocked"),
        ([E.START, E.FAILED, E.START, E.STARTED, E.BATCH_ENDED], "idle"),
        ([E.START, E.FAILED, E.LOADING, E.LOADED], "failing"),
        ([E.START, E.FAILED, E.STORE_WAITS, E.RESUMED], "failing"),
        ([E.START, E.FAILED, E.STOPPED], "stopped"),
    ],
)
def test_what_is_published(events: list[RunEvent], published: str) -> None:
    assert after(*events).phase.published == published


def test_a_run_that_failed_is_unhealthy_until_a_batch_has_ended() -> None:
    failed = after(E.START, E.FAILED, E.START, E.STARTED)
    assert failed.unhealthy
    assert not failed.after(E.BATCH_ENDED).unhealthy


def test_retries_become_rarer_and_begin_anew_after_a_batch() -> None:
    state, delays = after(E.START), []
    for _ in range(len(RETRY_DELAYS_S) + 1):
        delays.append(state.retry_delay)
        state = state.after(E.FAILED)
    assert delays == [*RETRY_DELAYS_S, RETRY_DELAYS_S[-1]]
    assert state.after(E.BATCH_ENDED).retry_delay == 0.0


@pytest.mark.parametrize("event", [E.STORE_WAITS, E.STALLED, E.RESUMED])
def test_the_writer_of_a_stopped_run_changes_nothing(event: RunEvent) -> None:
    assert after(E.START, E.STARTED, E.STOPPED, event) == RunState()


def test_a_run_that_runs_is_healthy() -> None:
    states = {RunState()}
    for _ in range(4):
        states |= {state.after(event) for state, event in product(states, E) if state.failures < 2}
    assert all(not state.unhealthy for state in states if state.phase is RunPhase.RUNNING)
    assert {state.phase for state in states} == set(RunPhase)
