"""What keeps the platform from coming up is said before anything is started."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from typer.testing import CliRunner

from penstock.catalog import load_partial
from penstock.cli import app
from penstock.control import Control
from penstock.devstack import doctor, platform, stream_start
from penstock.devstack.platform import Platform
from penstock.errors import DeclarationError, HostError
from penstock.host import ports, process, session
from penstock.java import aot_cache
from penstock.model.declaration import CAPTURES_APP
from penstock.settings import settings
from penstock.sinks.core import connections
from penstock.supervision import backends, launch
from tests.chaos.projects import other_project
from tests.support.reports import Silent
from tests.support.wait import wait_until

pytestmark = pytest.mark.processes

STREAM = """
from penstock.streams import Stateless, Input, Stream, Topic, TopicOutput
STREAM = Stream("{name}", "{app}", {{"rows": Input(Topic("in"))}}, lambda rows: rows,
                TopicOutput(Topic("{name}-out"), value="value"), Stateless())
"""
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _own_ports(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ports.free_port(6)
    for step, name in enumerate(("KAFKA", "", "MARIADB", "AIRFLOW", "METRICS", "S3")):
        if name:
            monkeypatch.setenv(f"PENSTOCK_{name}_PORT", str(first + step))
    settings.cache_clear()
    assert settings().home == home


@pytest.mark.parametrize(
    ("variable", "step", "label"),
    [
        ("PENSTOCK_KAFKA_PORT", 0, "the Kafka broker"),
        ("PENSTOCK_KAFKA_PORT", 1, "the Kafka broker"),
        ("PENSTOCK_MARIADB_PORT", 0, "the MariaDB server"),
        ("PENSTOCK_AIRFLOW_PORT", 0, "Airflow's web and API server"),
        ("PENSTOCK_METRICS_PORT", 0, "the meter"),
        ("PENSTOCK_S3_PORT", 0, "the object store"),
    ],
)
def test_a_taken_port_names_the_part_the_holder_and_the_way_out(variable: str, step: int, label: str) -> None:
    port = int(os.environ[variable]) + step
    report = Silent()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(HostError) as caught:
            Platform().up(report)
    said = str(caught.value)
    assert f"port {port} of {label} is in use" in said
    assert f"pid {os.getpid()}" in said
    assert f"{variable}=<port> penstock up" in said
    assert report.titles == ["Checking this machine"]
    assert not list(settings().home.glob("run/*.json"))


def test_a_folder_that_is_no_project_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.setenv("PENSTOCK_PROJECT", str(folder))
    monkeypatch.setenv("PENSTOCK_HOME", str(folder / ".penstock"))
    settings.cache_clear()
    with pytest.raises(DeclarationError, match="there is no project"):
        Platform().up(Silent())
    assert not list(folder.iterdir())


def test_a_full_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12, 10**9))
    with pytest.raises(HostError, match=r"nearly full.*0\.9 GiB free, 3 are needed.*PENSTOCK_HOME"):
        Platform().up(Silent())


def test_down_without_a_platform_is_quiet(home: Path) -> None:
    Platform().down(Silent())
    home.rmdir() if not any(home.iterdir()) else shutil.rmtree(home)
    Platform().down(Silent())
    assert not home.exists()


def test_one_process_creates_javas_cache_and_down_ends_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands, spawn = [], process.spawn

    def sleep_instead(name: str, command: list[str], **options: Any) -> process.ProcessRecord:
        commands.append(command)
        return spawn(name, ["sleep", "60"], **options)

    monkeypatch.setattr(process, "spawn", sleep_instead)
    monkeypatch.setattr(aot_cache, "missing", lambda: True)
    for _ in range(2):
        Platform().create_java_cache()
    assert commands == [[sys.executable, "-m", "penstock.java.aot_cache"]]
    record = process.read(home / "run", "java-cache")
    assert record is not None
    assert record.process() is not None
    assert [path for path in home.rglob("*") if path.is_file() and path.stat().st_mode & 0o077] == []
    Platform().down(Silent())
    assert record.process() is None


def test_where_a_stream_fails_the_session_for_previews_starts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise HostError("not every stream runs")

    made, started = Platform(), list[str]()
    for name in ("_check", "_fetch", "_start_stores", "_start_all", "declare"):
        monkeypatch.setattr(made, name, lambda *_: "")
    monkeypatch.setattr(made, "_launch_first_driver", lambda *_: "shop")
    monkeypatch.setattr(made, "create_java_cache", lambda: started.append("cache"))
    monkeypatch.setattr(made, "shared_session", SimpleNamespace(start=lambda: started.append("session")))
    monkeypatch.setattr(platform, "connect", lambda _: None)
    monkeypatch.setattr(stream_start, "wait_for_streams", failing)
    with pytest.raises(HostError, match="not every stream runs"):
        made.up(Silent())
    assert started == ["cache", "session"]


@pytest.mark.parametrize("app", ["metrics", CAPTURES_APP, "views-1"])
def test_down_ends_drivers_the_database_does_not_know(app: str, home: Path, tmp_path: Path) -> None:
    def driver(place: Path) -> subprocess.Popen[bytes]:
        told = launch.python_command(app, "i") or [str(launch.DRIVER), *launch.driver_arguments(app, "i")]
        command = [sys.executable, "-c", "import time; time.sleep(600)", *told]
        env = {**os.environ, "PENSTOCK_HOME": str(place)}
        return subprocess.Popen(command, start_new_session=True, env=env)

    with driver(home) as mine, driver(tmp_path / "another") as other:
        wait_until(lambda: platform.Platform()._unrecorded_sessions() == {mine.pid})
        Platform().down(Silent())
        assert mine.wait(10) == -9
        assert other.poll() is None
        other.kill()


def test_down_kills_drivers_after_the_time_that_is_set_for_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    killed, row = list[object](), SimpleNamespace(incarnation="i")
    monkeypatch.setenv("PENSTOCK_DRAIN_TIMEOUT", "0.5")
    settings.cache_clear()
    monkeypatch.setattr(platform, "connect", lambda _: Mock(drivers=lambda: [row]))
    monkeypatch.setattr(backends, "alive", lambda _: not killed)
    monkeypatch.setattr(backends, "terminate", lambda _: None)
    monkeypatch.setattr(backends, "kill", killed.append)
    began = time.monotonic()
    Platform().down(Silent())
    assert killed == [row]
    assert 0.5 <= time.monotonic() - began < 10


def test_a_name_that_two_files_declare_is_told_and_not_waited_for(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs" / "shop").mkdir(parents=True)
    for name in ("__init__", "returns", "sales"):
        text = "" if name == "__init__" else STREAM.format(name="sales", app="shop")
        (tmp_path / "jobs" / "shop" / f"{name}.py").write_text(text)
    with other_project(tmp_path, {"PENSTOCK_CONTROL_URL": "sqlite://", "PENSTOCK_HOME": str(tmp_path / "home")}):
        made = Platform()
        made.mariadb = None
        monkeypatch.setattr(platform, "connect", lambda _: control)
        monkeypatch.setattr(platform, "ensure_topics", lambda *_: [])
        monkeypatch.setattr(stream_start, "STREAMS_TIMEOUT", 0.0)
        said = made._declare(*load_partial(tmp_path, combiners=False))
        assert "wrong: " in said
        assert "shop/sales.py" in said
        waited = stream_start.wait_for_streams(lambda: made.view(control), made._left_out, Silent().say)
        assert waited, "a stream of an app with a mistake is not waited for"


@pytest.mark.parametrize("asked", ["influxdb", "InfluxDB, ", " influxdb"])
def test_a_store_that_is_asked_for_is_a_part(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [part.name for part in Platform().stores] == ["s3"]
    monkeypatch.setenv("PENSTOCK_STORES", asked)
    settings.cache_clear()
    assert [(part.name, part.ports["http"]) for part in Platform().stores] == [
        ("influxdb", settings().influxdb_port), ("s3", settings().s3_port),
    ]  # fmt: skip
    found = {check.name: check for check in doctor.examine(Platform())}
    assert (found["InfluxDB server"].state, found["InfluxDB server"].hint) == ("fail", doctor.UNUSED)


@pytest.mark.parametrize("asked", ["", "s3"])
def test_the_object_store_is_a_part_unless_it_is_elsewhere(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STORES", asked)
    monkeypatch.setenv("PENSTOCK_S3_PORT", "19901")
    settings.cache_clear()
    assert [(part.name, part.ports) for part in Platform().stores] == [("s3", {"http": 19901})]
    found = {check.name: check for check in doctor.examine(Platform())}
    assert (found["object store"].state, found["object store"].hint) == ("fail", doctor.UNUSED)
    assert "Jars of s3" in found
    for name, url in (("AIRFLOW_CONN_S3", "aws://key:secret@/"), ("PENSTOCK_S3_URL", "s3://")):
        monkeypatch.setenv(name, url)
        settings.cache_clear()
        if asked:
            with pytest.raises(HostError, match=f"remove s3 from STORES, or unset {name}"):
                Platform()
        else:
            assert Platform().stores == []
        monkeypatch.delenv(name)


def test_a_schema_registry_is_a_part_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_REGISTRY", "1")
    monkeypatch.setenv("PENSTOCK_SCHEMA_REGISTRY_PORT", "19082")
    settings.cache_clear()
    assert [(part.name, part.ports) for part in Platform().stores[1:]] == [("schema_registry", {"http": 19082})]
    found = {check.name: check for check in doctor.examine(Platform())}
    assert (found["schema registry"].state, found["schema registry"].hint) == ("fail", doctor.UNUSED)
    assert "Jars of schema_registry" in found
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY", "http://h:8081")
    with pytest.raises(HostError, match=r"REGISTRY=1 and AIRFLOW_CONN_SCHEMA_REGISTRY; hint: leave REGISTRY=1 out"):
        Platform()


def test_stores_are_refused_that_do_not_run_here_or_lie_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for stores, said in (
        (
            "influxdb redis",
            "there is no such embedded store; got: redis; hint: STORES may have: elasticsearch mongodb",
        ),
        (
            "influxdb",
            "got: STORES=influxdb and PENSTOCK_INFLUXDB_URL; hint: remove influxdb from STORES, or unset",
        ),
    ):
        monkeypatch.setenv("PENSTOCK_STORES", stores)
        monkeypatch.setenv("PENSTOCK_INFLUXDB_URL", "http://h:8086")
        settings.cache_clear()
        with pytest.raises(HostError, match=said):
            Platform()


def test_a_store_that_runs_here_is_found_by_its_sinks_until_it_is_taken_down(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From processes that nobody told of it, on the port where it runs."""
    monkeypatch.delenv("PENSTOCK_INFLUXDB_URL", raising=False)
    monkeypatch.delenv("AIRFLOW_CONN_INFLUXDB", raising=False)
    assert connections.url("influxdb") == ""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as held:
        since = psutil.Process(held.pid).create_time() - psutil.boot_time()
        ports = {"http": 12345, "rpc": 12346}
        process.ProcessRecord("influxdb", held.pid, since, session.boot_id(), ports).write(home / "run")
        assert connections.url("influxdb") == "http://127.0.0.1:12345"
        assert Platform(platform.as_running(settings())).stores[0].ports == ports
        Platform().down(Silent())
        held.wait(10)
    assert connections.url("influxdb") == ""
    assert [part.name for part in Platform().stores] == ["s3"]


