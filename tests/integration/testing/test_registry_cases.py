"""Cases in YAML of topics of a schema registry, which is not asked: combiners, folds, tables and tombstones."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.catalog import load
from penstock.devstack.servers.kafka import Broker
from penstock.errors import DeclarationError
from penstock.testing import rows
from penstock.testing.case_file import Way, read_cases
from penstock.testing.case_run import CaseFailure
from penstock.testing.case_ways import run_case

pytestmark = pytest.mark.integration

JOBS = """
import json
from datetime import timedelta
from penstock.streams import (
    Avro, Combiner, EmitFinal, F, Fold, Input, KeyedState, Stateless, Stream, Table, Topic, TopicOutput,
)

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
DATE = {"type": "int", "logicalType": "date"}

def topic(name, compacted=False, **fields):
    of = [{"name": field, "type": kind} for field, kind in fields.items()]
    text = json.dumps({"type": "record", "name": "R", "fields": of})
    return Topic(name, partitions=1, compacted=compacted, schema=Avro(text))

SALES = topic("sales", shop="string", amount=MONEY, at=MILLIS, day=["null", DATE], tag=["null", "bytes"])
SHOPS = topic("sale-shops", True, town=["null", "string"])
MINUTES = topic("sale-minutes", True, shop="string", minute=MILLIS, total=MONEY, n="int")
SUMS = topic("sale-sums", True, shop="string", total=MONEY, last=["null", MILLIS])
TOWNS = topic("sale-towns", True, shop=["null", "string"], town=["null", "string"], day=["null", DATE],
              tag=["null", "bytes"])
BY_MINUTE = Combiner(
    "shop STRING NOT NULL, total DECIMAL(10, 2), n BIGINT",
    "SELECT shop, sum(amount)::DECIMAL(10, 2) AS total, count(*) AS n, max(event_time) AS event_time FROM records "
    "GROUP BY shop, time_bucket(INTERVAL 1 MINUTE, event_time)",
)

def minutes(sales):
    window = F.window("event_time", "1 minute")
    sums = sales.groupBy("shop", window).agg(F.sum("total").alias("total"), F.sum("n").alias("n"))
    return sums.select("shop", F.col("window.start").alias("minute"), F.col("total").cast("decimal(10, 2)"), "n")

FOLD = Fold(
    name="sums", key=("shop",), state_schema="total DECIMAL(10, 2), last TIMESTAMP",
    update_sql="SELECT shop, (sum(amount) + coalesce(any_value(state.total), 0))::DECIMAL(10, 2) AS total, "
    'max(records."at") AS last FROM records LEFT JOIN state USING (shop) GROUP BY shop',
    emit_sql="SELECT shop, total, last FROM folded", output_schema="shop STRING, total DECIMAL(10, 2), last TIMESTAMP",
    restore_sql="SELECT shop, total, last FROM output",
)

def towns(sales, shops):
    named = sales.join(shops, sales.shop == shops.key, "left")
    return named.select(F.coalesce("shop", F.col("record.key").cast("string")).alias("k"), "shop", "town", "day", "tag")

def plain_minutes(sales):
    sums = sales.groupBy("shop", F.window("event_time", "1 minute")).agg(F.sum("amount").alias("total"),
                                                                          F.count("*").alias("n"))
    return sums.select("shop", F.col("window.start").alias("minute"), F.col("total").cast("decimal(10, 2)"), "n")

