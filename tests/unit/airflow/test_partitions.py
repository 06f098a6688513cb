"""Asset events of closed partitions, with a fake of what Airflow does with a task's outlets: exactly one is recorded of
each, whatever is killed in between."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.control import Control, connect
from penstock.control.repositories import partitions as repository
from penstock.control.repositories.captures import CaptureRow, Captures
from penstock.settings import settings
from tests.chaos.projects import other_project
from tests.support.airflow_tasks import first
from tests.support.caches import clear_caches
from tests.support.control_tables import create_tables
from tests.support.random_cases import seeds

KEYS = [f"2026-01-{day:02}T{hour:02}:00:00" for day in range(1, 5) for hour in range(24)]
DECLARED = """
from datetime import timedelta
from penstock.streams import Archive, EmitFinal, Input, Stream, Topic, TopicOutput, View
MINUTE = timedelta(minutes=1)
SALES, TOTALS = Topic("sales"), Topic("totals", compacted=True)
def transform(sales): return sales
INPUT = Input(SALES, schema="amount INT, at TIMESTAMP", event_time="at", max_ahead=MINUTE)
STREAM = Stream("shop-totals", "shop", {"sales": INPUT},
    transform, TopicOutput(TOTALS, key="shop", value="amount"), EmitFinal(MINUTE, MINUTE), partition="hour")
VIEW = View("totals-view", TOTALS, "shop STRING, amount INT")
ARCHIVE = Archive("kept", SALES, "lake", "sales", partition="hour")
"""

DECLARED_TWICE = """
from datetime import timedelta
from penstock.streams import EmitFinal, Input, Stream, Topic, TopicOutput
MINUTE = timedelta(minutes=1)
def transform(sales): return sales
INPUT = Input(Topic("sales"), schema="amount INT, at TIMESTAMP", event_time="at", max_ahead=MINUTE)
OUTPUTS = {name: TopicOutput(Topic(f"totals-{name}"), value="amount") for name in "ab"}
STREAM = Stream("shop-totals", "shop", {"sales": INPUT}, transform, OUTPUTS, EmitFinal(MINUTE, MINUTE),
    partition="hour")
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, airflow_home: None) -> Iterator[Control]:  # noqa: ARG001
    """A project with the stream `shop-totals`, whose partitions are hours."""
    folder = tmp_path / "project" / "jobs" / "shop"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "totals.py").write_text(DECLARED)
    monkeypatch.setattr(repository, "RETRY_MS", -1)
    variables = {
        "PENSTOCK_CONTROL_URL": f"sqlite:///{tmp_path / 'control.db'}", "PENSTOCK_HOME": str(tmp_path / "home"),
        "PENSTOCK_KAFKA_BOOTSTRAP": "broker.example:9092,other:9092", "PENSTOCK_S3_URL": "http://store.example",
        "PENSTOCK_S3_ACCESS_KEY": "k", "PENSTOCK_S3_SECRET_KEY": "s",
    }  # fmt: skip
    with other_project(tmp_path / "project", variables):
        made = connect()
        create_tables(made)
        yield made
        made.engine.dispose()


class FakeAirflow:
    """Keeps the events of tasks that succeed: it takes the outlets of a task in one transaction with its success."""

    def __init__(self, inactive: Collection[str] = ()) -> None:
        self.inactive = set(inactive)
        """Assets for which it records nothing, as it has not read a DAG that names them."""
        self.events: list[tuple[tuple[str, str], str | None, str]] = []

    def begin(self, run: str) -> tuple[Any, dict[str, Any]]:
        from airflow.sdk.execution_time.context import OutletEventAccessors

        from penstock.airflow.dags.partitions import dags

        [dag] = dags()
        dag_run = SimpleNamespace(run_id=run)
        return dag.get_task("emit").prepare_for_execution(), {
            "dag_run": dag_run,
            "outlet_events": OutletEventAccessors(),
        }

    def succeed(self, task: Any, context: dict[str, Any]) -> None:
        for asset in (asset for asset in task.outlets if asset.name not in self.inactive):
            keys = context["outlet_events"][asset].partition_keys or {None}
            self.events += [
                ((asset.name, asset.uri), key, f"partitions/{context['dag_run'].run_id}") for key in sorted(keys)
            ]

    def recorded(self, name: str, uri: str, since: datetime) -> Collection[tuple[str, str]]:
        assert since.tzinfo
        return {(key, run) for asset, key, run in self.events if asset == (name, uri) and key}

    def emitted(self) -> list[tuple[str, str | None, str]]:
        """Name of the asset, key and run of each event."""
        return [(name, key, run) for (name, _), key, run in self.events]


