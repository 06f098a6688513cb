"""The OpenLineage events of streams that run: on a real broker, to a file, to a URL, and to a receiver that hangs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from penstock.control import ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.engine.query.column_lineage import frame_columns
from penstock.engine.query.stream_run import StreamRun
from penstock.lineage.emitter import open_emitter
from penstock.model.topic import COMMITS
from penstock.settings import settings
from penstock.streams import EmitChanges, F, Fold, Input, KeyedState, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, send
from tests.chaos.drivers import drivers
from tests.support.http_receiver import receiver
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

MINUTE = 1_700_000_400_000
SALES, REFUNDS, SUMS = (
    Topic(name, partitions=1, config={"retention.ms": "-1"}) for name in ("sales", "refunds", "sums")
)
SCHEMA = "shop STRING, amount DOUBLE, at BIGINT NOT NULL"
SALES_INPUT = Input(SALES, schema=SCHEMA, event_time="timestamp_millis(at)")
REFUNDS_INPUT = Input(REFUNDS, schema=SCHEMA, event_time="timestamp_millis(at)")


def doubled(sales: DataFrame) -> DataFrame:
    return sales.select("shop", (F.col("amount") * 2).alias("twice"), F.lit("EUR").alias("currency"))


STREAM = Stream(
    "doubled-sales", "tests", {"sales": SALES_INPUT}, doubled,
    TopicOutput(SUMS, key="shop", value=("shop", "twice", "currency")), Stateless(),
)  # fmt: skip
PROJECT = """
from datetime import timedelta
from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput
SALES, SUMS = Topic("sales", partitions=1, config={"retention.ms": "-1"}), Topic("sums", partitions=1)
def transform(sales): return sales.select("shop", (F.col("amount") * 2).alias("twice"))
STREAM = Stream("doubled", "shop", {"sales": Input(SALES, schema="shop STRING, amount DOUBLE, at BIGINT NOT NULL",
    event_time="timestamp_millis(at)")}, transform, TopicOutput(SUMS, key="shop", value=("shop", "twice")), Stateless())
"""


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    dead_letters = [Topic(topic.dead_letters, partitions=1) for topic in (SALES, REFUNDS)]
    create(fresh_broker.bootstrap, SALES, REFUNDS, SUMS, COMMITS, *dead_letters)
    return fresh_broker.bootstrap


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_LINEAGE", "1")
    monkeypatch.setenv("PENSTOCK_LINEAGE_EVERY", "0.01")
    settings.cache_clear()
    # The client puts aliases of its variables into the environment.
    with patch.dict(os.environ):
        yield
    settings.cache_clear()


def sales(*amounts: float) -> list[Record]:
    values = [{"shop": f"s{number}", "amount": amount, "at": MINUTE} for number, amount in enumerate(amounts)]
    return [Record("sales", None, json.dumps(value), timestamp=MINUTE) for value in values]


@contextmanager
def running(stream: Stream, spark: SparkSession, bootstrap: str, checkpoints: Path) -> Iterator[StreamRun]:
    """The stream with its lineage; the last events are sent when it has stopped."""
    emitter = open_emitter()
    assert emitter
    figures = ProgressRow(stream.name, stream.app, "test")
    run = StreamRun(stream, spark, bootstrap, str(checkpoints), figures, emitter=emitter)
    run.start()
    try:
        yield run
    finally:
        run.stop()
        emitter.close(5)


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["eventType"] for event in events]


def test_events_of_a_run_in_a_file(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    config = tmp_path / "transport.yml"
    config.write_text(json.dumps({"transport": {"type": "file", "log_file_path": str(path), "append": True}}))
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config))
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", bootstrap)
    settings.cache_clear()
    send(bootstrap, [*sales(1, 2), Record("sales", None, "rubbish")])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        run.report()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert types(events) == ["START", "RUNNING", "COMPLETE"]
    assert len({event["run"]["runId"] for event in events}) == 1
    progress = events[-1]["run"]["facets"]["penstock_progress"]
    assert {name: progress[name] for name in ("recordsRead", "rowsWritten", "deadLetters")} == {
        "recordsRead": 3, "rowsWritten": 2, "deadLetters": 1,
    }  # fmt: skip
    for event in events:
        [totals] = [o for o in event["outputs"] if o["name"] == "sums"]
        assert totals["namespace"] == f"kafka://{bootstrap}"
        facets = totals["facets"]
        assert {f["name"]: f["type"] for f in facets["schema"]["fields"]} == {
            "shop": "string", "twice": "double", "currency": "string",
        }  # fmt: skip
        fields = {n: [i["field"] for i in f["inputFields"]] for n, f in facets["columnLineage"]["fields"].items()}
        assert fields == {"shop": ["shop"], "twice": ["amount"]}


def test_a_stream_that_fails_and_a_receiver_of_http(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without a key in a compacted topic, more than may be refused: the stream is blocked."""
    compacted = Topic("compacted", partitions=1, compacted=True)
    create(bootstrap, compacted)
    stream = Stream(
        "refused", "tests", {"sales": SALES_INPUT}, lambda sales: sales.withColumn("key", F.lit(None).cast("string")),
        TopicOutput(compacted, key="key", value=("shop",)), Stateless(), max_poison=1,
    )  # fmt: skip
    with receiver() as server:
        monkeypatch.setenv("OPENLINEAGE_URL", server.url)
        send(bootstrap, sales(1, 2, 3))
        with running(stream, spark, bootstrap, tmp_path) as run:
            wait_until(lambda: tended(run.reconcile, lambda: run.figures.state == "blocked"), 60, what="it is blocked")
            wait_until(lambda: "FAIL" in types(server.events), 10, what="the receiver has its end")
        assert types(server.events)[-1] == "FAIL"
        error = server.events[-1]["run"]["facets"]["errorMessage"]["message"]
        assert "refused" in error
        assert "hint: " in error


