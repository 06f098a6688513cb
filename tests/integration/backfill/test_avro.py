"""Backfills of Avro: an archive's values are those of the topic, and Confluent's deserialiser reads what is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from penstock.archive import parquet
from penstock.backfill import archive_source
from penstock.backfill.job import BackfillJob
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.devstack.servers.s3 import S3Server
from penstock.engine.operations.recompute import RecomputeCounts, recompute_rows
from penstock.errors import DeclarationError
from penstock.model.avro import Avro
from penstock.model.topic import COMMITS
from penstock.registry import client
from penstock.settings import settings
from penstock.streams import Archive, Backfill, EmitFinal, F, Input, RowsQuery, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.archive_backfills import do, leads_to
from tests.support.avro_cases import field, logical, optional, schema_text
from tests.support.s3_store import endpoint_of, write_to_archive
from tests.support.schema_registry import close_clients

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

HOUR = datetime(2026, 1, 1, 10, tzinfo=UTC)
MILLIS = logical("long", "timestamp-millis")
AMOUNT = logical("bytes", "decimal", precision=10, scale=2)
OLD = schema_text([field("shop", "string"), field("n", "int"), field("at", MILLIS)])
SALE = [
    field("shop", "string"),
    field("n", "long"),
    field("at", MILLIS),
    field("note", optional("string"), default=None),
]
SALES = Topic("avro-sales", partitions=1, schema=Avro(schema_text(SALE)))
SUM = [field("shop", "string"), field("total", AMOUNT), field("first", MILLIS), field("last", optional(MILLIS))]
SUMS = Topic("avro-sums", partitions=1, compacted=True, schema=Avro(schema_text(SUM)))
QUERY = """SELECT shop, sum(n) AS total, min("at") AS first, max("at") AS last FROM records GROUP BY shop"""
WINDOWS = Topic(
    "avro-windows",
    partitions=1,
    compacted=True,
    schema=Avro(schema_text([field("shop", "string"), field("minute", MILLIS), field("total", "long")])),
)
Value = dict[str, Any]


def by_minute(sales: DataFrame) -> DataFrame:
    groups = sales.groupBy("shop", F.window("event_time", "1 minute"))
    return groups.agg(F.sum("n").alias("total")).select("shop", F.col("window.start").alias("minute"), "total")


STREAM = Stream(
    "avro-windows", "test", {"sales": Input(SALES, event_time="at")}, by_minute,
    TopicOutput(WINDOWS, key=("shop", "minute"), value=("shop", "minute", "total")),
    EmitFinal(timedelta(minutes=1), grace=timedelta(0)),
)  # fmt: skip


@pytest.fixture
def kept(
    home: Path,
    object_store: S3Server,
    schema_registry: SchemaRegistryServer,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Archive]:
    """An archive of a test's own, with two records of an older schema, a broken one and two of the present one."""
    leads_to(endpoint_of(object_store), monkeypatch)
    monkeypatch.setenv("PENSTOCK_SCHEMA_REGISTRY_URL", schema_registry.url)
    monkeypatch.setattr(archive_source, "STALL_TIMEOUT", 0.0)
    settings.cache_clear()
    assert settings().home == home
    prefix = f"avro-{abs(hash(request.node.name))}"
    archive = Archive("avro-sales", SALES, bucket="lake", prefix=prefix, every=timedelta(0))
    write_to_archive(archive, endpoint_of(object_store), archived(values()))
    yield archive
    close_clients()


def values() -> list[bytes]:
    with closing(SchemaRegistryClient({"url": os.environ["PENSTOCK_SCHEMA_REGISTRY_URL"]})) as registry:
        old, new = (serialiser(registry, text) for text in (OLD, schema_text(SALE)))
        first = [old({"shop": shop, "n": 2, "at": HOUR}) for shop in "ab"]
        later = HOUR + timedelta(seconds=30)
        return [*first, b"{}", *(new({"shop": "a", "n": n, "at": later, "note": None}) for n in (3, 40))]


def serialiser(registry: SchemaRegistryClient, text: str) -> Callable[[Value], bytes]:
    write, context = AvroSerializer(registry, text), SerializationContext(SALES.name, MessageField.VALUE)
    return lambda value: bytes(write(value, context) or b"")


