"""A task is marked, cleared or terminated, or seems to be: when its driver is ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.control import Control
from tests.support.airflow_tasks import context, first, operator
from tests.support.supervised_platform import airflow_says, chaos_project


@pytest.fixture
def control(tmp_path: Path, airflow_home: None) -> Iterator[Control]:  # noqa: ARG001
    with chaos_project(tmp_path) as made:
        yield made
        for d in made.drivers(live=False):
            d.session.kill()


@pytest.mark.parametrize(
    ("states", "ends"),
    [
        ({"r1": {"supervise": "deferred"}}, False),
        ({}, False),
        (ConnectionError("the api-server is away"), False),
        ({"r1": {"supervise": "failed"}}, True),
        ({"r1": {"supervise": "success"}}, True),
        ({"r1": {"supervise": None}}, True),
        ({"r1": {"supervise": "queued"}}, True),
    ],
    ids=[
        "waits elsewhere",
        "unknown run",
        "away",
        "marked failed",
        "marked success",
        "cleared",
        "cleared, tried again",
    ],
)
def test_a_cancelled_trigger_ends_a_driver_only_if_its_task_was_marked(
    control: Control, monkeypatch: pytest.MonkeyPatch, states: Any, ends: bool
) -> None:
    """A triggerer that was paused gets its triggers cancelled in the same way, while another one runs them."""
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as deferred:
        operator(monkeypatch).execute(context("r1"))
    airflow_says(monkeypatch, states)
    asyncio.run(deferred.value.trigger.on_kill())
    [driver] = control.drivers(live=False)
    assert driver.session.alive() is not ends


def test_a_trigger_that_fired_does_not_end_its_driver(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task has gone on to run or has ended by itself, which looks like a mark to the triggerer that wakes up."""
    from airflow.sdk.exceptions import TaskDeferred

    from penstock.airflow.triggers import StreamsTrigger

    with pytest.raises(TaskDeferred) as deferred:
        operator(monkeypatch).execute(context("r1"))
    _, kwargs = deferred.value.trigger.serialize()
    elsewhere = StreamsTrigger(**{**kwargs, "until": 0.0})
    assert asyncio.run(first(elsewhere))["action"] == "epoch"
    for state in ("scheduled", "running", "success", "failed"):
        airflow_says(monkeypatch, {"r1": {"supervise": state}})
        asyncio.run(deferred.value.trigger.on_kill())
    [driver] = control.drivers()
    assert driver.session.alive()
    with pytest.raises(TaskDeferred):
        operator(monkeypatch).execute(context("r2"))
    assert control.drivers()[0].owner == "streams_chaos/r2/supervise/1"


@pytest.mark.parametrize(("state", "ends"), [("running", False), ("failed", True)])
def test_a_terminated_task_ends_its_driver_only_if_it_was_marked(
    control: Control, monkeypatch: pytest.MonkeyPatch, state: str, ends: bool
) -> None:
    """Airflow also sends SIGTERM to a task when its api-server is away, or its worker is shut down."""
    from airflow.sdk.exceptions import TaskDeferred

    task = operator(monkeypatch)
    with pytest.raises(TaskDeferred):
        task.execute(context("r1"))
    airflow_says(monkeypatch, {"r1": {"supervise": state}})
    task.on_kill()
    [driver] = control.drivers(live=False)
    assert driver.session.alive() is not ends


def test_a_terminated_task_does_not_wait_for_airflow(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import TaskDeferred
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    from penstock.airflow import operators

    monkeypatch.setattr(operators, "STATE_TIMEOUT", 0.05)
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: time.sleep(1))
    task = operator(monkeypatch)
    with pytest.raises(TaskDeferred):
        task.execute(context("r1"))
    task.on_kill()
    [driver] = control.drivers()
    assert driver.session.alive()
