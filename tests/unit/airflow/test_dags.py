"""DAG files import nothing heavy and touch nothing; what they hold; what operators and triggers do with a database."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import catalog
from penstock.control import Actor, Control, connect
from penstock.errors import BrokerError, ControlError, DeclarationError
from penstock.settings import PROJECT
from penstock.supervision import launch, release
from tests.chaos.projects import other_project
from tests.support.airflow_tasks import context, first, operator
from tests.support.caches import clear_caches, unload_jobs
from tests.support.control_tables import create_tables
from tests.support.supervised_platform import airflow_says


def test_dag_files_import_nothing_heavy_and_connect_to_nothing(parsed: dict[str, Any]) -> None:
    assert parsed["loaded"] == []


def test_every_app_has_its_continuous_dag(parsed: dict[str, Any]) -> None:
    apps = catalog.load(PROJECT).apps
    assert apps
    dags = parsed["dags"]
    assert [d for d in dags if d.startswith("streams_")] == [f"streams_{app}" for app in apps]
    for app, streams in apps.items():
        dag = dags[f"streams_{app}"]
        assert dag["schedule"] == "ContinuousTimetable"
        assert dag["active"] == 1
        assert dag["paused"] is False
        assert {"penstock", "streams"} <= set(dag["tags"])
        assert all(s.name in dag["doc"] for s in streams)


def test_the_other_dags(parsed: dict[str, Any]) -> None:
    dags = parsed["dags"]
    assert {"operate_streams", "heartbeat", "reaper"} <= dags.keys()
    assert not any(dag["failed"] for dag in dags.values()), "Airflow would pause it for good"
    assert dags["heartbeat"]["schedule"] == "ContinuousTimetable"
    assert dags["reaper"]["catchup"] is False
    assert dags["reaper"]["active"] == 1
    assert dags["operate_streams"]["params"]["action"]["enum"] == ["start", "stop"]
    assert dags["release_streams"]["params"].keys() == {"target", "to", "note"}
    cat = catalog.load(PROJECT)
    form = dags["replace_stream"]["params"]
    assert form.keys() == {"stream", "begin", "rate", "write", "expect", "cut", "in_place", "archive", "note"}
    assert (form["write"]["enum"], form["cut"]["enum"]) == (["differing", "all", "none"], ["auto", "manual"])
    assert set(form["stream"]["enum"]) == cat.streams.keys() - cat.archives.keys()
    for form in (dags["operate_streams"]["params"], dags["release_streams"]["params"]):
        assert set(form["target"]["enum"]) == {f"app {a}" for a in cat.apps} | {f"stream {s}" for s in cat.supervised}


def test_no_form_names_a_stream_before_somebody_does(parsed: dict[str, Any]) -> None:
    chosen = {name: dag["chosen"] for name, dag in parsed["dags"].items() if dag["chosen"]}
    assert chosen == {
        "operate_streams": ["target"], "release_streams": ["target"], "replace_stream": ["stream"],
        "rebuild_streams": ["stream"],
    }  # fmt: skip


def test_the_form_of_replacements_has_the_sinks_that_can_be(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    airflow_home: None,  # noqa: ARG001
) -> None:
    from penstock.airflow.dags import operations

    (tmp_path / "sql" / "sinks").mkdir(parents=True)
    read = "READ clicks AS JSON (n BIGINT, at TIMESTAMP) APP shop {} AS SELECT n, at FROM clicks"
    for name, more in (("all", ""), ("by-day", "SUFFIX DAY (at)")):
        statement = f"INSERT INTO mongodb.shop.{name.replace('-', '_')} " + read.format(more)
        (tmp_path / "sql" / "sinks" / f"{name}.sql").write_text(statement)
    monkeypatch.setenv("PENSTOCK_MONGODB_URL", "mongodb://127.0.0.1:1")
    with other_project(tmp_path, {}):
        [dag] = operations.replace()
    assert dag.params.get_param("stream").schema["enum"] == ["all"]


def test_every_capture_has_its_dag(parsed: dict[str, Any]) -> None:
    captures = catalog.load(PROJECT).captures
    assert {"accounts", "tests", "labels", "alert_rules", "businesses"} <= captures.keys()
    for name, capture in captures.items():
        dag = parsed["dags"][f"capture_{name}"]
        assert dag["params"]["action"]["enum"] == ["check", "poll", "reconcile", "snapshot", "continue"]
        assert capture.topic.name in dag["doc"]
        assert (dag["active"], dag["catchup"], dag["paused"]) == (1, False, False)
        assert dag["schedule"] is not None


# Operators and triggers, with a home of their own.


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, airflow_home: None) -> Iterator[Control]:  # noqa: ARG001
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{tmp_path / 'control.db'}")
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_PROJECT", str(PROJECT / "tests" / "chaos" / "project"))
    monkeypatch.setenv("PENSTOCK_SUPERVISE_EVERY", "0.05")
    for name in [n for n in sys.modules if n.partition(".")[0] == "jobs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(PROJECT)] + [str(PROJECT)])
    clear_caches()
    made = connect()
    create_tables(made)
    yield made
    for d in made.drivers(live=False):
        d.session.kill()
    made.engine.dispose()
    unload_jobs()
    clear_caches()


def test_a_run_starts_waits_and_acts_and_the_next_run_adopts(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    task = operator(monkeypatch)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context("r1"))
    [driver] = control.drivers()
    assert driver.owner == "streams_chaos/r1/supervise/1"
    assert set(control.desired("chaos")) == {"totals", "finals"}
    trigger = deferred.value.trigger
    driver.session.kill()
    event = asyncio.run(first(trigger))
    assert event["action"] == "clear"
    task.resume(context("r1"), json.loads(json.dumps(event)))
    [second] = control.drivers()
    assert second.incarnation != driver.incarnation
    with pytest.raises(TaskDeferred):
        task.execute(context("r2"))
    assert [d.incarnation for d in control.drivers()] == [second.incarnation]
    assert control.drivers()[0].owner == "streams_chaos/r2/supervise/1"

    airflow_says(monkeypatch, {"r1": {"supervise": "failed"}, "r2": {"supervise": "failed"}})
    asyncio.run(trigger.on_kill())
    assert second.session.alive(), "the run that was marked is not its owner any more"
    asyncio.run(type(trigger)("chaos", "streams_chaos/r2/supervise/1", 0.0).on_kill())
    assert second.session.alive() is False


def test_a_trigger_waits_while_the_database_is_down(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.airflow.triggers import StreamsTrigger

    control.sync(catalog.load())
    real, away = control.app, time.monotonic() + 0.5

    def app(name: str) -> Any:
        if time.monotonic() < away:
            raise ControlError("away")
        return real(name)

    monkeypatch.setattr(control, "app", app)
    event = asyncio.run(first(StreamsTrigger("chaos", "me", 0.0)))
    assert time.monotonic() >= away, "neither the epoch's end nor a launch while nothing is known"
    assert event["action"] == "launch"


def test_a_trigger_without_active_streams_waits_until_the_end_of_the_epoch(control: Control) -> None:
    from penstock.airflow.triggers import StreamsTrigger

    control.sync(catalog.load())
    control.set_desired(["totals", "finals"], "off", Actor("me", "cli"))
    began = time.time()
    event = asyncio.run(first(StreamsTrigger("chaos", "me", began + 0.5)))
    assert event["action"] == "epoch"
    assert time.time() >= began + 0.5


def test_a_run_without_the_database_waits_in_the_trigger(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    def away(*_: Any) -> None:
        raise ControlError("away")

    monkeypatch.setattr(control, "app", away)
    with pytest.raises(TaskDeferred):
        operator(monkeypatch).execute(context())
    assert control.drivers() == []


def test_the_command_is_that_of_the_spark_provider(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    from penstock.airflow.operators import SuperviseStreams
    from penstock.engine import session

    monkeypatch.setattr(
        session, "submit_conf", lambda app, master: {"spark.master": "?", "spark.app.name": app, "a": master}
    )
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "spark://h:7077"}')
    command = SuperviseStreams(task_id="t", app="chaos")._command("chaos", "i9")
    assert isinstance(command, list)
    assert command[:4] == ["spark-submit", "--load-spark-defaults", "--master", "spark://h:7077"]
    file = Path(command[command.index("--properties-file") + 1])
    assert file.read_text() == "a=spark\\://h\\:7077\n"
    assert file.stat().st_mode & 0o077 == 0
    assert "--conf" not in command, "every user may read a command line, and a setting may be a secret"
    assert command[command.index("--name") + 1] == "chaos"
    assert launch.DRIVER.is_file()
    assert command[-5:] == [str(launch.DRIVER), "--app", "chaos", "--incarnation", "i9"]


@pytest.mark.parametrize(
    ("action", "target", "expected"),
    [
        ("stop", "stream totals", {"totals": "off", "finals": "on"}),
        ("stop", "app chaos", {"totals": "off", "finals": "off"}),
        ("start", "stream totals", {"totals": "on", "finals": "on"}),
    ],
)
def test_the_form_acts_in_the_name_of_the_user(
    control: Control, action: str, target: str, expected: dict[str, str]
) -> None:
    from penstock.airflow.operators import OperateStreams

    OperateStreams(task_id="operate").execute(context(user="ann", action=action, target=target, note="why"))
    assert control.desired("chaos") == expected
    newest = control.actions()[0]
    assert (newest["actor"], newest["source"], newest["verb"], newest["detail"]) == (
        "ann",
        "airflow",
        action,
        "why (run r1)",
    )


def test_the_form_releases_the_app_of_a_stream(
    control: Control, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from penstock.airflow.operators import ReleaseStreams

    project = shutil.copytree(PROJECT / "tests" / "chaos" / "project", tmp_path / "project")
    monkeypatch.setenv("PENSTOCK_PROJECT", str(project))
    clear_caches()
    told: dict[str, Any] = {"names": ["totals", "finals"], "streams": True, "wrong": [], "others": [], "refused": []}
    monkeypatch.setattr(release, "_run_check", lambda *_: told)
    ReleaseStreams(task_id="release").execute(context(user="ann", target="stream totals", to="", note=None))
    app = control.app("chaos")
    assert app
    assert app.release_seq == 1
    ReleaseStreams(task_id="release").execute(context(user="ann", target="stream totals", to="", note=None))
    assert control.app("chaos") == app, "a second try of the same run changes nothing"
    for _ in range(250):
        control.record(Actor("others", "cli"), "stop", "another")
    ReleaseStreams(task_id="release").execute(context(user="ann", target="stream totals", to="", note=None))
    assert control.app("chaos") == app, "nor behind whatever others did meanwhile"
    first_digest = control.releases("chaos")[0].digest
    (project / "jobs" / "note.txt").write_text("more")
    ReleaseStreams(task_id="release").execute(context("r2", target="app chaos", to=None, note=None))
    assert control.releases("chaos")[0].digest != first_digest
    ReleaseStreams(task_id="release").execute(context("r3", user="ben", target="app chaos", to=" 1 ", note="back"))
    newest = control.releases("chaos")[0]
    assert (newest.number, newest.digest, newest.actor) == (3, first_digest, "ben")
    assert newest.note == "back (run r3) (the code of release 1)"
    with pytest.raises(AirflowFailException, match=r"has no release 9; got: releases 3, 2, 1"):
        ReleaseStreams(task_id="release").execute(context("r4", target="app chaos", to="9", note=None))
    with pytest.raises(DeclarationError):
        ReleaseStreams(task_id="release").execute(context("r5", target="app nosuch", to="", note=None))
    told["refused"] = ["stream totals has state of other code"]
    with pytest.raises(AirflowFailException, match="stream totals has state of other code"):
        ReleaseStreams(task_id="release").execute(context("r6", target="app chaos", to="", note=None))
    assert control.releases("chaos")[0].number == 3


def test_the_form_to_operate_releases_nothing(control: Control) -> None:
    """Even where its form is edited: to release is a permission of its own."""
    from airflow.sdk.exceptions import AirflowFailException

    from penstock.airflow.operators import OperateStreams

    with pytest.raises(AirflowFailException, match="release_streams"):
        OperateStreams(task_id="operate").execute(context(user="ann", action="release", target="app chaos", note=""))
    assert control.releases("chaos") == []


def test_the_reaper_skips_without_the_database(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    from penstock.airflow.operators import EndOrphanedDrivers

    assert EndOrphanedDrivers(task_id="reap").execute(context()) == []

    def away() -> None:
        raise ControlError("away")

    with monkeypatch.context() as m:
        m.setattr(control, "drivers", away)
        with pytest.raises(AirflowSkipException):
            EndOrphanedDrivers(task_id="reap").execute(context())


@pytest.mark.processes
def test_heartbeats_continue_when_the_broker_is_back_and_end_at_a_release(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from penstock.airflow import triggers
    from penstock.airflow.operators import SendHeartbeats
    from penstock.supervision.event_clock import heartbeats

    calls: list[dict[str, Any]] = []

    class HeartbeatSender:
        """Counts what is asked of the real one, which needs a broker."""

        def __init__(self, windowed: catalog.HeartbeatTopics, *_: Any) -> None:
            self.windowed = windowed

        def run_once(self) -> float:
            calls.append(self.windowed)
            if len(calls) == 2:
                raise BrokerError("away")
            if len(calls) == 4:
                control.release("chaos", Actor("me", "cli"))
            return self.seconds_to_next()

        def seconds_to_next(self) -> float:
            return 0.01 if len(calls) < 7 else 60.0

        def close(self) -> None:
            calls.append({})

    monkeypatch.setattr(heartbeats, "HeartbeatSender", HeartbeatSender)
    monkeypatch.setattr(triggers, "RETRY", 0.01)
    monkeypatch.setattr(triggers, "RELEASES_EVERY", 0.0)
    control.sync(catalog.load())
    with pytest.raises(TaskDeferred) as deferred:
        SendHeartbeats(task_id="beat").execute(context())
    path, kwargs = deferred.value.trigger.serialize()
    assert path == "penstock.airflow.triggers.HeartbeatTrigger"
    event = asyncio.run(first(triggers.HeartbeatTrigger(**json.loads(json.dumps(kwargs)))))
    assert event == {"action": "epoch"}
    assert len(calls) == 8, "it ends only when no beat is due for a while"
    assert calls[-1] == {}
    [(topic, [(due, reader)], _, writers)] = calls[0].values()
    assert not writers
    assert (topic.name, topic.heartbeat_every, due.offset.total_seconds(), reader) == ("numbers", 0, 120, "finals")