def test_doctor_says_how_to_mend_each() -> None:
    found = {check.name: check for check in doctor.examine(Platform())}
    assert found["Spark"].state == "ok"
    assert found["Declarations"].state == "ok"
    for name in ("Broker", "Control database", "Airflow"):
        assert found[name].state == "fail"
        assert "penstock up" in found[name].hint


def test_doctor_asks_the_schema_registry_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(doctor._schemas(Platform())) == []
    monkeypatch.setenv("PENSTOCK_SCHEMA_REGISTRY_URL", f"http://u:hidden@127.0.0.1:{ports.free_port()}")
    settings.cache_clear()
    found = {check.name: check for check in doctor.examine(Platform())}
    assert (found["Schemas"].state, "hidden" in str(found["Schemas"])) == ("fail", False)
    assert "does not answer" in found["Schemas"].found
    assert "PENSTOCK_SCHEMA_REGISTRY_URL" in found["Schemas"].hint


def test_doctor_sees_a_taken_port() -> None:
    port = settings().mariadb_port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        found = {check.name: check for check in doctor._ports(Platform())}
    assert found[f"Port {port}"].state == "fail"
    assert "PENSTOCK_MARIADB_PORT" in found[f"Port {port}"].hint


def test_doctor_and_status_as_json() -> None:
    run = CliRunner()
    told = run.invoke(app, ["doctor", "--json"])
    assert told.exit_code == 1
    assert json.loads(told.stdout)["ok"] is False
    told = run.invoke(app, ["status", "--json"])
    assert told.exit_code == 1
    assert {p["state"] for p in json.loads(told.stdout)["servers"]} == {"stopped"}
    assert "penstock up" in run.invoke(app, ["status"]).stdout


