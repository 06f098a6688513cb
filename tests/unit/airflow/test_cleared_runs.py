"""What a run does once more that a person, or Airflow's backfill, clears. Its id stays, and its tries go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import catalog
from penstock.control import Actor, Control
from penstock.control.repositories.captures import Captures
from penstock.supervision import release
from tests.support import captures
from tests.support.airflow_tasks import context, first
from tests.support.supervised_platform import chaos_project

OTHER = Actor("bob", "cli")


@pytest.fixture
def control(tmp_path: Path, airflow_home: None) -> Iterator[Control]:  # noqa: ARG001
    """Streams `totals` and `finals` of the app `chaos`, and the capture `shop`."""
    with chaos_project(tmp_path) as made:
        made.sync(catalog.load())
        captures.known(made, "shop")
        yield made


def deferred_trigger(task: Any, asked: Any) -> Any:
    """The trigger that a task waits for."""
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as deferred:
        task.execute(asked)
    return deferred.value.trigger


def test_a_cleared_stop_stops_the_stream_again(control: Control) -> None:
    from penstock.airflow.operators import OperateStreams

    def stop(cleared: int) -> str:
        asked = context("r1", "olga", cleared, action="stop", target="stream totals", note="")
        OperateStreams(task_id="operate").execute(asked)
        return control.desired("chaos")["totals"]

    assert stop(0) == "off"
    control.set_desired(["totals"], "on", OTHER)
    assert stop(0) == "on", "another try of what was done"
    assert stop(1) == "off"
    control.set_desired(["totals"], "on", OTHER)
    assert [stop(1), stop(2)] == ["on", "off"]


def test_a_cleared_release_releases_again(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.airflow.operators import ReleaseStreams

    released: list[str] = []

    def accept(*asked: Any, request: str, **_: object) -> int:
        _, app, actor, note = asked
        control.record(actor, "release", app, note, request)
        released.append(request)
        return len(released)

    monkeypatch.setattr(release, "release", accept)
    for cleared in (0, 0, 1, 1):
        ReleaseStreams(task_id="release").execute(context("r1", "olga", cleared, target="app chaos", to="", note=None))
    assert [len(request) for request in released] == [32, 32]


def test_a_cleared_request_to_a_capture_is_asked_again(control: Control) -> None:
    from penstock.airflow.captures import OperateCapture

    def reconcile(cleared: int) -> Any:
        asked = context("r1", "olga", cleared, action="reconcile", note="")
        return deferred_trigger(OperateCapture(task_id="operate", capture="shop"), asked)

    asked = Captures(control)
    refused = reconcile(0)
    asked.answer("shop", refused.request, "database down")
    assert asyncio.run(first(reconcile(0))) == {"why_not": "database down"}
    repaired = reconcile(1)
    assert asked.rows()["shop"].request_id == repaired.request != refused.request
    asked.answer("shop", repaired.request)
    assert asyncio.run(first(repaired)) == {"why_not": ""}


def test_a_cleared_replacement_is_requested_again_once_it_has_ended(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.airflow.replacements import ReplaceStream

    told = {"names": ["totals"], "replaceable": ["totals"], "wrong": [], "others": [], "streams": True, "refused": []}
    monkeypatch.setattr(release, "_run_check", lambda *_: told)
    control.release("chaos", OTHER, digest="old")
    form = {
        "stream": "totals", "begin": None, "rate": None, "write": "all", "expect": "", "cut": "manual",
        "in_place": False, "archive": True, "note": "",
    }  # fmt: skip

    def replacement(cleared: int) -> str:
        asked = context("r1", "olga", cleared, **form)
        identity: str = deferred_trigger(ReplaceStream(task_id="replace"), asked).identity
        return identity

    failed = replacement(0)
    assert replacement(1) == failed, "it waits for the one that is open"
    control.undo_replacement(failed, "a row differs")
    assert replacement(0) == failed, "another try of the same"
    begun_anew = replacement(2)
    assert begun_anew != failed
    assert [replacement(cleared) for cleared in (2, 3)] == [begun_anew, begun_anew]
