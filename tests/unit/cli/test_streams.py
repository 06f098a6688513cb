"""`penstock streams` on a real control database (SQLite)."""

from __future__ import annotations

import getpass
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.catalog import Catalog, build
from penstock.cli import app as penstock
from penstock.cli import streams
from penstock.cli.stream_names import complete
from penstock.cli.streams import app
from penstock.control import Actor, Control, ProgressRow, connect
from penstock.devstack import resource_usage
from penstock.errors import ControlError, ReleaseRefused
from penstock.host import log_files, ports
from penstock.host.log_files import follow, tail
from penstock.streams import EmitFinal, Input, Stream, Topic, TopicOutput
from penstock.supervision import release as releases
from tests.support.caches import clear_caches
from tests.support.control_tables import create_tables

DIGEST = "5d41402a" * 8
LONG = "no broker\n  at line 2\n  at line 3"


@pytest.fixture
def catalog() -> Catalog:
    def stream(name: str, app_name: str) -> Stream:
        return Stream(
            name, app_name, {"rows": Input(Topic(f"{name}-in"))}, lambda rows: rows,
            TopicOutput(Topic(f"{name}-out"), "key", "value"), EmitFinal(timedelta(minutes=5), timedelta(minutes=1)),
        )  # fmt: skip

    return build([stream("bundles", "metrics"), stream("summaries", "metrics"), stream("topic-quality", "quality")])


@pytest.fixture
def control(tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    """Two streams of `metrics` run under one driver; `quality` was never launched."""
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{tmp_path}/control.db")
    clear_caches()
    found = connect()
    create_tables(found)
    found.sync(catalog)
    log = tmp_path / "metrics.log"
    log.write_text("".join(f"line {i}\n" for i in range(300)))
    incarnation = found.claim("metrics", None, host="pond/1/2", spec_hash="x", owner="o", log=str(log))
    assert incarnation is not None
    found.update_driver(incarnation, state="running", pid=77)
    found.report(
        [
            ProgressRow(
                "bundles", "metrics", incarnation, state="running", batch_id=12, rows_per_s=12_900, lag=17, late=1234,
                topics={"bundles-in": {"lag": 17, "offsets": {"0": 5}}},
                expectations={"known": {"action": "keep", "violations": 1234, "minutes": {"1": 7}}},
            ),
            ProgressRow("summaries", "metrics", incarnation, state="failing", error=LONG, error_at=found.now()),
        ],
        keep=True,
    )  # fmt: skip
    yield found
    found.engine.dispose()
    clear_caches()


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.usefixtures("control")
def test_list_shows_every_stream_with_state_and_reason() -> None:
    lines = {line.split()[0]: line for line in run("list").splitlines()}
    assert "running" in lines["bundles"]
    assert "12.9k" in lines["bundles"]
    assert "1.23k" in lines["bundles"]
    assert "failing" in lines["summaries"]
    assert "no broker" in lines["summaries"]
    assert "no driver was launched yet" in lines["topic-quality"]


@pytest.mark.usefixtures("control")
def test_list_as_json_is_the_data_model() -> None:
    found = {s["name"]: s for s in json.loads(run("list", "--json"))}
    assert [found["bundles"][k] for k in ("state", "desired", "lag", "late")] == ["running", "on", 17, 1234]
    assert found["topic-quality"]["state"] == "starting"


@pytest.mark.usefixtures("control")
def test_show_prints_all_facts_of_a_stream() -> None:
    shown = run("show", "summaries")
    assert "at line 3" in shown
    assert "metrics" in shown
    assert "pid 77 on pond" in shown
    assert json.loads(run("show", "bundles", "--json"))["topics"][0]["offsets"] == {"0": 5}


@pytest.mark.usefixtures("control")
def test_show_prints_the_violations_of_each_rule() -> None:
    [line] = [line for line in run("show", "bundles").splitlines() if "known" in line]
    assert line.split() == ["known", "keep", "1,234", "0", "-"]
    [rule] = json.loads(run("show", "bundles", "--json"))["expectations"]
    assert (rule["name"], rule["violations"], rule["last_hour"], rule["minutes"]) == ("known", 1234, 0, [])


@pytest.mark.usefixtures("control")
def test_show_prints_all_facts_of_an_app() -> None:
    shown = run("show", "metrics")
    assert "bundles" in shown
    assert "summaries" in shown
    assert json.loads(run("show", "metrics", "--json"))["state"] == "failing"


def test_status_fails_while_a_stream_fails(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_usage, "measure", lambda *_: [])

    def status(code: int) -> dict[str, str]:
        result = CliRunner().invoke(penstock, ["status", "--json"])
        assert result.exit_code == code, result.output
        found: dict[str, str] = json.loads(result.output)["unhealthy"]
        return found

    assert status(1) == {"summaries": "failing: no broker"}
    control.set_desired(["summaries"], "off", Actor("me", "cli"))
    assert status(0) == {}


def test_stop_and_start_are_recorded_with_the_users_name(control: Control) -> None:
    assert "bundles: desired state off" in run("stop", "bundles", "-m", "for the night")
    assert control.desired() == {"bundles": "off", "summaries": "on", "topic-quality": "on"}
    last = control.actions(1)[0]
    assert [last[k] for k in ("actor", "source", "verb", "target", "detail")] == [
        getpass.getuser(), "cli", "stop", "bundles", "for the night",
    ]  # fmt: skip
    assert "bundles: desired state on\nsummaries: desired state on (unchanged)" in run("start", "bundles", "summaries")
    assert control.desired()["bundles"] == "on"


def test_an_app_stands_for_its_streams(control: Control) -> None:
    run("stop", "metrics")
    assert control.desired() == {"bundles": "off", "summaries": "off", "topic-quality": "on"}


def test_release_by_app_and_by_stream(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, str]] = []

    def release(control: Control, app: str, actor: Actor, note: str, *, accept_state: bool, to: str) -> int:
        asked.append((accept_state, to))
        return control.release(app, actor, note, digest=DIGEST)

    monkeypatch.setattr(releases, "release", release)
    assert "release 1 of metrics" in run("release", "metrics")
    assert "release 2 of metrics" in run("release", "summaries", "--note", "p90")
    last = control.actions(1)[0]
    assert (last["verb"], last["target"], last["detail"]) == ("release", "metrics", "p90")
    assert json.loads(run("show", "bundles", "--json"))["state"] == "draining"
    run("release", "metrics", "--accept-state", "--to", "1")
    assert asked == [(False, ""), (False, ""), (True, "1")]