def test_logs_of_a_part(home: Path) -> None:
    (home / "logs").mkdir()
    (home / "logs" / "broker.log").write_text("one\ntwo\nthree\n")
    (home / "logs" / "driver-quality-20260101T000000000000.log").write_text("old\n")
    (home / "logs" / "driver-quality-20260102T000000000000.log").write_text("new\n")
    run = CliRunner()
    assert run.invoke(app, ["logs", "broker", "-n", "2"]).stdout == "two\nthree\n"
    assert run.invoke(app, ["logs", "driver-quality"]).stdout == "new\n"
    every = run.invoke(app, ["logs"]).stdout
    assert "broker | three" in every
    assert "driver-quality | new" in every
    refused = run.invoke(app, ["logs", "brokr"])
    assert refused.exit_code == 1
    assert "take one of: broker, mariadb" in refused.stderr


def test_the_ports_of_what_runs_win_over_those_of_today(home: Path) -> None:
    given = settings()
    assert platform.as_running(given) == given
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    record = process.spawn("mariadb", command, run=home / "run", log=home / "log", ports={"mysql": 4711})
    assert platform.as_running(given).mariadb_port == 4711
    assert platform.as_running(given).kafka_port == given.kafka_port
    process.stop(record)
    assert platform.as_running(given) == given
