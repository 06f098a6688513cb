"""One app's driver starts ahead of the others, and it is known until when `penstock up` waits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.control import Control, tables
from penstock.devstack import stream_start
from penstock.devstack.stream_start import first_app, launch_driver, wait_for_streams
from penstock.errors import HostError
from penstock.monitoring.dashboard.model import Overview, StreamView
from penstock.monitoring.dashboard.states import State
from penstock.settings import settings
from penstock.supervision import launch
from tests.support.supervised_platform import SLEEP, Platform


def declare(control: Control, app: str, *streams: str, desired: str = "on") -> None:
    with control.engine.begin() as c:
        c.execute(tables.app.insert().values(name=app, release_seq=0, restarts=0))
        c.execute(tables.stream.insert(), [{"name": name, "app": app, "desired": desired} for name in streams])


def test_the_first_app_is_the_first_with_wanted_streams_on_spark(control: Control) -> None:
    assert first_app(control, ()) == ""
    declare(control, "views-1", "known@1")
    declare(control, "captures", "rows")
    declare(control, "agents", "alerts", desired="off")
    assert first_app(control, ()) == "", "views and captures start quickly, and agents may not run"
    declare(control, "quality", "counts")
    declare(control, "metrics", "minutes", "sums")
    assert first_app(control, ()) == "metrics"
    assert first_app(control, {"minutes"}) == "metrics"
    assert first_app(control, {"minutes", "sums"}) == "quality"
    declare(control, "agents-2", "calls")
    assert first_app(control, ()) == "agents-2"
    assert first_app(control, (), {"quality", "metrics"}) == "metrics", "it has something to show at once"
    assert first_app(control, {"minutes", "sums", "counts"}, {"quality", "metrics"}) == "agents-2"


def test_airflows_task_adopts_the_driver_that_up_has_launched(p: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def command(app: str, incarnation: str) -> Sequence[str]:
        asked.append(app)
        return [*SLEEP, *launch.driver_arguments(app, incarnation)]

    monkeypatch.setattr(stream_start, "_command", command)
    assert launch_driver(p.control, "a") == ""
    first = p.driver()
    assert (first.owner, first.session.alive()) == ("penstock up", True)
    assert p.supervisor("the task").tick().action == "rest"
    assert (p.driver().incarnation, p.driver().owner, p.launched) == (first.incarnation, "the task", [])
    assert p.verbs() == ["launch", "adopt"]

    assert launch_driver(p.control, "a") == "it runs already"
    assert p.driver().owner == "the task", "marking that task still ends the driver"
    first.session.kill()
    assert launch_driver(p.control, "a") == "", "as after a power cut"
    assert asked == ["a", "a"]
    for _ in range(2):
        p.driver().session.kill()
        said = launch_driver(p.control, "a")
    assert "died young; next launch in" in said, "a crash loop is Airflow's to wait for"


@pytest.mark.usefixtures("airflow_home")
def test_up_starts_what_airflows_connection_would(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.airflow.spark_submit import spark_submit

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", f'{{"conn_type": "spark", "host": "{settings().spark_master}"}}')
    conf = home / "run" / "spark-a.conf"

    def started(words: Sequence[str] | object) -> tuple[dict[str, str], list[str]]:
        """Spark's settings by option and by file, and the program with its arguments."""
        assert isinstance(words, list)
        found, rest = {}, list(words[1:])
        assert words[0] == "spark-submit"
        named = {"--master": "spark.master", "--name": "spark.app.name", "--properties-file": ""}
        while rest[0].startswith("--"):
            option = rest.pop(0)
            if option != "--load-spark-defaults":
                found[named[option]] = rest.pop(0)
        assert found.pop("") == str(conf)
        found |= dict(line.split("=", 1) for line in conf.read_text().splitlines())
        return {key: value.replace("\\", "") for key, value in found.items()}, rest

    by_airflow = started(spark_submit("spark_default", "a", "i"))
    assert started(stream_start._command("a", "i")) == by_airflow
    assert by_airflow[1] == [str(launch.DRIVER), "--app", "a", "--incarnation", "i"]


