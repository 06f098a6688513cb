"""The form that replaces a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import catalog
from penstock.control import Actor, Control, tables
from penstock.supervision import release
from tests.support.airflow_tasks import context, first
from tests.support.supervised_platform import chaos_project


@pytest.fixture
def control(tmp_path: Path, airflow_home: None) -> Iterator[Control]:  # noqa: ARG001
    with chaos_project(tmp_path) as made:
        made.sync(catalog.load())
        yield made


FORM: dict[str, Any] = {
    "stream": "totals", "begin": "2026-01-31T12:00:00+00:00", "rate": 5000, "write": "all", "expect": "equal",
    "cut": "manual", "in_place": False, "archive": True, "note": "wider",
}  # fmt: skip


def replace_stream(run: str, **changed: Any) -> Any:
    """The trigger that a run of the form waits for."""
    from airflow.sdk.exceptions import TaskDeferred

    from penstock.airflow.replacements import ReplaceStream

    with pytest.raises(TaskDeferred) as deferred:
        ReplaceStream(task_id="replace").execute(context(run, user="ann", **FORM | changed))
    return deferred.value.trigger


def test_the_form_replaces_a_stream_and_ends_with_the_replacement(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from penstock.airflow import replacements

    monkeypatch.setattr(replacements, "RETRY", 0.01)
    names = {"names": ["totals"], "replaceable": ["totals"], "wrong": [], "others": []}
    monkeypatch.setattr(release, "_run_check", lambda *_: {**names, "streams": True, "refused": []})
    with pytest.raises(AirflowFailException, match=r"no running version.*app chaos was never launched"):
        replace_stream("r0")
    control.release("chaos", Actor("me", "cli"), digest="old")
    trigger = replace_stream("r1")
    row = control.replacement_of("totals")
    assert row
    assert (row.actor, row.options["from"], row.options["write"]) == ("ann", 1_769_860_800_000, "all")
    assert control.actions(1)[0]["detail"] == "wider (run r1)"
    assert replace_stream("r1").serialize() == trigger.serialize(), "another try waits for the same"
    with pytest.raises(AirflowFailException, match=r"not released while a stream of it is replaced"):
        replace_stream("r2")
    with pytest.raises(AirflowFailException, match=r"no such cut; got: now"):
        replace_stream("r3", cut="now")
    with pytest.raises(AirflowFailException, match=r"no such stream; got: nosuch"):
        replace_stream("r4", stream="nosuch")

    def event() -> dict[str, Any]:
        _, attributes = trigger.serialize()
        found: dict[str, Any] = asyncio.run(first(replacements.ReplacementTrigger(**attributes)))
        return found

    task = replacements.ReplaceStream(task_id="replace")
    control.undo_replacement(row.id, "a row differs")
    assert event() == {"stream": "totals", "state": "failed", "why": "a row differs"}
    with pytest.raises(AirflowFailException, match="the replacement of totals is failed: a row differs"):
        task.resume(context(), event())
    with control.begin() as c:
        c.execute(tables.replacement.update().values(state="cut", why=""))
    assert task.resume(context(), event()) == "the replacement of totals is cut"
