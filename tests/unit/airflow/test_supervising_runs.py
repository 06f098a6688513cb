"""What a supervising run tells Airflow of failing streams, and how new ones are taken up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import catalog
from penstock.catalog import build
from penstock.control import Actor, Control, ProgressRow
from penstock.devstack import platform, stream_start
from penstock.devstack import releases as up_releases
from penstock.devstack.releases import release_what_changed
from penstock.errors import HostError, ReleaseRefused
from penstock.monitoring.health import UNKNOWN_STATES, state_is_known
from penstock.settings import settings
from penstock.supervision import released_code, supervisor
from penstock.supervision.decision.facts import Evidence, facts_of
from penstock.supervision.decision.watch import AppWatch
from tests.support.airflow_tasks import context, first
from tests.support.airflow_tasks import operator as sleeping_operator
from tests.support.supervised_platform import Platform, chaos_project

ME = Actor("me", "cli")


@pytest.fixture
def control(tmp_path: Path, airflow_home: None) -> Iterator[Control]:  # noqa: ARG001
    """App `chaos`, whose driver runs the stream `totals` and `finals`."""
    with chaos_project(tmp_path) as made:
        made.sync(catalog.load())
        incarnation = made.claim("chaos", None, host="elsewhere", spec_hash="", owner="me", log="")
        assert incarnation
        made.report_driver_resources(incarnation, None)
        yield made


def report(control: Control, **states: str) -> None:
    app = control.app("chaos")
    assert app
    assert app.incarnation
    rows = [ProgressRow(name, "chaos", app.incarnation, state=s, error="no room") for name, s in states.items()]
    control.report(rows, keep=False)


# Failing streams


def run(
    control: Control, monkeypatch: pytest.MonkeyPatch, unhealthy: list[str], *, lasts: float = 60.0
) -> dict[str, Any]:
    """The event that ends the wait of a run that began with these streams unhealthy."""
    from penstock.airflow import triggers

    monkeypatch.setattr(triggers, "FAILURES_EVERY", 0.01)
    monkeypatch.setattr(triggers, "FAILING_FOR", 0.1)
    made = triggers.StreamsTrigger("chaos", "me", time.time() + lasts, unhealthy)
    _, kwargs = made.serialize()
    assert control
    event: dict[str, Any] = asyncio.run(first(triggers.StreamsTrigger(**json.loads(json.dumps(kwargs)))))
    return event


def operator() -> Any:
    from penstock.airflow.operators import SuperviseStreams

    return SuperviseStreams(task_id="supervise", app="chaos")


@pytest.mark.parametrize(
    ("state", "why"), [("failing", "no room"), ("blocked", "no room"), ("waiting", "for 0 ms: no room")]
)
def test_a_stream_that_starts_to_fail_fails_the_run(
    control: Control, monkeypatch: pytest.MonkeyPatch, state: str, why: str
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    report(control, totals=state, finals="idle")
    event = run(control, monkeypatch, [])
    assert event == {"action": "unhealthy", "why": f"stream totals: {state}: {why}", "app": "chaos", "evidence": None}
    with pytest.raises(AirflowFailException, match="no room"):
        operator().resume(context(), event)


def test_a_stream_that_still_fails_fails_a_run_at_its_end_only(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    report(control, totals="failing", finals="idle")
    event = run(control, monkeypatch, ["totals"], lasts=0.5)
    assert event["action"] == "epoch"
    with pytest.raises(AirflowFailException, match="stream totals: failing: no room"):
        operator().resume(context(), event)
    report(control, totals="running", finals="idle")
    operator().resume(context(), event)
    control.set_desired(["totals"], "off", ME)
    report(control, totals="failing", finals="idle")
    operator().resume(context(), event)


def test_a_clock_that_is_set_back_lengthens_no_run(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.airflow.triggers import StreamsTrigger, end_of_epoch

    report(control, totals="idle", finals="idle")
    clock = time.time
    begun, until = time.monotonic(), clock() + 0.5

    def set_back() -> float:
        return clock() - (3_600 if time.monotonic() > begun + 0.4 else 0)

    monkeypatch.setattr(time, "time", set_back)
    event = asyncio.run(asyncio.wait_for(first(StreamsTrigger("chaos", "me", until)), 20))
    assert event["action"] == "epoch"
    assert end_of_epoch(clock() + 1e6) <= time.monotonic() + settings().supervise_epoch, "it was set back before"


def test_a_store_that_is_down_for_a_moment_fails_no_run(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the run's end, nor is it taken for known at the next one's begin."""
    from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

    def waits(ms: int) -> None:
        app = control.app("chaos")
        assert app
        assert app.incarnation
        since = control.now() - ms
        row = ProgressRow("totals", "chaos", app.incarnation, state="waiting", error="nobody there", error_at=since)
        control.report([row], keep=False)

    def known() -> list[str]:
        task = operator()
        monkeypatch.setattr(task, "_command", lambda *_: ["true"])
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(context())
        found: list[str] = deferred.value.trigger.unhealthy
        return found

    report(control, finals="idle")
    waits(20_000)
    over = {"action": "epoch", "why": "", "app": "chaos", "evidence": None}
    operator().resume(context(), over)
    assert known() == []
    waits(90_000)
    assert known() == ["totals"]
    with pytest.raises(AirflowFailException, match=r"stream totals: waiting: for 1 min 3\d s: nobody there"):
        operator().resume(context(), over)


