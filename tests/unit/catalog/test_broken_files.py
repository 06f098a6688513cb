"""A file that cannot be read costs its own app, and no running driver."""

from __future__ import annotations

import errno
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.catalog import load_partial, mistakes_of_app, partial_catalog
from penstock.cli import app as penstock
from penstock.control import Actor, Control, ProgressRow, connect
from penstock.errors import DeclarationError, ReleaseRefused
from penstock.host import session
from penstock.settings import PROJECT, settings
from penstock.supervision import launch, release
from penstock.supervision.declared import declared_windows
from penstock.supervision.lifecycle import Driver
from penstock.supervision.unreadable_run import UnreadableRun
from tests.chaos.projects import other_project
from tests.support.airflow_tasks import context

pytestmark = pytest.mark.processes

STREAM = """
from penstock.streams import Stateless, Input, Stream, Topic, TopicOutput
STREAM = Stream("{name}", "{app}", {{"rows": Input(Topic("in"))}}, lambda rows: rows,
                TopicOutput(Topic("{name}-out"), value="value"), Stateless())
"""
WINDOWED = "from datetime import timedelta\nfrom penstock.streams import EmitFinal\n" + STREAM.format(
    name="rates", app="bank"
).replace("Stateless())", "EmitFinal(timedelta(60), timedelta(1)))")
CAPTURE = "CAPTURE INTO {name} FROM sqlite demo KEY (id) CURSOR at AS SELECT id, at FROM t"
ME = Actor("me", "cli")
BROKEN = "def f(:\n"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """Apps `shop` of two files, `bank` of one, and two captures."""
    for name, app in (("sales", "shop"), ("returns", "shop"), ("rates", "bank")):
        file = tmp_path / "jobs" / app / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(STREAM.format(name=name, app=app))
    (tmp_path / "sql" / "captures").mkdir(parents=True)
    for name in ("people", "towns"):
        (tmp_path / "sql" / "captures" / f"{name}.sql").write_text(CAPTURE.format(name=name))
    variables = {"PENSTOCK_CONTROL_URL": f"sqlite:///{tmp_path}/control.db", "PENSTOCK_HOME": tmp_path / "home"}
    with other_project(tmp_path, variables):
        yield tmp_path


