"""Backfills of each format: an archive's values are those of the topic, and Confluent reads what is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import SparkSession

from penstock.archive import records
from penstock.archive.catalog import open_catalog
from penstock.backfill import archive_source
from penstock.backfill.job import BackfillJob
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.devstack.servers.s3 import S3Server
from penstock.engine.operations.recompute import RecomputeCounts, recompute_rows
from penstock.errors import DeclarationError
from penstock.model.avro import Avro
from penstock.model.registry_schema import RegistrySchema
from penstock.model.topic import COMMITS
from penstock.registry import client
from penstock.settings import settings
from penstock.streams import Archive, Backfill, EmitFinal, F, Input, RowsQuery, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support import registry_formats
from tests.support.archive_backfills import do
from tests.support.avro_cases import field, logical, optional, schema_text
from tests.support.long_cases import quick
from tests.support.registry_formats import json_schema, protobuf
from tests.support.s3_store import endpoint_of, use_store, write_to_archive
from tests.support.schema_registry import close_clients

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

HOUR = datetime(2026, 1, 1, 10, tzinfo=UTC)
MILLIS = logical("long", "timestamp-millis")
AMOUNT = logical("bytes", "decimal", precision=10, scale=2)
JSON_TEXT, JSON_INTEGER, JSON_TIME = {"type": "string"}, {"type": "integer"}, {"type": "string", "format": "date-time"}
SALE = [field("shop", "string"), field("n", "long"), field("at", MILLIS)]
NOTE = field("note", optional("string"), default=None)
JSON_SALE = {"shop": JSON_TEXT, "n": JSON_INTEGER, "at": JSON_TIME}
TIME = "google.protobuf.Timestamp"
PROTO_SALE = f"string shop = 1; int64 n = 2; {TIME} at = 3;"
QUERY = """SELECT shop, sum(n) AS total, min("at") AS first, max("at") AS last FROM records GROUP BY shop"""
Value = dict[str, Any]


class BackfillFormat(NamedTuple):
    """A format as these tests need it.

    Attributes:
        old: The schema of older records, of `shop`, `n` and `at`.
        sales: The topic of records with a text `note` that may be missing.
        sums: That of the rows of QUERY.
        windows: That of `shop`, a time `minute`, and a whole number `total`.
    """

    old: RegistrySchema
    sales: Topic
    sums: Topic
    windows: Topic

    @property
    def stream(self) -> Stream:
        return Stream(
            self.windows.name, "test", {"sales": Input(self.sales, event_time="at")}, by_minute,
            TopicOutput(self.windows, key=("shop", "minute"), value=("shop", "minute", "total")),
            EmitFinal(timedelta(minutes=1), grace=timedelta(0)),
        )  # fmt: skip


def backfill_format(
    old: RegistrySchema, sale: RegistrySchema, sums: RegistrySchema, windows: RegistrySchema
) -> BackfillFormat:
    kind = sale.kind.lower()
    return BackfillFormat(
        old,
        Topic(f"{kind}-sales", partitions=1, schema=sale),
        Topic(f"{kind}-sums", partitions=1, compacted=True, schema=sums),
        Topic(f"{kind}-windows", partitions=1, compacted=True, schema=windows),
    )


FORMATS = {
    "Avro": backfill_format(
        Avro(schema_text([SALE[0], field("n", "int"), SALE[2]])),
        Avro(schema_text([*SALE, NOTE])),
        Avro(schema_text([SALE[0], field("total", AMOUNT), field("first", MILLIS), field("last", optional(MILLIS))])),
        Avro(schema_text([SALE[0], field("minute", MILLIS), field("total", "long")])),
    ),
    "JSON Schema": backfill_format(
        json_schema(JSON_SALE),
        json_schema(JSON_SALE, {"note": JSON_TEXT}),
        json_schema({"shop": JSON_TEXT, "total": {"type": "number"}, "first": JSON_TIME}, {"last": JSON_TIME}),
        json_schema({"shop": JSON_TEXT, "minute": JSON_TIME, "total": JSON_INTEGER}),
    ),
    "Protobuf": backfill_format(
        protobuf(PROTO_SALE.replace("int64", "int32")),
        protobuf(f"{PROTO_SALE} optional string note = 4;"),
        protobuf(f"string shop = 1; uint64 total = 2; {TIME} first = 3; {TIME} last = 4;"),
        protobuf(f"string shop = 1; {TIME} minute = 2; int64 total = 3;"),
    ),
}


def by_minute(sales: DataFrame) -> DataFrame:
    groups = sales.groupBy("shop", F.window("event_time", "1 minute"))
    return groups.agg(F.sum("n").alias("total")).select("shop", F.col("window.start").alias("minute"), "total")


@pytest.fixture
def kept(
    home: Path,
    object_store: S3Server,
    schema_registry: SchemaRegistryServer,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    name: str,
) -> Iterator[Archive]:
    """An archive of a test's own, with two records of an older schema, a broken one and two of the present one."""
    use_store(monkeypatch, endpoint_of(object_store))
    monkeypatch.setenv("PENSTOCK_SCHEMA_REGISTRY_URL", schema_registry.url)
    monkeypatch.setattr(archive_source, "STALL_TIMEOUT", 0.0)
    settings.cache_clear()
    assert settings().home == home
    prefix = f"formats-{abs(hash(request.node.name))}"
    sales = FORMATS[name].sales
    archive = Archive(sales.name, sales, bucket="lake", prefix=prefix, every=timedelta(0))
    write_to_archive(archive, endpoint_of(object_store), archived(name, values(name)))
    yield archive
    close_clients()