PLAIN = topic("plain-minutes", True, shop="string", minute=MILLIS, total=MONEY, n="int")
STREAMS = [
    Stream("plain-minutes", "shop", {"sales": Input(SALES, event_time="at", late_records="keep")}, plain_minutes,
           TopicOutput(PLAIN, key="shop", value=("shop", "minute", "total", "n")),
           EmitFinal(timedelta(minutes=1), grace=timedelta(seconds=10))),
    Stream("sale-minutes", "shop", {"sales": Input(SALES, event_time="at", combine=BY_MINUTE)}, minutes,
           TopicOutput(MINUTES, key=("shop", "minute"), value=("shop", "minute", "total", "n")),
           EmitFinal(timedelta(minutes=1), grace=timedelta(seconds=10))),
    Stream("sale-sums", "shop", {"sales": Input(SALES, event_time="at")}, lambda sales: FOLD(sales),
           TopicOutput(SUMS, key="shop", value=("shop", "total", "last")), KeyedState()),
    Stream("sale-towns", "shop",
           {"sales": Input(SALES, event_time="at", record=True, tombstones="keep"), "shops": Table(SHOPS)}, towns,
           TopicOutput(TOWNS, key="k", value=("shop", "town", "day", "tag")), Stateless()),
]
"""
MINUTES = """\
    streams: [sale-minutes]
    steps:
      - send:
          - value: {shop: north, amount: 2.5, at: 2026-01-31T12:00:05Z}
          - value: {shop: north, amount: "4.00", at: !ms 2026-01-31T12:00:15Z, day: 2026-01-31}
          - value: no Avro
          - value: {shop: south, amount: 1, at: 2026-01-31T12:20:00Z}
        dead:
          - value: no Avro
            reason: "not in the wire format of a schema registry: it begins with 0x6e6f204176"
          - value: {shop: south, amount: 1, at: 2026-01-31T12:20:00Z}
            reason: "the event time lies in the future: 2026-01-31 12:20:00"
      - clock: 2026-01-31T12:01:10Z
        expect:
          - key: {shop: north, minute: "2026-01-31T12:00:00.000000Z"}
            value: {shop: north, minute: 2026-01-31T12:00:00Z, total: 6.50, n: 2}
"""
# The heartbeat that closes the window is JSON in a topic of Avro; a record behind it is late.
PLAIN = """\
    streams: [plain-minutes]
    steps:
      - send:
          - value: {shop: north, amount: 2.5, at: 2026-01-31T12:00:05Z}
      - clock: 2026-01-31T12:01:10Z
        expect:
          - key: north
            value: {shop: north, minute: 2026-01-31T12:00:00Z, total: 2.50, n: 1}
      - send:
          - value: {shop: late, amount: 1, at: 2026-01-31T12:00:05Z}
        late: 1
        kept:
          - value: {shop: late, amount: 1, at: 2026-01-31T12:00:05Z}
            late_ms: 0
"""
SUMS = """\
    streams: [sale-sums]
    steps:
      - send:
          - value: {shop: north, amount: 2.5, at: 2026-01-31T12:00:05Z}
        expect:
          - {key: north, value: {shop: north, total: 2.5, last: 2026-01-31T12:00:05Z}}
      - send:
          - value: {shop: north, amount: 1, at: 2026-01-31T12:00:06Z}
        expect:
          - {key: north, value: {shop: north, total: 3.5, last: 2026-01-31T12:00:06Z}}
"""
TOWNS = """\
    streams: [sale-towns]
    steps:
      - send:
          - {topic: sale-shops, key: north, value: {town: Kiel}}
          - {topic: sale-shops, key: south, value: {}}
          - {topic: sales, value: {shop: north, amount: 1, at: 2026-01-31T12:00:05Z, day: 2026-01-31, tag: AP8=}}
          - {topic: sales, value: {shop: south, amount: 1, at: 2026-01-31T12:00:05Z}}
          - {topic: sales, key: gone, value: null}
        expect:
          - {key: north, value: {shop: north, town: Kiel, day: 2026-01-31, tag: AP8=}}
          - {key: south, value: {shop: south}}
          - {key: gone, value: {}}