@pytest.fixture
def control(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:  # noqa: ARG001
    """It knows all that the project declares. Its releases create no topics, as no broker runs."""
    monkeypatch.setattr("penstock.kafka.admin.create_missing", lambda *_: [])
    made = connect()
    made.migrate()
    made.sync(partial_catalog()[0])
    partial_catalog.cache_clear()
    yield made
    for d in made.drivers(live=False):
        d.session.kill()
    made.engine.dispose()


def broken(project: Path, name: str) -> None:
    """Let a file of the project be one that cannot be read, as a new process finds it."""
    (project / name).write_text(BROKEN)
    for module in [m for m in sys.modules if m.partition(".")[0] == "jobs"]:
        del sys.modules[module]
    partial_catalog.cache_clear()


def dags(file: str) -> set[str]:
    from airflow.sdk import DAG

    return {v.dag_id for v in runpy.run_path(str(PROJECT / "dags" / file)).values() if isinstance(v, DAG)}


@pytest.mark.usefixtures("airflow_home")
def test_the_dags_of_others_stay_and_airflow_shows_the_mistake(project: Path) -> None:
    broken(project, "jobs/bank/rates.py")
    broken(project, "sql/captures/towns.sql")
    apps = {"streams_shop", "streams_bank", "streams_captures"}
    of_all = {"operate_streams", "release_streams", "replace_stream", "rebuild_streams", "partitions"}
    assert dags("streams.py") == apps | {"capture_people"} | of_all
    assert dags("heartbeat.py") == {"heartbeat", "reaper"}
    with pytest.raises(DeclarationError, match=r"(?s)rates\.py cannot be imported.*towns\.sql"):
        dags("declarations.py")


@pytest.mark.usefixtures("airflow_home")
def test_whole_files_are_no_import_error(project: Path) -> None:  # noqa: ARG001
    assert dags("declarations.py") == set()


def test_a_mistake_concerns_the_app_of_its_folder(project: Path) -> None:
    (project / "jobs" / "bank" / "more.py").write_text(STREAM.format(name="more", app="shop"))
    broken(project, "jobs/bank/rates.py")
    found, wrong = load_partial()
    assert {app: len(mistakes_of_app(app, found, wrong)) for app in ("shop", "bank", "captures")} == {
        "shop": 1, "bank": 1, "captures": 0,
    }  # fmt: skip
    (project / "jobs" / "bank" / "more.py").unlink()
    found, wrong = load_partial()
    assert not mistakes_of_app("shop", found, wrong)


def test_an_app_has_its_own_streams_before_those_of_others(project: Path) -> None:
    (project / "jobs" / "bank" / "more.py").write_text(STREAM.format(name="sales", app="bank"))
    assert load_partial(first="shop")[0].streams["sales"].app == "shop"
    assert load_partial(first="bank")[0].streams["sales"].app == "bank"


def test_a_name_that_two_apps_declare_stays_with_the_one_that_had_it(project: Path, control: Control) -> None:
    (project / "jobs" / "bank" / "more.py").write_text(STREAM.format(name="sales", app="bank"))
    partial_catalog.cache_clear()
    found, wrong = partial_catalog()
    assert wrong
    control.sync(found, forget=False)
    assert (control.app_of("sales"), set(control.desired("bank"))) == ("shop", {"rates"})
    with pytest.raises(ReleaseRefused, match="sales"):
        release.release(control, "bank", ME)


@pytest.mark.usefixtures("airflow_home")
def test_nothing_of_the_control_database_is_forgotten(project: Path, control: Control) -> None:
    from penstock.airflow.operators import SuperviseStreams

    broken(project, "jobs/bank/rates.py")
    for app in ("shop", "bank"):
        wrong = SuperviseStreams(task_id="t", app=app)._declare()
        assert [("rates.py" in str(e)) for e in wrong] == [True] * (app == "bank")
    assert control.desired() == dict.fromkeys(["people", "rates", "returns", "sales", "towns"], "on")
    (project / "jobs" / "bank" / "rates.py").unlink()
    partial_catalog.cache_clear()
    SuperviseStreams(task_id="t", app="bank")
    SuperviseStreams(task_id="t", app="shop")._declare()
    assert "rates" in control.desired(), "what the app itself declares has not changed"


@pytest.mark.usefixtures("airflow_home")
def test_the_reaper_ends_no_driver_for_a_mistake(project: Path, control: Control) -> None:
    from penstock.airflow.operators import EndOrphanedDrivers

    incarnation = control.claim("bank", None, host=session.host(), spec_hash="", owner="me", log="")
    assert incarnation
    pid, started = launch.start([sys.executable, "-c", "import time; time.sleep(600)"], log=project / "log", env={})
    control.update_driver(incarnation, pid=pid, pid_started=started, state="running")
    broken(project, "jobs/bank/rates.py")
    assert EndOrphanedDrivers(task_id="reap").execute(context()) == []
    (project / "jobs" / "bank" / "rates.py").unlink()
    assert "not declared" in EndOrphanedDrivers(task_id="reap").execute(context())[0]


@pytest.mark.usefixtures("airflow_home")
def test_what_cannot_be_read_can_be_stopped(project: Path, control: Control) -> None:
    from penstock.airflow.operators import OperateStreams

    broken(project, "jobs/bank/rates.py")
    OperateStreams(task_id="t").execute(context("r", "ann", action="stop", target="app bank", note=""))
    assert control.desired("bank") == {"rates": "off"}


class Idle(Driver):
    """A driver whose streams do nothing."""

    def create_run(self, name: str, figures: ProgressRow) -> UnreadableRun:  # noqa: ARG002
        return UnreadableRun(figures, "")


def driver(control: Control, app: str) -> Idle:
    incarnation = control.claim(app, None, host="h", spec_hash="", owner="me", log="")
    assert incarnation
    return Idle(app, incarnation, control)


def test_a_driver_runs_what_can_be_read_of_its_app(project: Path, control: Control) -> None:
    control.report([ProgressRow("returns", "shop", "before", rows_in=7)], keep=False)
    broken(project, "jobs/shop/returns.py")
    made = driver(control, "shop")
    made._open_runs()
    made._look()
    made._report(keep=False)
    row = control.progress("shop")["returns"]
    assert (row.state, row.rows_in) == ("failing", 7)
    assert "returns.py cannot be imported" in (row.error or "")
    control.set_desired(["returns"], "off", ME)
    made._look()
    made._report(keep=False)
    assert control.progress("shop")["returns"].state == "stopped"


def test_a_driver_says_that_memory_was_full_before_it(control: Control) -> None:
    def errors(incarnation: str) -> set[str | None]:
        made = Idle("shop", incarnation, control)
        made._open_runs()
        made._report(keep=False)
        return {row.error for row in control.progress("shop").values()}

    first = control.claim("shop", None, host="h", spec_hash="", owner="me", log="") or ""
    control.end_driver(first, "its JVM ran out of memory: Java heap space", "memory")
    second = control.claim("shop", first, host="h", spec_hash="", owner="me", log="") or ""
    assert errors(second) == {"its JVM ran out of memory: Java heap space"}
    control.end_driver(second, "its process is gone")
    third = control.claim("shop", second, host="h", spec_hash="", owner="me", log="") or ""
    assert errors(third) == {None}


def test_a_driver_without_anything_to_run_says_why(project: Path, control: Control) -> None:
    broken(project, "jobs/bank/rates.py")
    made = driver(control, "bank")
    assert made.run() == 78
    row = control.driver(made.incarnation)
    assert row is not None and row.state == "ended"  # noqa: PT018
    assert "rates.py cannot be imported" in (row.reason or "")


def test_a_stream_that_does_not_stop_in_order_keeps_no_other_from_it(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = driver(control, "shop")
    made._leases.take()
    made._open_runs()
    made._look()
    monkeypatch.setattr(made._runs["returns"], "stop", lambda: 1 / 0)
    made._leave("release 1", "released")
    made._drain()
    row = control.driver(made.incarnation)
    assert row
    assert (row.state, row.reason) == ("ended", "release 1")
    assert control.progress("shop")["sales"].state == "stopped"
    assert control.leases() == {}


# Releases


def test_broken_code_is_not_released(project: Path, control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    real, fine = release._run_check, {"refused": list[str]()}
    monkeypatch.setattr(release, "_run_check", lambda c, *of: real(c, *of) if c[0] == "penstock.catalog" else fine)
    broken(project, "jobs/shop/returns.py")
    with pytest.raises(ReleaseRefused, match=r"the code of app shop cannot be read.*returns\.py.*correct the files"):
        release.release(control, "shop", ME)
    assert release.release(control, "bank", ME) == 1
    (project / "jobs" / "bank" / "rates.py").unlink()
    with pytest.raises(ReleaseRefused, match=r"another app .* may declare rates, so app bank is not .*returns\.py"):
        release.release(control, "bank", ME)
    broken(project, "sql/captures/towns.sql")
    with pytest.raises(ReleaseRefused, match=r"app captures .*towns\.sql"):
        release.release(control, "captures", ME)
    (project / "jobs" / "shop" / "returns.py").unlink()
    assert release.release(control, "shop", ME) == 1, "a stream whose file is gone is gone by intent"
    assert [a["verb"] for a in control.actions()] == ["release", "release"]


def test_the_code_of_where_a_release_is_asked_for_is_not_the_projects(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = project / "elsewhere" / "jobs" / "shop"
    elsewhere.mkdir(parents=True)
    (elsewhere / "__init__.py").touch()
    (elsewhere / "sales.py").write_text(BROKEN)
    monkeypatch.chdir(project / "elsewhere")
    told = release._run_check(("penstock.catalog", "shop"), 60, project)
    assert (sorted(told["names"]), told["wrong"], told["others"]) == (["returns", "sales"], [], [])


def test_state_that_does_not_fit_is_not_released_unless_accepted(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def told(command: tuple[str, ...], *_: object) -> dict[str, Any]:
        asked.append(command)
        if command[0] == "penstock.catalog":
            return {"names": ["sales"], "streams": True, "schemas": [], "wrong": [], "others": []}
        return {"refused": [] if "--accept" in command else ["stream sales has state of other code"]}

    monkeypatch.setattr(release, "_run_check", told)
    with pytest.raises(ReleaseRefused, match=r"app shop cannot continue with this code.*state of other code"):
        release.release(control, "shop", ME)
    assert release.release(control, "shop", ME, "agreed", accept_state=True) == 1
    assert asked[-1] == ("penstock.engine.checkpoint.plan_fingerprint", "shop", "--accept")
    assert control.actions(1)[0]["detail"] == "agreed (what streams have in state is accepted)"


def test_the_beats_of_a_broken_file_go_on(project: Path) -> None:
    (project / "jobs" / "bank" / "rates.py").write_text(WINDOWED)
    before = declared_windows()
    assert [one["topic"] for one in before] == ["in"]
    broken(project, "jobs/bank/rates.py")
    assert declared_windows() == before
    assert json.loads((settings().home / "run" / "windows.json").read_text()) == before


def test_who_feeds_a_topic_is_known_though_its_file_breaks(project: Path) -> None:
    """Its driver runs on, and its readers' windows wait for it as before."""
    from penstock.airflow.triggers import _windowed

    (project / "jobs" / "bank" / "rates.py").write_text(WINDOWED.replace('Topic("in")', 'Topic("sales-out")'))
    before = declared_windows()
    found = _windowed(json.loads(json.dumps(before)))
    assert found == partial_catalog()[0].heartbeat_topics()
    assert list(found["sales-out"].writers) == ["sales"]
    broken(project, "jobs/shop/sales.py")
    assert declared_windows() == before
    old = [{key: one[key] for key in ("topic", "heartbeat_every", "readers")} for one in before]
    assert _windowed(old)["sales-out"].writers == {}, "a trigger that an earlier version left"
    (settings().home / "run" / "windows.json").write_text(json.dumps(old))
    assert [one["topic"] for one in declared_windows()] == ["sales-out"]


@pytest.mark.parametrize(
    "does",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()",
        "import atexit\natexit.register(print, 'bye')",
        "import sys\nsys.stdout = None",
        "import os\nos.close(1)",
        "raise ValueError('\\udcfc')",
    ],
    ids=["goes on", "speaks last", "takes the output", "closes the output", "is not UTF-8"],
)
def test_what_a_file_does_to_its_process_keeps_no_other_app_from_a_release(
    project: Path, control: Control, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    real = release._run_check
    monkeypatch.setattr(
        release, "_run_check", lambda c, _, p: real(c, 20, p) if c[0] == "penstock.catalog" else {"refused": []}
    )
    (project / "jobs" / "shop" / "odd.py").write_text(does + "\n")
    assert release.release(control, "bank", ME) == 1


@pytest.mark.parametrize(
    ("does", "says"),
    [("import os\nos._exit(3)\n", "could not check the code"), ("while True: pass\n", "no answer within")],
    ids=["ends its process", "never ends"],
)
def test_a_file_that_ends_or_stops_its_reader_refuses_a_release(
    project: Path, control: Control, monkeypatch: pytest.MonkeyPatch, does: str, says: str
) -> None:
    monkeypatch.setattr(release, "READ_TIMEOUT", 10.0)
    (project / "jobs" / "shop" / "odd.py").write_text(does)
    with pytest.raises(ReleaseRefused, match=says):
        release.release(control, "shop", ME)
    assert not control.actions()


def test_what_a_file_prints_is_no_part_of_the_catalog(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "jobs" / "shop" / "odd.py").write_text("import sys\nprint('hello')\nsys.stdout = None\n")
    load_partial()
    print("data")
    assert capsys.readouterr() == ("data\n", "hello\n")


def test_a_thread_that_a_file_starts_keeps_no_command_from_its_end(project: Path) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    (project / "jobs" / "shop" / "odd.py").write_text(text)
    command = [sys.executable, "-c", "from penstock.catalog import load_partial; print(len(load_partial()[0].apps))"]
    done = subprocess.run(command, env=launch.environment(), capture_output=True, check=True, timeout=20)
    assert done.stdout == b"3\n"


def test_a_project_that_is_not_there_is_no_wish_to_run_nothing(project: Path, control: Control) -> None:
    control.set_desired(["sales"], "off", ME)
    for folder in ("jobs", "sql"):
        (project / folder).rename(project / f"{folder}-away")
    asked = CliRunner().invoke(penstock, ["migrate"])
    assert asked.exit_code == 1
    assert "there is no project" in asked.stderr
    assert control.desired("shop") == {"sales": "off", "returns": "on"}


@pytest.mark.parametrize("folder", ["jobs", "jobs/shop", "sql/captures", "sql/sinks"])
def test_a_folder_that_cannot_be_read_is_no_wish_to_run_nothing(
    project: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(self: Path, real: Any = Path.iterdir) -> Any:
        if self == project / folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "iterdir", listed)
    with pytest.raises(DeclarationError, match=f"folder .*/{folder} cannot be read; got: Permission denied"):
        load_partial()