@pytest.mark.parametrize("name", quick(FORMATS, "Protobuf"))
def test_an_archive_decodes_values_by_the_schemas_of_their_writers(kept: Archive) -> None:
    rows = open_catalog().load_table(kept.table_name).scan().to_arrow().sort_by("offset").to_pylist()
    decoded = [row["decoded"] and (row["decoded"]["shop"], row["decoded"]["n"]) for row in rows]
    assert decoded == [("a", 2), ("b", 2), None, ("a", 3), ("a", 40)]


def values(name: str) -> list[bytes]:
    sales = FORMATS[name].sales
    assert sales.registry_schema
    older = [written(name, FORMATS[name].old, shop=shop, n=2, seconds=0) for shop in "ab"]
    return [*older, b"{}", *(written(name, sales.registry_schema, shop="a", n=n, seconds=30) for n in (3, 40))]


def written(name: str, schema: RegistrySchema, *, shop: str, n: int, seconds: int) -> bytes:
    """A sale as Confluent's serialiser writes it."""
    form = registry_formats.FORMATS[name]
    with closing(SchemaRegistryClient({"url": os.environ["PENSTOCK_SCHEMA_REGISTRY_URL"]})) as registry:
        sale = {"shop": shop, "n": n, "at": form.at(int(HOUR.timestamp()) + seconds)}
        return form.write(registry, FORMATS[name].sales.name, schema, sale)


def archived(name: str, given: Sequence[bytes]) -> list[Value]:
    return [
        {
            "topic": FORMATS[name].sales.name, "partition": 0, "offset": n, "key": None, "value": value,
            "headers": None, "timestamp": HOUR + timedelta(seconds=n), "event_time": HOUR + timedelta(seconds=n),
        }
        for n, value in enumerate(given)
    ]  # fmt: skip


def job(archive: Archive, sums: Topic, rows: RowsQuery, **given: Any) -> BackfillJob:
    output = TopicOutput(sums, key="shop", value=("shop", "total", "first", "last"))
    return BackfillJob(
        Backfill(sums.name, archive, output, rows=rows), HOUR, HOUR + timedelta(hours=1), sums.name, **given
    )