def test_a_release_of_a_stopped_app_says_that_nothing_runs_it(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "release", lambda *_, **__: 3)
    control.set_desired(["bundles", "summaries"], "off", Actor("me", "cli"))
    assert "it is stopped, and its next driver runs this code: `penstock streams start metrics`" in run(
        "release", "metrics"
    )


def test_releases_are_listed_with_who_when_and_which_runs(control: Control) -> None:
    assert "metrics has no release yet" in run("releases", "metrics", code=1)
    for note in ("first", "dearer"):
        control.release("metrics", Actor("olga", "page"), note, digest=DIGEST)
    app_row = control.app("metrics")
    assert app_row
    control.update_driver(app_row.incarnation or "", release_seq=1, state="running")
    said = run("releases", "summaries")
    rows = [line.split() for line in said.splitlines()[1:]]
    assert [(row[0], row[3:]) for row in rows] == [
        ("2", ["olga", DIGEST[:12], "dearer"]), ("1", ["olga", DIGEST[:12], "runs", "first"]),
    ]  # fmt: skip
    listed = json.loads(run("releases", "metrics", "--json"))
    assert [(row["number"], row["running"], row["digest"]) for row in listed] == [(2, False, DIGEST), (1, True, DIGEST)]


def test_a_refused_release_is_one_line(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    def release(*_: object, **__: object) -> int:
        raise ReleaseRefused("the code of app metrics cannot be read", got="jobs/metrics/a.py cannot be imported")

    monkeypatch.setattr(releases, "release", release)
    assert "cannot be read; got: jobs/metrics/a.py" in run("release", "metrics", code=1)
    assert control.actions() == []


@pytest.mark.parametrize("verb", ["show", "start", "stop", "release", "logs"])
def test_an_unknown_name_is_refused_with_close_matches(control: Control, verb: str) -> None:
    said = run(verb, "bundels", code=2)
    assert "there is no stream or app named 'bundels'; did you mean bundles?" in said
    assert control.actions() == []


def test_one_unknown_name_of_several_changes_nothing(control: Control) -> None:
    run("stop", "bundles", "xyzzy", code=2)
    assert set(control.desired().values()) == {"on"}


def test_an_absent_database_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, control: Control
) -> None:
    away = Control(f"sqlite:///{tmp_path}/nothing.db")
    monkeypatch.setattr(streams, "connect", lambda: away)
    assert control is not away
    for args in (["list"], ["stop", "bundles"], ["logs", "bundles"]):
        said = run(*args, code=1)
        assert said.startswith("error: a statement of the control database failed")
        assert "penstock doctor" in said
    away.engine.dispose()