def archived(given: Sequence[bytes]) -> list[Value]:
    return [
        {
            "topic": SALES.name, "partition": 0, "offset": n, "key": None, "value": value, "headers": None,
            "timestamp": HOUR + timedelta(seconds=n), "event_time": HOUR + timedelta(seconds=n),
        }
        for n, value in enumerate(given)
    ]  # fmt: skip


def written(broker: Broker, topic: str) -> list[Any]:
    with closing(SchemaRegistryClient({"url": os.environ["PENSTOCK_SCHEMA_REGISTRY_URL"]})) as registry:
        read_value = AvroDeserializer(registry)
        return [read_value(record.value_bytes, None) for record in read(broker.bootstrap, topic)]


def job(archive: Archive, rows: RowsQuery, **given: Any) -> BackfillJob:
    output = TopicOutput(SUMS, key="shop", value=("shop", "total", "first", "last"))
    return BackfillJob(
        Backfill("avro-sums", archive, output, rows=rows), HOUR, HOUR + timedelta(hours=1), SUMS.name, **given
    )


def test_a_query_reads_and_writes_avro(kept: Archive, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, SUMS)
    rows = RowsQuery("at", QUERY)
    result = do(job(kept, rows, dry_run=True), fresh_broker)
    assert "2 rows would be written" in result.summary
    assert client.subject_schemas(f"{SUMS.name}-value", "AVRO") == {}
    result = do(job(kept, rows), fresh_broker)
    assert result.rows == 2
    assert "avro-sales[0]@2: not in the wire format of a schema registry: it begins with 0x7b7d" in result.summary
    rest = {"first": HOUR, "last": HOUR + timedelta(seconds=30)}
    found = sorted(written(fresh_broker, SUMS.name), key=lambda row: row["shop"])
    assert found == [{"shop": "a", "total": 45, **rest}, {"shop": "b", "total": 2, "first": HOUR, "last": HOUR}]
    assert do(job(kept, rows), fresh_broker).rows == 0


def test_what_does_not_fit_is_refused(kept: Archive, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, SUMS)
    total, first = "sum(n) AS total", 'min("at") AS first'
    for before, after, message in (
        (total, "sum(n) / 8 AS total", "column total cannot be written as its Avro field"),
        (total, "'1' AS total", "column total cannot be written as its Avro field; got: string for decimal"),
        (total, "NULL AS total", "key .: field total is NULL, and no union with null"),
        (total, "10 ** 9 AS total", "column total cannot be written as its Avro field"),
        (first, 'epoch_ms(min("at")) AS first', "column first cannot be written as its Avro field"),
    ):
        with pytest.raises(DeclarationError, match=message):
            do(job(kept, RowsQuery("at", QUERY.replace(before, after))), fresh_broker)
    assert read(fresh_broker.bootstrap, SUMS.name) == []


@pytest.mark.usefixtures("kept")
def test_a_recompute_gives_the_rows_of_the_stream(fresh_broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, *STREAM.topics(), COMMITS)
    assert WINDOWS.avro
    client.register(f"{WINDOWS.name}-value", WINDOWS.avro.text, "AVRO")
    given = values()
    # The windows of the others are closed by it.
    with closing(SchemaRegistryClient({"url": os.environ["PENSTOCK_SCHEMA_REGISTRY_URL"]})) as registry:
        last = serialiser(registry, OLD)({"shop": "z", "n": 1, "at": HOUR + timedelta(minutes=5)})
    send(bootstrap, [Record(SALES.name, None, "", value_bytes=value) for value in [*given, last]])
    with running(STREAM, spark, bootstrap, tmp_path / "checkpoints") as stream_run:
        stream_run.process_all_available()
    of_stream = read(bootstrap, WINDOWS.name)
    assert len(of_stream) == 2

    archive = tmp_path / "archive.parquet"
    pq.write_table(parquet.to_archive_schema(pa.Table.from_pylist(archived(given), parquet.SCHEMA)), archive)
    counts, end = RecomputeCounts(), HOUR + timedelta(minutes=5)
    tables = recompute_rows(spark, [STREAM], [str(archive)], start=HOUR, end=end, counts=counts)
    rows = [(row["key"], row["value"]) for one in tables for row in one.to_pylist()]
    assert sorted(rows) == sorted((str(one.key).encode(), one.value_bytes) for one in of_stream)
    assert counts.bad == {STREAM.name: 1}
