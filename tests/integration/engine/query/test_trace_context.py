"""Trace contexts in headers of records: read, carried to the records that are made of one, and linked by spans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.jvm.hidden_column import with_hidden_column
from penstock.engine.progress import batch_spans
from penstock.engine.query import trace_context
from penstock.engine.query.decode import HEADERS_TYPE
from penstock.model.topic import COMMITS
from penstock.settings import settings
from penstock.streams import Combiner, EmitChanges, F, Input, Stateless, Stream, Table, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.http_receiver import Receiver, receiver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

MINUTE = 1_700_000_400_000
KEPT = {"retention.ms": "-1"}
EVENTS, OTHERS, OUT, ODD = (Topic(name, partitions=1, config=KEPT) for name in ("events", "others", "out", "odd"))
NAMES = Topic("names", partitions=1, compacted=True)
EVENTS_INPUT = Input(EVENTS, schema="n BIGINT NOT NULL, at BIGINT NOT NULL", event_time="timestamp_millis(at)")
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    topics = (EVENTS, OTHERS, OUT, ODD, NAMES, COMMITS)
    create(fresh_broker.bootstrap, *topics, *(Topic(t.dead_letters, partitions=1) for t in (EVENTS, OTHERS, NAMES)))
    return fresh_broker.bootstrap


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Traces are on, and spans go to a receiver of OTLP."""
    with receiver() as server:
        monkeypatch.setenv("PENSTOCK_TRACES", "1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        settings.cache_clear()
        batch_spans._provider.cache_clear()
        yield server
        # Its thread would go on exporting.
        batch_spans._provider().shutdown()
        batch_spans._provider.cache_clear()
    settings.cache_clear()


def spans(collector: Receiver) -> list[Any]:
    """The spans that were exported."""
    batch_spans.flush(10)
    found = []
    for path, body in collector.posted:
        assert path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(body)
        found += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
    return found


def event(n: int, topic: str = "events", key: str | None = None, **headers: str) -> Record:
    return Record(topic, key, json.dumps({"n": n, "at": MINUTE}), timestamp=MINUTE, headers=tuple(headers.items()))


def stream(transform: Any, output: Any = None, **more: Any) -> Stream:
    given: dict[str, Any] = {"inputs": {"events": EVENTS_INPUT}, "output_mode": Stateless()} | more
    output = output or TopicOutput(OUT, key="n", value=("n",))
    return Stream(name="traced", app="tests", transform=transform, output=output, **given)


def same(events: DataFrame) -> DataFrame:
    assert not [name for name in events.columns if name.startswith("_")], "a transform sees no column of the engine"
    return events.where("n < 100")


def run(
    stream: Stream, spark: SparkSession, bootstrap: str, folder: Path, *records: Record
) -> dict[str, dict[str, str]]:
    """The headers of the output's records by key."""
    send(bootstrap, records)
    with running(stream, spark, bootstrap, folder) as started:
        started.process_all_available()
    return {str(record.key): dict(record.headers) for record in read(bootstrap, "out")}


def test_contexts_go_from_a_record_to_its_row(
    spark: SparkSession, bootstrap: str, tmp_path: Path, collector: Receiver
) -> None:
    found = run(
        stream(same), spark, bootstrap, tmp_path,
        event(1, traceparent=PARENT, tracestate="vendor=1", other="x"), event(2, traceparent=PARENT),
        event(3), event(4, traceparent="00-not-a-trace-01"), event(100, traceparent=PARENT),
        Record("events", None, "rubbish", headers=(("traceparent", PARENT),)),
    )  # fmt: skip
    assert found == {
        "1": {"traceparent": PARENT, "tracestate": "vendor=1"}, "2": {"traceparent": PARENT}, "3": {}, "4": {},
    }  # fmt: skip
    [span] = spans(collector)
    assert (span.name, span.kind) == ("process traced", 5)
    assert span.trace_id.hex() != TRACE_ID, "a batch is of many traces, and has one of its own"
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [(TRACE_ID, SPAN_ID)] * 2
    attributes = {a.key: a.value for a in span.attributes}
    assert attributes["messaging.destination.name"].string_value == "events"
    assert attributes["messaging.consumer.group.name"].string_value == "penstock.traced"
    assert (attributes["penstock.rows"].int_value, attributes["penstock.dead_letters"].int_value) == (4, 1)


def test_headers_are_as_before_while_traces_are_off(
    spark: SparkSession, bootstrap: str, tmp_path: Path, collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_TRACES")
    settings.cache_clear()
    assert run(stream(same), spark, bootstrap, tmp_path, event(1, traceparent=PARENT)) == {"1": {}}
    assert not collector.posted


@pytest.mark.long
def test_rows_of_unions_joins_tables_and_tags(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    def united(events: DataFrame, others: DataFrame, names: DataFrame) -> DataFrame:
        named = events.withColumn("key", F.col("n").cast("string")).join(names, "key", "left")
        exploded = named.select("n", "name", F.explode(F.array(F.lit("out"))).alias("output"))
        return exploded.union(others.select("n", F.lit("-"), F.when(F.col("n") < 20, "out").otherwise("odd")))

    outputs = {"out": TopicOutput(OUT, key="n", value=("name",)), "odd": TopicOutput(ODD, key="n", value=("name",))}
    inputs = {
        "events": EVENTS_INPUT,
        "others": replace(EVENTS_INPUT, topic=OTHERS),
        "names": Table(NAMES, "name STRING"),
    }
    other = PARENT.replace("0af7", "1bf7")
    send(bootstrap, [Record("names", "1", '{"name":"one"}')])
    found = run(
        stream(united, outputs, inputs=inputs), spark, bootstrap, tmp_path,
        event(1, traceparent=PARENT), event(2), event(11, "others", traceparent=other),
        event(21, "others", traceparent=other),
    )  # fmt: skip
    assert found == {"1": {"traceparent": PARENT}, "2": {}, "11": {"traceparent": other}}
    assert [record.headers for record in read(bootstrap, "odd")] == [(("traceparent", other),)]


@pytest.mark.parametrize("schema", ["n BIGINT, at BIGINT", ""])
def test_whole_records_and_tombstones(spark: SparkSession, bootstrap: str, tmp_path: Path, schema: str) -> None:
    keeps: dict[str, Any] = {"tombstones": "keep", "event_time": "record.timestamp"} if schema else {}
    given = Input(EVENTS, schema=schema, record=True, max_ahead=None, **keeps)

    def keyed(events: DataFrame) -> DataFrame:
        return events.select(F.col("record.key").cast("string").alias("n"))

    found = run(
        stream(keyed, inputs={"events": given}), spark, bootstrap, tmp_path,
        event(1, key="a", traceparent=PARENT), Record("events", "b", None, headers=(("traceparent", PARENT),)),
    )  # fmt: skip
    assert found == {"a": {"traceparent": PARENT}, "b": {"traceparent": PARENT}}


def test_aggregates_carry_none_and_are_linked(
    spark: SparkSession, bootstrap: str, tmp_path: Path, collector: Receiver
) -> None:
    def counted(events: DataFrame) -> DataFrame:
        rows = events.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("n"))
        return rows.select("n")

    mode = EmitChanges(window=timedelta(minutes=1), grace=timedelta(minutes=5))
    found = run(
        stream(counted, output_mode=mode), spark, bootstrap, tmp_path,
        event(1, traceparent=PARENT), event(2, traceparent=PARENT.replace("0af7", "1bf7")), event(3),
    )  # fmt: skip
    assert found == {"3": {}}
    linked = {link.trace_id.hex() for span in spans(collector) for link in span.links}
    assert linked == {TRACE_ID, TRACE_ID.replace("0af7", "1bf7")}


def test_rows_of_a_combiner_carry_none(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    combiner = Combiner("n BIGINT", "SELECT count(*) AS n, max(event_time) AS event_time FROM records")
    given = replace(EVENTS_INPUT, combine=combiner)
    records = [event(1, traceparent=PARENT), event(2, traceparent=PARENT)]
    assert run(stream(same, inputs={"events": given}), spark, bootstrap, tmp_path, *records) == {"2": {}}


def test_a_batch_that_fails_has_a_span_with_its_error(
    spark: SparkSession, bootstrap: str, tmp_path: Path, collector: Receiver
) -> None:
    def fails(events: DataFrame) -> DataFrame:
        return events.select(F.raise_error(F.lit("no such shop")).cast("bigint").alias("n"))

    send(bootstrap, [event(1)])
    with running(stream(fails), spark, bootstrap, tmp_path) as started, pytest.raises(Exception, match="no such shop"):
        started.process_all_available()
    assert spans(collector)[0].status.code == 2


def test_a_receiver_that_hangs_stops_no_stream(
    spark: SparkSession, bootstrap: str, tmp_path: Path, collector: Receiver
) -> None:
    collector.answers.clear()
    assert run(stream(same), spark, bootstrap, tmp_path, event(1, traceparent=PARENT)) == {"1": {"traceparent": PARENT}}
    collector.answers.set()


ZEROS = "0" * 32


@pytest.mark.parametrize(
    ("headers", "context"),
    [
        ([("traceparent", PARENT)], PARENT),
        ([("traceparent", f"01{PARENT[2:]}-what-may-come")], PARENT),
        ([("traceparent", f"cc{PARENT[2:]}")], PARENT),
        ([("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")], f"{PARENT}\na=1,b=2"),
        ([("traceparent", PARENT), ("tracestate", "a=1\n")], PARENT),
        ([("traceparent", PARENT), ("tracestate", "a" * 513)], PARENT),
        ([("traceparent", PARENT), ("tracestate", None)], PARENT),
        ([("tracestate", "a=1")], None),
        ([("traceparent", PARENT), ("traceparent", PARENT)], None),
        ([("Traceparent", PARENT)], None),
        ([("traceparent", None)], None),
        ([("traceparent", "0")], None),
        ([("traceparent", PARENT.upper())], None),
        ([("traceparent", f"{PARENT} ")], None),
        ([("traceparent", f"{PARENT}-more")], None),
        ([("traceparent", f"ff{PARENT[2:]}")], None),
        ([("traceparent", f"01{PARENT[2:]}.more")], None),
        ([("traceparent", f"00-{ZEROS}-{SPAN_ID}-01")], None),
        ([("traceparent", f"00-{TRACE_ID}-{ZEROS[:16]}-01")], None),
        ([("traceparent", f"{PARENT}\n")], None),
        ([], None),
        (None, None),
    ],
)
def test_a_malformed_context_is_not_carried(
    spark: SparkSession, headers: list[tuple[str, str | None]] | None, context: str | None
) -> None:
    values = None if headers is None else [(name, value and value.encode()) for name, value in headers]
    raw = spark.createDataFrame([(values,)], f"headers {HEADERS_TYPE}")
    [row] = trace_context.read_contexts(raw).collect()
    assert row[trace_context.TRACE] == context


@pytest.mark.parametrize(
    ("operators", "carries"),
    [
        (lambda rows: rows.select((F.col("n") + 1).alias("m")).where("m > 0").select("m"), True),
        (lambda rows: rows.select("n").alias("a").repartition(2), True),
        (lambda rows: rows.select("n").distinct(), False),
        (lambda rows: rows.groupBy("n").count(), False),
        (lambda rows: rows.select("n").mapInArrow(lambda batches: batches, "n BIGINT"), False),
        (lambda rows: rows.select("n").union(rows.sparkSession.range(1)), False),
        (lambda rows: rows.select("n").join(rows.select("n"), "n"), False),
    ],
    ids=["rows", "alias", "distinct", "groups", "python", "union", "self-join"],
)
def test_a_column_is_put_back_only_where_a_row_is_of_one_row(
    spark: SparkSession, operators: Any, carries: bool
) -> None:
    source = spark.createDataFrame([(1, "one"), (2, "two")], "n BIGINT, _hidden STRING")
    found = with_hidden_column(operators(source.drop("_hidden")), "_hidden")
    assert (found is not None) == carries
    if found is not None:
        assert sorted(row["_hidden"] for row in found.collect()) == ["one", "two"]