@pytest.mark.usefixtures("control")
def test_logs_prints_the_last_lines() -> None:
    assert run("logs", "bundles", "-n", "2") == "line 298\nline 299\n"
    assert run("logs", "metrics").startswith("line 200\n")
    assert run("logs", "metrics", "-n", "0") == ""


@pytest.mark.usefixtures("control")
def test_logs_names_the_host_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "metrics.log").unlink()
    assert "look on host pond" in run("logs", "bundles", code=1)
    assert "has no log yet" in run("logs", "quality", code=1)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_tail_reads_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "BLOCK", 7)
    log = tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(40)) + "without end")
    assert tail(log, 3) == ["line 38", "line 39", "without end"]
    assert len(tail(log, 1000)) == 41
    assert tail(log, 1000, most_bytes=len("39\nwithout end")) == ["39", "without end"]
    log.write_text("one\u2028line\x85of three\nlast\n")
    assert tail(log, 5) == ["one\u2028line\x85of three", "last"]


def test_follow_continues_with_the_log_of_the_next_driver(tmp_path: Path) -> None:
    first, second = tmp_path / "one.log", tmp_path / "two.log"
    first.write_text("old\n")
    latest = [first]
    lines = follow(first, lambda: latest[0], every=0.01)
    writer = threading.Timer(0.05, append, (first, "new\n"))
    writer.start()
    assert next(lines) == "new\n"
    writer.join()
    second.write_text("next driver\n")
    latest[0] = second
    assert next(lines) == f"--- {second} ---\n"
    assert next(lines) == "next driver\n"


def test_follow_continues_while_the_database_is_down(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text("")

    def away() -> Path:
        append(log, "still here\n")
        raise ControlError("away")

    assert next(follow(log, away, every=0.01)) == "still here\n"


@pytest.mark.processes
def test_a_platform_that_is_down_is_an_error_with_a_hint(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_CONTROL_URL", raising=False)
    port = str(ports.free_port(3))
    for name in ("MARIADB", "KAFKA"):
        monkeypatch.setenv(f"PENSTOCK_{name}_PORT", port)
    clear_caches()
    for command in (["streams", "list"], ["topics", "read", "receipts"]):
        said = CliRunner().invoke(penstock, command)
        assert said.exit_code == 1
        assert "start the platform with `penstock up`" in said.output
    assert not list(home.iterdir())


def test_completion_offers_streams_and_apps(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.catalog.partial_catalog", lambda: (catalog, []))
    assert complete("b") == [("bundles", "stream of metrics")]
    assert [name for name, _ in complete("")] == ["bundles", "metrics", "quality", "summaries", "topic-quality"]


@pytest.mark.processes
def test_the_error_of_a_healthy_stream_is_past(control: Control) -> None:
    assert "last error, " in run("show", "summaries")
    (row,) = (row for row in control.progress().values() if row.name == "summaries")
    control.report([replace(row, state="idle")], keep=False)
    assert "past error, " in run("show", "summaries")
