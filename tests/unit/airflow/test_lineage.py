"""What Airflow's OpenLineage provider learns of operators, and what a driver learns of the task that launches it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos.projects import other_project

DECLARED = """
from penstock.streams import Archive, Stateless, Input, Stream, Topic, TopicOutput
SALES, TOTALS = Topic("sales"), Topic("totals", compacted=True)
def transform(sales): return sales
INPUT = Input(SALES, schema="shop STRING, amount INT, at TIMESTAMP", event_time="at")
STREAM = Stream("shop-totals", "shop", {"sales": INPUT},
    transform, TopicOutput(TOTALS, key="shop", value=("shop", "amount")), Stateless())
ARCHIVE = Archive("kept", SALES, "lake", "sales")
"""
AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, airflow_home: None) -> Iterator[None]:  # noqa: ARG001
    folder = tmp_path / "project" / "jobs" / "shop"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "totals.py").write_text(DECLARED)
    variables = {
        "PENSTOCK_CONTROL_URL": f"sqlite:///{tmp_path / 'control.db'}", "PENSTOCK_HOME": str(tmp_path / "home"),
        "PENSTOCK_KAFKA_BOOTSTRAP": "broker.example:9092", "PENSTOCK_LINEAGE": "1",
        "PENSTOCK_S3_URL": "http://store.example", "PENSTOCK_S3_ACCESS_KEY": "k", "PENSTOCK_S3_SECRET_KEY": "s",
    }  # fmt: skip
    before = dict(os.environ)
    with other_project(tmp_path / "project", variables):
        yield
    os.environ.clear()
    os.environ.update(before)


class TaskInstance(SimpleNamespace):
    """What the provider's macros ask of a task instance."""

    def get_template_context(self) -> dict[str, Any]:
        return {"dag_run": SimpleNamespace(logical_date=None, run_after=AT, clear_number=0, conf={})}


def task_instance() -> Any:
    return TaskInstance(dag_id="streams_shop", run_id="r1", task_id="supervise", try_number=2, map_index=-1)


def test_a_running_task_has_the_datasets_of_its_streams() -> None:
    from airflow.providers.openlineage.extractors.manager import ExtractorManager
    from airflow.utils.state import TaskInstanceState

    from penstock.airflow.dags import declare_dags

    task = declare_dags("streams")["streams_shop"].get_task("supervise").prepare_for_execution()
    manager: Any = ExtractorManager
    for state in (TaskInstanceState.RUNNING, TaskInstanceState.SUCCESS, TaskInstanceState.FAILED):
        found = manager().extract_metadata(
            dagrun=SimpleNamespace(run_id="r1"), task=task, task_instance_state=state, task_instance=task_instance()
        )
        assert sorted((d.namespace, d.name) for d in found.inputs) == [("kafka://broker.example:9092", "sales")]
        assert sorted((d.namespace, d.name) for d in found.outputs) == [
            ("kafka://broker.example:9092", "sales-dead-letter"),
            ("kafka://broker.example:9092", "totals"),
        ]


def test_the_names_are_those_of_the_streams_own_events() -> None:
    from penstock.airflow.assets import assets
    from penstock.catalog import partial_catalog
    from penstock.lineage.datasets import dataset_name, node_dataset

    catalog, _ = partial_catalog()
    nodes = [node for stream in catalog.streams.values() for node in stream.writes]
    assert len(nodes) == 3
    for node in nodes:
        [asset] = assets(catalog, [node])
        assert dataset_name(asset.uri) == node_dataset(node)


def test_a_driver_gets_the_run_of_the_task_that_launches_it() -> None:
    from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter

    from penstock.airflow.lineage import pass_parent_run
    from penstock.supervision import launch

    pass_parent_run({"ti": task_instance()})
    env = launch.environment()
    run = OpenLineageAdapter.build_task_instance_run_id("streams_shop", "supervise", 2, AT, -1)
    dag_run = OpenLineageAdapter.build_dag_run_id("streams_shop", AT, 0)
    assert env["OPENLINEAGE_PARENT_ID"] == f"default/streams_shop.supervise/{run}"
    assert env["OPENLINEAGE_ROOT_PARENT_ID"] == f"default/streams_shop/{dag_run}"


def test_a_task_without_a_run_launches_its_driver_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    from penstock.airflow.lineage import pass_parent_run

    pass_parent_run(cast(Any, {"ti": SimpleNamespace()}))
    assert "OPENLINEAGE_PARENT_ID" not in os.environ
    assert "not linked to this task" in caplog.text


def test_nothing_is_passed_while_lineage_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.airflow.lineage import pass_parent_run
    from tests.support.caches import clear_caches

    monkeypatch.delenv("PENSTOCK_LINEAGE")
    clear_caches()
    pass_parent_run({"ti": task_instance()})
    assert "OPENLINEAGE_PARENT_ID" not in os.environ