@pytest.mark.parametrize("seed", seeds(3, 10))
def test_each_partition_has_one_event_whatever_is_killed(control: Control, seed: int) -> None:
    from penstock.airflow.partitions import settle

    chance, airflow, ready = random.Random(seed), FakeAirflow(), iter(KEYS)
    control.record_partitions("shop-totals", [("2025-12-31T23:00:00", 1)], "known")
    for number in range(60):
        control.record_partitions("shop-totals", [(key, 1) for key in islice(ready, chance.randrange(3))])
        run = f"r{number}"
        for _ in range(chance.choice([1, 1, 2])):
            # A try, which may end after each step; a run is tried again, or the next one goes on.
            killed = chance.choice(["nowhere", "nowhere", "before", "after taking", "after success", "marked success"])
            settle(control, airflow.recorded)
            if killed == "before":
                continue
            task, context = airflow.begin(run)
            task.resume(context, {"action": "emit"})
            if killed in ("after taking", "marked success"):
                # A person who marks a task as successful gives Airflow none of its events.
                continue
            airflow.succeed(task, context)
            break
    for run in ("last", "rest"):
        settle(control, airflow.recorded)
        task, context = airflow.begin(run)
        task.resume(context, {"action": "emit"})
        airflow.succeed(task, context)
    settle(control, airflow.recorded)
    closed = set(control.partition_revisions("shop-totals")) - {"2025-12-31T23:00:00"}
    assert Counter(key for _, key, _ in airflow.emitted()) == dict.fromkeys(closed, 1)
    assert control.sent_partitions() == []
    assert not control.partition_event_due(["shop-totals"])


def test_an_asset_that_airflow_does_not_know_yet_doubles_no_event_of_another(control: Control) -> None:
    from penstock.airflow.partitions import settle

    (settings().project / "jobs" / "shop" / "totals.py").write_text(DECLARED_TWICE)
    clear_caches()
    airflow = FakeAirflow(inactive=["topic:totals-b"])
    control.record_partitions("shop-totals", [(KEYS[0], 1), (KEYS[1], 1)])
    for number in range(5):
        if number == 3:
            airflow.inactive.clear()
        settle(control, airflow.recorded)
        task, context = airflow.begin(f"r{number}")
        task.resume(context, {"action": "emit"})
        airflow.succeed(task, context)
    settle(control, airflow.recorded)
    expected = [(f"topic:totals-{name}", key) for name in "ab" for key in KEYS[:2]]
    assert sorted((name, key) for name, key, _ in airflow.emitted()) == expected
    assert control.sent_partitions() == []
    assert not control.partition_event_due(["shop-totals"])


def test_a_run_without_events_emits_none(control: Control) -> None:  # noqa: ARG001
    airflow = FakeAirflow()
    for event in ({"action": "epoch"}, {"action": "emit"}):
        task, context = airflow.begin("r1")
        task.resume(context, event)
        airflow.succeed(task, context)
    assert airflow.events == []