@pytest.mark.parametrize("name", quick(FORMATS, "Protobuf"))
def test_a_query_reads_and_writes_a_format(kept: Archive, fresh_broker: Broker, name: str) -> None:
    sums, rows = FORMATS[name].sums, RowsQuery("at", QUERY)
    assert sums.registry_schema
    create(fresh_broker.bootstrap, sums)
    result = do(job(kept, sums, rows, dry_run=True), fresh_broker)
    assert "2 rows would be written" in result.summary
    assert client.subject_schemas(f"{sums.name}-value", sums.registry_schema.kind) == {}
    result = do(job(kept, sums, rows), fresh_broker)
    assert result.rows == 2
    assert "-sales[0]@2: not in the wire format of a schema registry: it begins with 0x7b7d" in result.summary
    with closing(SchemaRegistryClient({"url": os.environ["PENSTOCK_SCHEMA_REGISTRY_URL"]})) as registry:
        read_value = registry_formats.reader(registry, sums.registry_schema)
        found = [read_value(record.value_bytes) for record in read(fresh_broker.bootstrap, sums.name)]
    rest = {"first": HOUR, "last": HOUR + timedelta(seconds=30)}
    assert sorted(found, key=lambda row: str(row["shop"])) == [
        {"shop": "a", "total": 45, **rest}, {"shop": "b", "total": 2, "first": HOUR, "last": HOUR},
    ]  # fmt: skip
    assert do(job(kept, sums, rows), fresh_broker).rows == 0


@pytest.mark.parametrize("name", ["Avro"])
def test_what_does_not_fit_is_refused(kept: Archive, fresh_broker: Broker, name: str) -> None:
    sums = FORMATS[name].sums
    create(fresh_broker.bootstrap, sums)
    total, first = "sum(n) AS total", 'min("at") AS first'
    for before, after, message in (
        (total, "sum(n) / 8 AS total", "column total cannot be written as its Avro field"),
        (total, "'1' AS total", "column total cannot be written as its Avro field; got: string for decimal"),
        (total, "NULL AS total", "key .: field total is NULL, and no union with null"),
        (total, "10 ** 9 AS total", "column total cannot be written as its Avro field"),
        (first, 'epoch_ms(min("at")) AS first', "column first cannot be written as its Avro field"),
    ):
        with pytest.raises(DeclarationError, match=message):
            do(job(kept, sums, RowsQuery("at", QUERY.replace(before, after))), fresh_broker)
    assert read(fresh_broker.bootstrap, sums.name) == []


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("name", quick(FORMATS, "Avro"))
def test_a_recompute_gives_the_rows_of_the_stream(
    fresh_broker: Broker, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    bootstrap, form, stream = fresh_broker.bootstrap, FORMATS[name], FORMATS[name].stream
    create(bootstrap, *stream.topics(), COMMITS)
    windows = form.windows.registry_schema
    assert windows
    client.register(f"{form.windows.name}-value", windows.text, windows.kind)
    given = values(name)
    # The windows of the others are closed by it.
    last = written(name, form.old, shop="z", n=1, seconds=300)
    send(bootstrap, [Record(form.sales.name, None, "", value_bytes=value) for value in [*given, last]])
    with running(stream, spark, bootstrap, tmp_path / "checkpoints") as stream_run:
        stream_run.process_all_available()
    of_stream = read(bootstrap, form.windows.name)
    assert len(of_stream) == 2

    archive = tmp_path / "archive.parquet"
    pq.write_table(records.to_archive_schema(pa.Table.from_pylist(archived(name, given), records.SCHEMA)), archive)
    counts, end = RecomputeCounts(), HOUR + timedelta(minutes=5)
    tables = recompute_rows(spark, [stream], [str(archive)], start=HOUR, end=end, counts=counts)
    rows = [(row["key"], row["value"]) for one in tables for row in one.to_pylist()]
    assert sorted(rows) == sorted((str(one.key).encode(), one.value_bytes) for one in of_stream)
    assert counts.bad == {stream.name: 1}