"""


@pytest.fixture
def project(shop: Path) -> Path:
    (shop / "jobs" / "shop").mkdir(exist_ok=True)
    (shop / "jobs" / "shop" / "sales.py").write_text(JOBS)
    return shop


@pytest.mark.parametrize(
    ("text", "ways"),
    [(MINUTES, ["stream", "recompute"]), (PLAIN, ["stream"]), (SUMS, ["stream", "rebuild"]), (TOWNS, ["stream"])],
    ids=["windows of a combiner", "heartbeats and late records", "a fold", "a table and tombstones"],
)
def test_a_case_has_the_same_rows_in_every_way(
    project: Path, spark: SparkSession, broker: Broker, tmp_path: Path, text: str, ways: list[Way]
) -> None:
    path = tmp_path / "sales.yaml"
    path.write_text(f"clock: 2026-01-31T12:00:20Z\ncases:\n  one:\n{text}")
    [case] = read_cases(path).cases.values()
    for way in ways:
        folder = tmp_path / way
        folder.mkdir()
        run_case(case, way, project, spark, broker.bootstrap, folder)


def test_what_differs_is_told_by_fields(project: Path, spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "sales.yaml"
    for old, new, told in (
        ("total: 3.5,", "total: 4,", r'"total":"4.00"'),
        ("amount: 1,", "amount: many,", r"sales.yaml:\d+: one, step 2: a value does not fit the schema"),
        ("amount: 1,", "sum: 1,", r"got: sum; hint: the fields are shop, amount, at, day, tag"),
    ):
        path.write_text(f"clock: 2026-01-31T12:00:20Z\ncases:\n  one:\n{SUMS.replace(old, new)}")
        [case] = read_cases(path).cases.values()
        folder = tmp_path / new[:5].strip(": ")
        folder.mkdir()
        with pytest.raises((CaseFailure, DeclarationError), match=told):
            run_case(case, "stream", project, spark, broker.bootstrap, folder)


def test_a_transform_gets_rows_of_avro(project: Path, spark: SparkSession) -> None:
    stream = load(project).streams["sale-minutes"]
    sales = [{"shop": "north", "amount": amount, "at": "2026-01-31T12:00:05Z"} for amount in (1, "2.50")]
    [row] = rows(spark, stream, sales=sales)
    assert (row["shop"], str(row["total"]), row["n"]) == ("north", "3.50", 2)


COPIES = """
import json
from penstock.streams import Input, JsonSchema, Protobuf, Stateless, Stream, Topic, TopicOutput

TIME = {"type": "string", "format": "date-time"}
SCHEMAS = {
    "json": JsonSchema(json.dumps({
        "type": "object", "properties": {"id": {"type": "integer"}, "shop": {"type": "string"}, "at": TIME},
        "required": ["id", "at"],
    })),
    "proto": Protobuf('''syntax = "proto3"; import "google/protobuf/timestamp.proto";
        message Order { int64 id = 1; optional string shop = 2; google.protobuf.Timestamp at = 3; }'''),
}
STREAMS = [
    Stream(f"{kind}-copies", "shop",
           {"orders": Input(Topic(f"{kind}-orders", partitions=1, schema=schema), event_time="at")},
           lambda orders: orders.select("id", "shop", "at"),
           TopicOutput(Topic(f"{kind}-copies", partitions=1, schema=schema), key="id", value=("id", "shop", "at")),
           Stateless())
    for kind, schema in SCHEMAS.items()
]
"""
COPY = """\
    streams: [{kind}-copies]
    steps:
      - send:
          - value: {{id: 1, shop: north, at: 2026-01-31T12:00:05Z}}
          - value: {{id: 2, at: 2026-01-31T12:00:05Z}}
          - value: none
        dead:
          - {{value: none, reason: "not in the wire format of a schema registry: it begins with 0x6e6f6e65"}}
        expect:
          - {{key: "1", value: {{id: 1, shop: north, at: "{at}"}}}}
          - {{key: "2", value: {{id: 2, at: "{at}"}}}}
"""


@pytest.mark.parametrize(("kind", "at"), [("json", "2026-01-31T12:00:05.000000Z"), ("proto", "2026-01-31T12:00:05Z")])
def test_fields_of_json_schema_and_protobuf_are_sent_and_expected(
    shop: Path, spark: SparkSession, broker: Broker, tmp_path: Path, kind: str, at: str
) -> None:
    (shop / "jobs" / "shop").mkdir(exist_ok=True)
    (shop / "jobs" / "shop" / "copies.py").write_text(COPIES)
    path = tmp_path / "copies.yaml"
    path.write_text(f"clock: 2026-01-31T12:00:20Z\ncases:\n  one:\n{COPY.format(kind=kind, at=at)}")
    [case] = read_cases(path).cases.values()
    run_case(case, "stream", shop, spark, broker.bootstrap, tmp_path)
