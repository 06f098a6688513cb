"""The wheel in an environment of its own, outside of the checkout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.settings import PROJECT
from tests.support.installation import Installation

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1800)]

Run = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of an environment in which the wheel is installed; returns its output."""
    return Installation(tmp_path_factory.mktemp("installed")).run


def test_the_library_is_that_of_the_environment(run: Run) -> None:
    where = run("python", "-c", "import penstock; print(penstock.__version__, penstock.__file__)")
    assert where.split()[0] == penstock.__version__
    assert str(PROJECT) not in where
    assert run("pip", "check").startswith("No broken requirements")


def test_airflow_has_the_provider_and_one_plugin(run: Run) -> None:
    provider = json.loads(run("airflow", "providers", "get", "penstock", "--output", "json"))
    assert provider == [{"Provider": "penstock", "Version": penstock.__version__}]
    plugins = json.loads(run("airflow", "plugins", "--output", "json"))
    # With the extra `lineage` there is one of Airflow's provider of OpenLineage, too.
    assert [plugin["name"] for plugin in plugins if "penstock" in plugin["source"]] == ["penstock"]


def test_a_project_is_laid_out_and_read(run: Run, tmp_path: Path) -> None:
    assert "init" in run("penstock", "--help")
    run("penstock", "init", str(tmp_path / "shop"))
    names = {row["name"] for row in json.loads(run("penstock", "catalog", "--json", cwd=tmp_path / "shop"))["declared"]}
    assert names == {"order-minutes", "shops", "shops-documents"}
    code = "from penstock.airflow.dags import declare_dags; print(*sorted(declare_dags()))"
    dags = run("python", "-W", "ignore", "-c", code, cwd=tmp_path / "shop").split()
    once = {"heartbeat", "reaper", "operate_streams", "release_streams"}
    assert {"streams_orders", "streams_captures", "capture_shops", *once} <= set(dags)
    paths = run("python", "-c", "from penstock.settings import settings as s; print(*s().import_paths)", cwd=tmp_path)
    assert paths.split() == [str(tmp_path)]