def test_a_store_that_is_back_in_time_fails_no_run(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.airflow import triggers

    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    failures = triggers.FailureWatch(control, "chaos", [])
    said = []
    # Away for 55 s, back, and away for 65 s.
    for second in range(0, 140, 5):
        now[0] = float(second)
        report(control, totals="idle" if 55 <= second < 70 else "waiting")
        said.append(failures.look())
    assert [bool(text) for text in said] == [second >= 130 for second in range(0, 140, 5)]
    assert said[-1].startswith("stream totals: waiting: ")


def test_a_run_does_not_repeat_earlier_failures(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    report(control, totals="failing", finals="blocked")
    task = operator()
    monkeypatch.setattr(task, "_command", lambda *_: ["true"])
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context())
    assert deferred.value.trigger.unhealthy == ["finals", "totals"]


def test_a_run_launches_the_driver_of_a_replacement(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    report(control, totals="running", finals="idle")
    digest = released_code.take(control)
    control.release("chaos", ME, digest=digest)
    options = {"cut": "auto"}
    control.request_replacement("totals", "chaos", digest, digest, ME, options)
    event = run(control, monkeypatch, [])
    assert (event["action"], event["app"]) == ("launch", "replacement:totals")
    sleeping_operator(monkeypatch).resume(context(), event)
    [driver] = control.drivers("replacement:totals")
    assert driver.session.alive()
    driver.session.kill()


# Captures that begin


def test_a_check_waits_for_a_driver_that_starts(control: Control) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from penstock.airflow.captures import OperateCapture

    assert not state_is_known(control, "totals"), "its driver has not reported yet"
    task = OperateCapture(task_id="t", capture="totals")
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context(action="check"))
    with pytest.raises(TaskDeferred) as again:
        task.resume(context(action="check"), {"why_not": ""}, **(deferred.value.kwargs or {}))
    assert again.value.kwargs == deferred.value.kwargs, "a release came between, and there is time left"
    assert task.resume(context(action="check"), {"why_not": ""}, until=0.0)["state"] in UNKNOWN_STATES
    report(control, totals="idle")
    assert state_is_known(control, "totals")
    trigger = deferred.value.trigger
    _, kwargs = trigger.serialize()
    assert asyncio.run(first(type(trigger)(**json.loads(json.dumps(kwargs))))) == {"why_not": ""}
    assert task.resume(context(action="check"), {"why_not": ""}, **(deferred.value.kwargs or {}))["state"] == "idle"


def test_a_check_has_a_timeout(control: Control) -> None:  # noqa: ARG001
    from penstock.airflow.triggers import CaptureStateTrigger

    assert asyncio.run(first(CaptureStateTrigger("totals", 0.0))) == {"why_not": ""}


# New streams


def released(control: Control, app: str, actor: Actor, why: str) -> int:
    """A release of code that loads and fits."""
    return control.release(app, actor, why)


@pytest.fixture
def running(p: Platform, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """Its driver reports `s`; a release of its app is accepted."""
    p.supervisor().tick()
    p.control.report_driver_resources(p.driver().incarnation, None)
    p.control.report([ProgressRow("s", "a", p.driver().incarnation, state="idle")], keep=False)
    monkeypatch.setattr(supervisor, "release", released)
    return p


def new_stream(p: Platform) -> None:
    from penstock.control import tables

    with p.control.engine.begin() as c:
        c.execute(tables.stream.insert().values(name="fresh", app="a", desired="on"))


def test_a_run_looks_again_soon_for_a_stream_whose_file_is_away(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from penstock.control import tables

    with control.begin() as c:
        c.execute(tables.stream.insert().values(name="away", app="chaos", desired="off"))
    made = operator()
    monkeypatch.setattr(made, "_supervisor", lambda _: SimpleNamespace(tick=lambda: SimpleNamespace(why="")))
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(context())
    assert deferred.value.trigger.serialize()[1]["until"] < time.time() + 100
    assert control.undeclared("chaos") == ["away"]
    with control.begin() as c:
        c.execute(tables.stream.update().where(tables.stream.c.name == "away").values(absent_since=1))
    operator()._declare()
    assert control.undeclared("chaos") == [], "it is forgotten"


def test_an_app_is_released_if_its_driver_lacks_a_stream(running: Platform) -> None:
    now = [0.0]
    watch = AppWatch(running.control, "a", clock=lambda: now[0])
    found = [watch.look().action]
    new_stream(running)
    for _ in range(22):
        now[0] += 1.0
        found.append(watch.look().action)
    assert found == ["rest"] * 20 + ["request_release"] * 3, "it may be about to report it"
    assert running.supervisor().tick(watch.evidence).why == "released: new to its driver: fresh"
    assert [(a["verb"], a["source"], a["detail"]) for a in running.control.actions(1)] == [
        ("release", "supervisor", "new to its driver: fresh")
    ]
    assert watch.look().action == "rest"


def test_a_stopped_stream_causes_no_release(running: Platform) -> None:
    new_stream(running)
    running.control.set_desired(["fresh"], "off", ME)
    found = facts_of(running.control, "a")
    assert found
    assert found.unknown_streams == []


def test_a_refused_release_is_not_requested_again_at_once(running: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise ReleaseRefused("the code of app a cannot be read")

    new_stream(running)
    monkeypatch.setattr(supervisor, "release", refuse)
    d = running.driver()
    evidence = Evidence(d.incarnation, d.alive_at, incomplete_for=99)
    assert "cannot be read" in running.supervisor().tick(evidence).why
    assert running.verbs()[-1] == "refuse"
    running.crowd()
    assert running.supervisor().tick(evidence).why == "running", "behind whatever others do"
    [refusal] = [a for a in running.control.actions(1000) if a["verb"] == "refuse"]
    assert "new to its driver: fresh: the code of app a" in refusal["detail"]
    assert running.driver().session.alive()


def test_up_releases_an_app_whose_driver_lacks_a_stream(running: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise ReleaseRefused("app a cannot continue with this code")

    monkeypatch.setattr(up_releases, "release", refuse)
    new_stream(running)
    control = running.control
    refused = release_what_changed(control, build([]), {"fresh"}, ())
    assert (refused.apps, refused.left_out) == ({}, {"fresh"}), "what waits for a release is not waited for"
    assert "cannot continue with this code" in str(refused.problems[0])
    monkeypatch.setattr(up_releases, "release", released)
    assert release_what_changed(control, build([]), {"s2"}, ()).apps == {}
    running.driver().session.kill()
    assert release_what_changed(control, build([]), {"fresh"}, ()).apps == {"what is new": ["a"]}, "it runs or not"
    assert control.actions(1)[0]["detail"] == "new: fresh"


def test_up_does_not_wait_for_failing_streams(running: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_start, "FAILING_TIMEOUT", 0.0)
    row = ProgressRow("s", "a", running.driver().incarnation, state="failing", error="no room")
    running.control.report([row], keep=False)
    with pytest.raises(HostError, match="s is failing: no room"):
        stream_start.wait_for_streams(lambda: platform.Platform().view(running.control), (), lambda _: None)
