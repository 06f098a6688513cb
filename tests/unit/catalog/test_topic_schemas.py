"""The schema that a topic declares is that of all that reads and writes it and says no other."""

from __future__ import annotations

from decimal import Decimal
from io import BytesIO
from pathlib import Path

import pytest
from fastavro import parse_schema, schemaless_writer
from orjson import loads

from penstock.archive.stream import archive_stream
from penstock.catalog.catalog import Catalog
from penstock.catalog.validation import build
from penstock.errors import DeclarationError
from penstock.model.sql import sink_file, stream_file
from penstock.registry import client
from penstock.streams import Archive, Avro, Input, Stateless, Stream, Table, Topic, TopicOutput, View
from penstock.tables.topic_reader import TableDecoder
from penstock.views.store.columns import ViewLayout
from tests.support.avro_cases import AT, DECIMAL, field, logical, optional, schema_text

FIELDS = [field("id", "long"), field("at", logical("long", "timestamp-micros")), field("sum", optional(DECIMAL))]
AVRO = Avro(schema_text(FIELDS))
ORDERS = Topic("orders", compacted=True, schema=AVRO)
OUT = Topic("out", schema=AVRO)
STREAM = Stream(
    "copied", "shop", {"orders": Input(ORDERS, event_time="at")}, lambda orders: orders,
    TopicOutput(OUT, value=("id", "at", "sum")), Stateless(),
)  # fmt: skip
SQL = """STREAM INTO {into}
READ orders EVENT TIME at
{more}AS
SELECT id, at, sum FROM orders
"""
SINK = """UPSERT INTO mongodb.shop.orders
READ orders{form}
KEY (id)
TOMBSTONES DELETE (string(record.key))
AS
SELECT id FROM orders
"""


def catalog_of(into: str = "out", more: str = "", form: str = "", streams: tuple[Stream, ...] = (STREAM,)) -> Catalog:
    sql = stream_file.parse(SQL.format(into=into, more=more), Path("sql/streams/in-sql.sql"))
    sink = sink_file.parse(SINK.format(form=form), Path("sql/sinks/sunk.sql"))
    return build(streams, sinks=[sink], sql_streams=[sql])


def test_a_stream_and_a_sink_in_sql_have_the_schema_of_the_topic() -> None:
    catalog = catalog_of("out-of-sql", streams=(STREAM, second("out-of-sql")))
    stream = catalog.streams["in-sql"]
    assert stream.sources["orders"].registry_schema == AVRO
    [output] = stream.outputs.values()
    assert isinstance(output, TopicOutput)
    assert output.topic.registry_schema == AVRO
    [read] = catalog.sinks["sunk"].reads
    assert read.schema == AVRO.ddl


def test_who_says_raw_records_gets_raw_records() -> None:
    assert catalog_of("json", form=" AS BINARY").sinks["sunk"].reads[0].schema == ""
    assert Input(ORDERS, schema="").registry_schema is None
    archive = archive_stream(Archive("kept", ORDERS, bucket="archives", prefix="p", app="shop"), {})
    assert [source.schema for source in archive.sources.values()] == [""]


def second(name: str) -> Stream:
    """A stream that reads a topic and so declares it."""
    return Stream(
        f"reads-{name}", "shop", {"rows": Input(Topic(name, schema=AVRO), event_time="at")},
        lambda rows: rows.select("id"), TopicOutput(Topic(f"of-{name}"), value="id"), Stateless(),
    )  # fmt: skip


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"in-sql.sql:2:6: topic orders declares no schema"):
        catalog_of(streams=())
    with pytest.raises(DeclarationError, match="both declare a schema"):
        Table(ORDERS, schema="id BIGINT")
    with pytest.raises(DeclarationError, match="has not the fields of its Avro schema; got: id"):
        catalog_of("out-of-sql", "VALUE (id)\n", streams=(STREAM, second("out-of-sql")))
    with pytest.raises(DeclarationError, match="has no schema"):
        View("orders", "orders")


def test_a_view_answers_decimals_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "schema_of", lambda *_: client.WriterSchema(AVRO.text, AVRO.kind))
    view = View("orders", ORDERS, query_by="id")
    stream = BytesIO()
    schemaless_writer(
        stream,
        parse_schema(loads(AVRO.text)),
        {"id": 7, "at": AT, "sum": Decimal("1.250")},
    )
    batch = TableDecoder(Table(ORDERS)).decode([(b"k", b"\x00" + (1).to_bytes(4) + stream.getvalue(), 0, 0)], {0: 1})
    [row] = ViewLayout(view).rows(batch.rows[0])
    assert (row[0], loads(row[1]), row[2]) == (
        "k", {"id": 7, "at": "2026-02-03T04:05:06.789000Z", "sum": "1.250"}, 7,
    )  # fmt: skip
