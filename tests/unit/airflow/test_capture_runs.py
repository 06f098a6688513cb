"""Runs of the DAG of a capture: its health, and requests that wait for an answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import catalog
from penstock.control import Actor, Control
from penstock.control.repositories.captures import Captures
from tests.support import captures
from tests.support.airflow_tasks import context, first
from tests.support.supervised_platform import chaos_project

BOB = Actor("bob", "cli")


@pytest.fixture
def shop(tmp_path: Path, airflow_home: None) -> Iterator[Control]:  # noqa: ARG001
    """A control database that knows the capture `shop`, whose driver polls."""
    with chaos_project(tmp_path) as control:
        control.sync(catalog.load())
        captures.known(control, "shop")
        captures.reported(control, "shop", "idle", phase="polling")
        yield control


def test_a_capture_that_fails_fails_its_task(shop: Control) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from penstock.airflow.captures import OperateCapture

    task = OperateCapture(task_id="operate", capture="shop")
    assert task.execute(context(action="check"))["state"] == "idle"
    captures.reported(shop, "shop", "failing", "the table is gone", phase="polling")
    with pytest.raises(AirflowFailException, match="capture shop: failing: the table is gone"):
        task.execute(context(action="check"))


def test_a_request_to_a_capture_waits_for_its_answer(shop: Control) -> None:
    from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

    from penstock.airflow.captures import OperateCapture

    task, asked = OperateCapture(task_id="operate", capture="shop"), Captures(shop)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context("r1", "ada", action="reconcile", note="to be sure"))
    [(what, request)] = asked.requests().values()
    assert what == "reconcile"
    with pytest.raises(TaskDeferred):
        task.execute(context("r1", "ada", action="reconcile", note="to be sure"))
    assert asked.rows()["shop"].request_id == request, "the same run again asks nothing new"
    other = asked.ask("shop", "poll", Actor("bob", "cli"))
    with pytest.raises(TaskDeferred) as again:
        task.execute(context("r1", "ada", action="reconcile", note="to be sure"))
    assert again.value.trigger.request == request, "nor does it wait for what somebody else asked meanwhile"
    assert asked.rows()["shop"].request_id == other
    assert [(a["actor"], a["verb"], a["detail"]) for a in shop.actions(5) if a["actor"] == "ada"] == [
        ("ada", "reconcile", "to be sure (run r1)")
    ]
    asked.answer("shop", request)
    event = asyncio.run(first(deferred.value.trigger))
    assert task.resume(context("r1"), event)["phase"] == "polling"
    with pytest.raises(AirflowFailException, match="shop: refused"):
        task.resume(context("r1"), {"why_not": "refused"})


def test_a_run_that_waits_for_an_answer_fails_within_the_hour_if_the_capture_does(shop: Control) -> None:
    """It keeps the hourly check from running."""
    from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

    from penstock.airflow.captures import CHECK_EVERY, OperateCapture
    from penstock.airflow.triggers import CaptureTrigger

    task = OperateCapture(task_id="operate", capture="shop")

    def trigger_of(deferred: Any) -> dict[str, Any]:
        _, attributes = deferred.value.trigger.serialize()
        kept: dict[str, Any] = json.loads(json.dumps(attributes))
        return kept

    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context("r1", "ada", action="reconcile", note=""))
    waits = trigger_of(deferred)
    assert 0 < waits["until"] - time.time() <= CHECK_EVERY
    event = asyncio.run(first(CaptureTrigger(**waits | {"until": 0.0})))
    with pytest.raises(TaskDeferred) as deferred:
        task.resume(context("r1"), event)
    assert trigger_of(deferred)["request"] == waits["request"], "it is well, so that the run waits on"
    captures.reported(shop, "shop", "failing", "the table is gone", phase="polling")
    with pytest.raises(AirflowFailException, match="capture shop: failing: the table is gone"):
        task.resume(context("r1"), event)
    Captures(shop).answer("shop", waits["request"])
    assert asyncio.run(first(CaptureTrigger(**waits | {"until": 0.0}))) == {"why_not": ""}


def test_a_run_does_not_say_that_its_request_was_replaced_if_it_may_have_been_done(shop: Control) -> None:
    from penstock.airflow.triggers import CaptureTrigger

    asked = Captures(shop)
    done = asked.ask("shop", "reconcile", BOB)
    asked.answer("shop", done)
    later = asked.ask("shop", "poll", BOB)
    assert asyncio.run(first(CaptureTrigger("shop", done))) == {"why_not": ""}
    asked.answer("shop", later)
    said = asyncio.run(first(CaptureTrigger("shop", done)))["why_not"]
    assert said == "a later request came: poll; whether this one was done before is not known"