# Until when up waits


def stream(name: str, app: str, state: State, rows_in: int = 0) -> StreamView:
    return StreamView(
        name, app, "on", state, "no room" if state == "failing" else "", False, batch_age_ms=10, rows_in=rows_in
    )


class Looks:
    """What is seen, look by look; the last one again and again."""

    def __init__(self, *looks: Sequence[StreamView]) -> None:
        self._looks: Iterator[Sequence[StreamView]] = iter(looks)
        self._last = looks[-1]
        self.said: list[str] = []

    def __call__(self) -> Overview:
        streams = next(self._looks, self._last)
        return cast(Overview, SimpleNamespace(apps=[SimpleNamespace(streams=streams)]))

    def wait(self, app: str = "", left_out: Sequence[str] = ()) -> str:
        wait_for_streams(self, left_out, self.said.append, app)
        return self.said[-1]


@pytest.fixture
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(stream_start, "FAILING_TIMEOUT", 0.05)


STARTING = [stream("minutes", "metrics", "starting"), stream("counts", "quality", "starting")]
AHEAD = [stream("minutes", "metrics", "running", 7), STARTING[1]]
RUNNING = [AHEAD[0], stream("counts", "quality", "running", 3)]


@pytest.mark.usefixtures("_in_no_time")
def test_the_first_figures_of_the_first_app_are_enough_and_what_starts_is_named() -> None:
    looks = Looks(STARTING, [stream("minutes", "metrics", "running"), STARTING[1]], AHEAD, RUNNING)
    assert looks.wait("metrics") == "1 of 2 streams, 7 records read, 1 still start"
    assert looks.said == ["1 starting: minutes", "the first batches", looks.said[-1]]


@pytest.mark.usefixtures("_in_no_time")
def test_without_a_first_app_all_must_run() -> None:
    looks = Looks(STARTING, AHEAD, RUNNING)
    assert looks.wait() == "2 streams, 10 records read"
    assert len(looks.said) == 3
    assert Looks(AHEAD).wait(left_out=["counts"]) == "1 stream, 7 records read"


@pytest.mark.usefixtures("_in_no_time")
def test_records_are_not_waited_for_where_none_wait_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = replace(stream("minutes", "metrics", "idle", 7), batch_age_ms=600_000)
    monkeypatch.setattr(stream_start, "QUIET_TIMEOUT", 0.05)
    assert Looks([idle]).wait() == "1 stream, 7 records read"
    assert Looks([idle, STARTING[1]]).wait("metrics") == "1 of 2 streams, 7 records read, 1 still start"
    monkeypatch.setattr(stream_start, "STREAMS_TIMEOUT", 0.2)
    behind = replace(idle, name="counts", state="running")
    assert Looks([idle, behind]).wait() == "no stream has read a record in the last minute"


@pytest.mark.usefixtures("_in_no_time")
def test_a_stream_that_fails_is_not_waited_for_for_long() -> None:
    failing = replace(stream("counts", "quality", "failing"), why="no room")
    with pytest.raises(HostError, match="not every stream runs; got: counts is failing: no room"):
        Looks([AHEAD[0], failing]).wait()
    said = Looks([AHEAD[0], failing]).wait("metrics")
    assert said == "1 of 2 streams, 7 records read, 1 failing: counts", "it is told all the same"


@pytest.mark.usefixtures("_in_no_time")
def test_streams_that_start_for_ever_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_start, "STREAMS_TIMEOUT", 0.0)
    with pytest.raises(HostError, match="minutes is starting"):
        Looks(STARTING).wait("metrics")
    said = Looks([stream("minutes", "metrics", "idle"), STARTING[1]]).wait("metrics")
    assert said == "no stream has read a record in the last minute"