def test_a_receiver_that_hangs_stops_no_stream(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as server:
        server.answers.clear()
        monkeypatch.setenv("OPENLINEAGE_URL", server.url)
        with running(STREAM, spark, bootstrap, tmp_path) as run:
            wait_until(lambda: server.posted, 30, what="the receiver holds a request")
            for number in range(3):
                send(bootstrap, sales(number))
                run.process_all_available()
                run.report()
            assert len(read(bootstrap, "sums")) == 3
            assert set(types(server.events)) == {"START"}, "the client tries it again, and the rest waits"
            server.answers.set()
            wait_until(lambda: "RUNNING" in types(server.events), 30, what="the receiver gets the rest")
        assert types(server.events)[-1] == "COMPLETE"


@pytest.mark.long
def test_the_events_of_a_driver(
    fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drains, and names the task that launched it."""
    folder = tmp_path / "project" / "jobs" / "shop"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "doubled.py").write_text(PROJECT)
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", "airflow/streams_shop.supervise/0199b1f0-0000-7000-8000-000000000001")
    with receiver() as server:
        extra = {"OPENLINEAGE_URL": server.url, "PENSTOCK_LEASE_TTL": 4}
        with drivers(fresh_broker, mariadb, tmp_path / "home", folder.parent.parent, **extra) as launched:
            driver = launched.launch("shop")
            launched.wait_running(driver)
            send(launched.bootstrap, sales(1))
            wait_until(lambda: "RUNNING" in types(server.events), 60, what="it reports progress")
            assert driver.pid
            os.kill(driver.pid, signal.SIGTERM)
            wait_until(lambda: launched.row(driver.incarnation).state == "ended", 60, what="it has drained")
            assert (types(server.events)[0], types(server.events)[-1]) == ("START", "COMPLETE")
            [job] = {event["job"]["name"] for event in server.events}
            assert job == "shop.doubled"
            parent = server.events[0]["run"]["facets"]["parent"]
            assert parent["job"]["name"] == "streams_shop.supervise"


def uncoupled(sales: DataFrame, refunds: DataFrame) -> DataFrame:
    return sales.select("shop", "amount", "at").union(
        refunds.select("shop", (-F.col("amount")).alias("amount"), F.lit(0).alias("at"))
    )


def windowed(sales: DataFrame) -> DataFrame:
    named = sales.withColumn("name", F.concat("shop", F.lit("!")))
    return named.groupBy(F.window("event_time", "1 minute").alias("w"), "name").agg(
        F.sum("amount").alias("sum"), F.count("*").alias("rows")
    ).select(F.unix_millis("w.start").alias("start"), "name", "sum", "rows")  # fmt: skip


def generated(sales: DataFrame) -> DataFrame:
    return sales.select(
        "shop", F.explode(F.array("amount", "amount")).alias("one"), F.struct("amount", "at").alias("s")
    )


COUNT = Fold(
    name="counts", key=("shop",), state_schema="n BIGINT",
    update_sql="SELECT shop, count(*)::BIGINT + coalesce(any_value(state.n), 0) AS n"
    " FROM records LEFT JOIN state USING (shop) GROUP BY shop",
    emit_sql="FROM folded", output_schema="shop STRING, n BIGINT",
)  # fmt: skip


def counted(sales: DataFrame) -> DataFrame:
    return COUNT(sales)


@pytest.mark.parametrize(
    ("transform", "mode", "expected"),
    [
        (doubled, Stateless(), {"shop": {"sales.shop"}, "twice": {"sales.amount"}}),
        (
            uncoupled, Stateless(),
            {"shop": {"sales.shop", "refunds.shop"}, "amount": {"sales.amount", "refunds.amount"}, "at": {"sales.at"}},
        ),
        (
            windowed, EmitChanges(window=timedelta(minutes=1), grace=timedelta(minutes=5)),
            {"start": {"sales.at"}, "name": {"sales.shop"}, "sum": {"sales.amount"}},
        ),
        (
            generated, Stateless(),
            {"shop": {"sales.shop"}, "s": {"sales.amount", "sales.at"}, "s.amount": {"sales.amount"},
             "s.at": {"sales.at"}},
        ),
        (counted, KeyedState(), {}),
    ],
    ids=["rows", "union", "windows", "generator", "fold"],
)  # fmt: skip
def test_lineage_of_columns_by_the_plan(
    spark: SparkSession, transform: Any, mode: Any, expected: dict[str, set[str]]
) -> None:
    from penstock.engine.checkpoint.plan_fingerprint import build_frame

    inputs = {"sales": SALES_INPUT} | ({"refunds": REFUNDS_INPUT} if transform is uncoupled else {})
    stream = Stream("planned", "tests", inputs, transform, TopicOutput(Topic("o"), key="shop", value="shop"), mode)
    rows = build_frame(spark, stream, "127.0.0.1:1", {})
    columns = frame_columns(stream, rows, {})
    found = {name: {".".join(used) for used in column.inputs} for name, column in columns.items() if column.inputs}
    assert found == expected
