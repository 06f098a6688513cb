"""The events of a stream's runs, as OpenLineage's client would send them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openlineage.client.event_v2 import RunEvent
from openlineage.client.serde import Serde

from penstock.control import ProgressRow
from penstock.lineage.stream_lineage import PARENT, ROOT_PARENT, FrameColumn, FrameColumns, StreamLineage
from penstock.streams import Input, Stateless, Stream, Table, Topic, TopicOutput
from tests.support.caches import clear_caches

SALES, SHOPS, TOTALS = Topic("sales"), Topic("shops", compacted=True), Topic("totals", compacted=True)
STREAM = Stream(
    "shop-totals", "shop",
    {"sales": Input(SALES, schema="shop STRING, amount DOUBLE, at TIMESTAMP", event_time="at"),
     "shops": Table(SHOPS, "name STRING")},
    lambda sales, shops: sales.join(shops, "key"), TopicOutput(TOTALS, key="shop", value=("shop", "amount", "city")),
    Stateless(),
)  # fmt: skip
COLUMNS = {
    "shop": FrameColumn("string", frozenset({("sales", "shop")})),
    "amount": FrameColumn("double", frozenset({("sales", "amount"), ("shops", "name")})),
    "City": FrameColumn("string"),
    "internal": FrameColumn("int", frozenset({("sales", "amount")})),
}
TASK = "airflow/streams_shop.supervise/0199b1f0-0000-7000-8000-000000000001"
DAG = "airflow/streams_shop/0199b1f0-0000-7000-8000-000000000002"


class Collector:
    """Takes the events where the emitter would, and makes them at once."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, make_event: Callable[[], RunEvent]) -> None:
        self.events.append(json.loads(Serde.to_json(make_event())))

    @property
    def types(self) -> list[str]:
        return [event["eventType"] for event in self.events]


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", "broker.example:9092")
    monkeypatch.setenv("PENSTOCK_LINEAGE_EVERY", "0.001")
    for name in (PARENT, ROOT_PARENT, "OPENLINEAGE_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    clear_caches()
    yield
    clear_caches()


def lineage(collector: Collector, **figures: Any) -> StreamLineage:
    return StreamLineage(STREAM, ProgressRow("shop-totals", "shop", "i", **figures), collector)  # type: ignore[arg-type]


def columns() -> FrameColumns:
    return COLUMNS


def test_a_run_names_its_job_and_what_it_reads_and_writes() -> None:
    collector = Collector()
    made = lineage(collector)
    made.started(columns)
    [event] = collector.events
    assert (event["eventType"], event["job"]["namespace"], event["job"]["name"]) == (
        "START", "default", "shop.shop-totals",
    )  # fmt: skip
    job_type = event["job"]["facets"]["jobType"]
    assert (job_type["processingType"], job_type["integration"], job_type["jobType"]) == (
        "STREAMING", "PENSTOCK", "STREAM",
    )  # fmt: skip
    assert event["run"]["facets"]["processing_engine"]["name"] == "spark"
    inputs = {(i["namespace"], i["name"]): i["facets"] for i in event["inputs"]}
    outputs = {(o["namespace"], o["name"]): o["facets"] for o in event["outputs"]}
    broker = "kafka://broker.example:9092"
    assert {name: [(f["name"], f["type"]) for f in facets["schema"]["fields"]] for name, facets in inputs.items()} == {
        (broker, "sales"): [("shop", "string"), ("amount", "double"), ("at", "timestamp")],
        (broker, "shops"): [("name", "string")],
    }
    side_topics = {name for node, name in outputs if node == broker} - {"totals"}
    assert side_topics == {"sales-dead-letter", "shops-dead-letter"}
    assert all(outputs[broker, name] == {} for name in side_topics)
    facets = outputs[broker, "totals"]
    assert [(f["name"], f["type"]) for f in facets["schema"]["fields"]] == [
        ("shop", "string"), ("amount", "double"), ("city", "string"),
    ]  # fmt: skip
    fields = facets["columnLineage"]["fields"]
    assert {
        name: [(i["namespace"], i["name"], i["field"]) for i in f["inputFields"]] for name, f in fields.items()
    } == {
        "shop": [(broker, "sales", "shop")],
        "amount": [(broker, "sales", "amount"), (broker, "shops", "name")],
    }, "what is not known, and what is not written, is left out"


def test_progress_is_of_the_run_and_not_of_earlier_ones() -> None:
    collector = Collector()
    made = lineage(collector, rows_in=100, rows_out=50, dead=3)
    made.started(columns)
    figures = made._figures
    figures.rows_in, figures.rows_out, figures.dead, figures.late, figures.lag = 107, 52, 4, 2, 11
    made.reported()
    made.stopped()
    assert collector.types == ["START", "RUNNING", "COMPLETE"]
    assert len({event["run"]["runId"] for event in collector.events}) == 1
    progress = collector.events[1]["run"]["facets"]["penstock_progress"]
    counts = {name: value for name, value in progress.items() if name[0] != "_"}
    assert counts == {"recordsRead": 7, "rowsWritten": 2, "lateRecords": 2, "deadLetters": 1, "lag": 11}
    [totals] = [o for o in collector.events[2]["outputs"] if o["name"] == "totals"]
    assert totals["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert all("inputStatistics" not in i["inputFacets"] for i in collector.events[2]["inputs"]), (
        "of which is not known"
    )


def test_running_is_emitted_at_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LINEAGE_EVERY", "60")
    clear_caches()
    collector = Collector()
    made = lineage(collector)
    made.reported()
    made.started(columns)
    for _ in range(5):
        made.reported()
    assert collector.types == ["START"]
    made._reported_at -= 61
    made.reported()
    made.reported()
    assert collector.types == ["START", "RUNNING"]


def test_a_stream_that_fails_ends_one_run_however_often_it_is_tried() -> None:
    collector = Collector()
    made = lineage(collector)
    made.started(columns)
    made.failed("division by zero")
    made.started(columns)
    made.failed("division by zero")
    made.reported()
    assert collector.types == ["START", "FAIL"]
    assert collector.events[1]["run"]["facets"]["errorMessage"]["message"] == "division by zero"
    made.started(columns)
    made.batch_ended()
    made.batch_ended()
    made.stopped()
    made.stopped()
    assert collector.types == ["START", "FAIL", "START", "COMPLETE"]
    assert len({event["run"]["runId"] for event in collector.events}) == 2


def test_a_stream_that_cannot_start_has_a_run_that_failed() -> None:
    collector = Collector()
    made = lineage(collector)
    made.failed("its checkpoint is damaged")
    made.stopped()
    assert collector.types == ["START", "FAIL"]


def test_a_driver_that_ends_at_once_aborts_the_run() -> None:
    collector = Collector()
    made = lineage(collector)
    made.started(columns)
    made.aborted("another driver has its leases")
    made.stopped()
    assert collector.types == ["START", "ABORT"]
    assert "leases" in collector.events[1]["run"]["facets"]["errorMessage"]["message"]


def test_the_task_that_launched_the_driver_is_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARENT, TASK)
    monkeypatch.setenv(ROOT_PARENT, DAG)
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
    collector = Collector()
    lineage(collector).started(columns)
    [event] = collector.events
    parent = event["run"]["facets"]["parent"]
    assert (parent["job"]["namespace"], parent["job"]["name"], parent["run"]["runId"]) == tuple(TASK.split("/"))
    root = parent["root"]
    assert (root["job"]["namespace"], root["job"]["name"], root["run"]["runId"]) == tuple(DAG.split("/"))
    assert event["job"]["namespace"] == "shop"


def test_without_columns_the_rest_is_emitted() -> None:
    def fails() -> FrameColumns:
        raise RuntimeError("the JVM is gone")

    collector = Collector()
    made = lineage(collector)
    made.started(fails)
    [totals] = [o for o in collector.events[0]["outputs"] if o["name"] == "totals"]
    assert totals["facets"] == {}


def test_nothing_is_emitted_without_an_emitter() -> None:
    made = StreamLineage(STREAM, ProgressRow("shop-totals", "shop", "i"))
    made.started(columns)
    made.reported()
    made.failed("no")
    made.stopped()
    assert made._run_id == ""