@pytest.mark.parametrize("recorded", [True, False])
def test_an_event_is_asked_for_under_the_assets_that_airflow_got(control: Control, recorded: bool) -> None:
    """A broker may have another address now, and then the asset another URI."""
    from penstock.airflow.partitions import settle

    control.record_partitions("shop-totals", [(KEYS[0], 1)])
    airflow = FakeAirflow()
    task, context = airflow.begin("r1")
    task.resume(context, {"action": "emit"})
    if recorded:
        airflow.succeed(task, context)
    # Undone before the project's own variables are.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", "elsewhere:9092")
        clear_caches()
        settle(control, airflow.recorded)
    assert control.sent_partitions() == []
    assert control.partition_event_due(["shop-totals"]) is not recorded


def test_the_trigger_needs_no_declarations(control: Control) -> None:  # noqa: ARG001
    from penstock.airflow.partitions import PartitionsTrigger, _partitioned, declared_partitions
    from penstock.catalog import partial_catalog, partitioned

    path, kwargs = PartitionsTrigger(declared_partitions(), 1.0).serialize()
    assert path == f"{PartitionsTrigger.__module__}.{PartitionsTrigger.__name__}"
    declared = json.loads(json.dumps(kwargs))["declared"]
    assert list(_partitioned(declared)) == partitioned(partial_catalog()[0])
    assert [one.name for one in _partitioned(declared)] == ["shop-totals", "kept"]


