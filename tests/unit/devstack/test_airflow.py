"""How Airflow is laid out."""

from __future__ import annotations

import configparser
import stat
from pathlib import Path

import pytest

from penstock.devstack.servers.airflow import Airflow, AirflowServer, ApiServer, Scheduler
from penstock.devstack.servers.airflow_layout import SECRETS, AirflowLayout
from penstock.host.ports import free_port
from penstock.settings import PROJECT
from tests.support.wait import wait_until

pytestmark = pytest.mark.processes


def config(layout: AirflowLayout) -> configparser.ConfigParser:
    file = configparser.ConfigParser(interpolation=None)
    file.read(layout.folder / "airflow.cfg")
    return file


def test_secrets_are_made_once_and_kept_to_the_owner(tmp_path: Path) -> None:
    layout = AirflowLayout(tmp_path, 18080, PROJECT)
    layout.write()
    first = {at: config(layout).get(*at) for at in SECRETS}
    layout.write()
    assert {at: config(layout).get(*at) for at in SECRETS} == first
    assert len(set(first.values())) == len(SECRETS)
    assert stat.S_IMODE((layout.folder / "airflow.cfg").stat().st_mode) == 0o600


def test_the_password_is_made_once_where_airflow_would_also_log_it(tmp_path: Path) -> None:
    airflow = Airflow(tmp_path, 18080, PROJECT)
    airflow.layout.write()
    first = airflow.password
    airflow.layout.write()
    assert len(first) >= 16
    assert airflow.password == first
    assert stat.S_IMODE(airflow.layout.password_file.stat().st_mode) == 0o600


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    airflow = Airflow(tmp_path, 18080, PROJECT)
    airflow.layout.write()
    assert config(airflow.layout).get("api", "host") == "127.0.0.1"
    for part in (airflow.scheduler, airflow.triggerer):
        assert "--skip-serve-logs" in part.command()


def test_a_project_without_dags_gets_the_example_dags(tmp_path: Path) -> None:
    assert AirflowLayout(tmp_path, 1, tmp_path).dags == PROJECT / "penstock" / "example_dags"
    (tmp_path / "dags").mkdir()
    assert AirflowLayout(tmp_path, 1, tmp_path).dags == tmp_path / "dags"


def test_no_password_before_the_first_start(tmp_path: Path) -> None:
    assert Airflow(tmp_path, 18080, PROJECT).password == ""


def test_no_task_begins_before_the_api_server_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fail, and with it the first runs of all captures."""
    begun, seen = tmp_path / "begun", list[bool]()

    def answers(_: str) -> set[str]:
        seen.append(begun.exists())
        return {"metadatabase"} if len(seen) > 3 else set()

    monkeypatch.setattr("penstock.devstack.servers.airflow.healthy", answers)
    monkeypatch.setattr(AirflowServer, "environment", lambda _: {})
    monkeypatch.setattr(AirflowServer, "prepare", lambda _: None)
    monkeypatch.setattr(ApiServer, "command", lambda _: ["sleep", "60"])
    monkeypatch.setattr(Scheduler, "command", lambda _: ["touch", str(begun)])
    airflow = Airflow(tmp_path, free_port(), PROJECT)
    assert airflow.servers.index(airflow.api) < airflow.servers.index(airflow.scheduler)
    try:
        airflow.api.start()
        assert airflow.scheduler.start()
        wait_until(begun.exists)
        assert seen == [False] * 4
    finally:
        airflow.api.stop()
        airflow.scheduler.stop()
    begun.unlink()
    assert airflow.scheduler.start(), "without a server it starts all the same"
    airflow.scheduler.stop()