def test_the_trigger_fires_for_what_is_due_also_while_the_broker_is_down(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.airflow import partitions
    from penstock.errors import BrokerError
    from penstock.supervision.event_clock.partitions import PartitionWatch

    def down(_: PartitionWatch) -> int:
        raise BrokerError("the broker is down")

    monkeypatch.setattr(PartitionWatch, "look", down)
    monkeypatch.setattr(partitions, "RETRY", 0.01)
    declared = partitions.declared_partitions()
    assert asyncio.run(first(partitions.PartitionsTrigger(declared, time.time() + 0.1))) == {"action": "epoch"}
    control.record_partitions("shop-totals", [(KEYS[0], 1)])
    assert asyncio.run(first(partitions.PartitionsTrigger(declared, time.time() + 60))) == {"action": "emit"}
    control.take_due_partitions("partitions/r1", {"shop-totals": []})
    control.record_partitions("not-declared", [(KEYS[0], 1)])
    assert asyncio.run(first(partitions.PartitionsTrigger(declared, time.time() + 0.1))) == {"action": "epoch"}


def test_a_reconcile_that_changed_the_topic_of_a_capture_is_one_event(control: Control) -> None:
    from penstock.airflow.partitions import declared_partitions, settle

    path = settings().project / "sql" / "captures" / "orders.sql"
    path.parent.mkdir(parents=True)
    path.write_text("CAPTURE INTO orders FROM mysql shop KEY (id) CURSOR changed AS SELECT * FROM orders")
    clear_caches()
    found = {"rows": 9, "missing": 2, "differing": 1, "extra": 0, "why": "", "explained": False}
    reports = [
        {**found, "ended": 0.0, "missing": 0, "differing": 0},
        {**found, "ended": 1.5e9, "missing": 0, "differing": 0},
        {**found, "ended": 1.6e9},
        {**found, "ended": 1.7e9, "missing": 0, "differing": 0, "earlier": [
            {**found, "ended": 1.6e9}, {**found, "ended": 1.65e9, "missing": 5}
        ]},
    ]  # fmt: skip
    for drift in reports:
        for _ in range(2):
            Captures(control).report(CaptureRow("orders", drift=drift))
    assert control.partition_event_due(declared_partitions()["reconciles"])
    airflow, told = FakeAirflow(), []
    for run in ("r1", "r2"):
        task, context = airflow.begin(run)
        task.resume(context, {"action": "emit"})
        airflow.succeed(task, context)
        told += [context["outlet_events"][asset].extra["reconcile"] for asset in task.outlets]
    # An extra is that of all events of an asset in a run.
    times = ["2020-09-13T12:26:40", "2022-04-15T05:20:00"]
    assert airflow.emitted() == [("topic:orders", at, f"partitions/r{n}") for n, at in enumerate(times, 1)]
    assert told == [{"missing": missing, "differing": 1, "extra": 0} for missing in (2, 5)]
    settle(control, airflow.recorded)
    assert control.sent_partitions() == []
    Captures(control).report(CaptureRow("orders", drift=reports[-1]))
    assert not control.partition_event_due(["capture:orders"])


# Assets


def test_assets_of_a_project(control: Control) -> None:  # noqa: ARG001
    from penstock.airflow.dags import declare_dags

    dags = declare_dags("streams", "partitions")
    assets = {a.name: a.uri for dag in dags.values() for t in dag.tasks for a in (*t.inlets, *t.outlets)}
    assert assets == {
        "topic:sales": "kafka://broker.example:9092/sales",
        "topic:sales-dead-letter": "kafka://broker.example:9092/sales-dead-letter",
        "topic:totals": "kafka://broker.example:9092/totals",
        "bucket:lake/sales": "s3://lake/sales",
        "view:totals-view": "x-penstock://views/totals-view",
    }
    task = dags["streams_shop"].get_task("supervise")
    assert [a.name for a in task.inlets] == ["topic:sales"]
    running = task.prepare_for_execution()
    assert (running.inlets, running.outlets) == ([], []), "a run that ends would tell of new data"
    assert task.outlets


def test_a_stream_is_found_by_name(control: Control) -> None:  # noqa: ARG001
    from penstock.airflow.assets import stream_asset
    from penstock.errors import DeclarationError

    assert stream_asset("shop-totals").name == "topic:totals"
    assert stream_asset("kept").uri == "s3://lake/sales"
    with pytest.raises(DeclarationError, match="no such stream"):
        stream_asset("shop-total")
    with pytest.raises(DeclarationError, match="no such output"):
        stream_asset("shop-totals", "sales")


@pytest.mark.parametrize(
    ("dialect", "connection", "table", "uri"),
    [
        ("mysql", "mysql://user:secret@db.example/shop", "orders", "mysql://db.example:3306/shop/orders"),
        ("mysql", "mysql://user:secret@db.example:3307/shop", "other.orders", "mysql://db.example:3307/other/orders"),
        (
            "postgres",
            "postgres://user:secret@db.example/shop",
            "orders",
            "postgres://db.example:5432/shop/public/orders",
        ),
        ("postgres", "", "sales.orders", "postgres://shop/shop/sales/orders"),
    ],
)
def test_uris_of_captured_tables(
    control: Control, monkeypatch: pytest.MonkeyPatch, dialect: str, connection: str, table: str, uri: str
) -> None:
    from penstock.airflow.assets import assets
    from penstock.catalog import partial_catalog
    from penstock.model import capture
    from penstock.model.declaration import CatalogNode

    assert control
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", connection)
    path = settings().project / "sql" / "captures" / "orders.sql"
    path.parent.mkdir(parents=True)
    path.write_text(f"CAPTURE INTO orders FROM {dialect} shop KEY (id) CURSOR changed AS SELECT * FROM {table}")
    catalog = partial_catalog()[0]
    catalog.captures["orders"] = capture.read(path)
    [found] = assets(catalog, [CatalogNode("table", f"shop:{table}")])
    assert (found.name, found.uri) == (f"table:shop:{table}", uri)


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("elasticsearch:orders.v2", "elasticsearch://search.example:9200/orders.v2"),
        ("mongodb:shop.orders.all", "mongodb://mongodb/shop/orders.all"),
        ("influxdb:shop.(kind)", "influxdb://influxdb/shop/%28kind%29"),
    ],
)
def test_uris_of_stores(control: Control, monkeypatch: pytest.MonkeyPatch, name: str, uri: str) -> None:
    from penstock.airflow.assets import assets
    from penstock.catalog import partial_catalog
    from penstock.model.declaration import CatalogNode

    assert control
    monkeypatch.setenv("PENSTOCK_ELASTICSEARCH_URL", "http://user:secret@search.example:9200")
    clear_caches()
    [found] = assets(partial_catalog()[0], [CatalogNode("store", name)])
    assert (found.name, found.uri) == (name, uri)
