"""What decoding costs: the same records as JSON and in each format of a schema registry.

Avro is read by Spark's decoder and by the one without Spark, as records of a schema that is registered while the query
runs. The stream, without state, has one input and one topic. Each run reads the topic from its beginning in one batch,
in a session that is warm; the runs of the ways are in turn. `decoders` measures the CPU time of the decoders alone.

    python -m tests.bench.registry_formats [records] [runs of each]
    python -m tests.bench.registry_formats decoders [records] [runs of each]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
from confluent_kafka import Producer
from fastavro import parse_schema, schemaless_writer
from google.protobuf.message_factory import GetMessageClass

from penstock.codec.columnar import RecordDecoder
from penstock.codec.protobuf import written_indexes
from penstock.codec.registry_values import RegistryValues
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.engine.query import decode
from penstock.host.ports import free_port
from penstock.model.topic import COMMITS
from penstock.registry import client
from penstock.registry.wire_format import header
from penstock.settings import settings
from penstock.streams import Avro, F, Input, JsonSchema, Protobuf, Stateless, Stream, Topic, TopicOutput
from penstock.testing import create, running, spark_session
from tests.bench.common import table, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Sale = dict[str, Any]
SCHEMA = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "shop", "type": "string"},
        {"name": "item", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": "double"},
        {"name": "pieces", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
AVRO = Avro(json.dumps(SCHEMA))
PROPERTIES = {
    "shop": {"type": "string"}, "item": {"type": ["null", "string"]}, "amount": {"type": "number"},
    "pieces": {"type": "integer"}, "at": {"type": "string", "format": "date-time"},
}  # fmt: skip
JSON_SCHEMA = JsonSchema(
    json.dumps({"type": "object", "properties": PROPERTIES, "required": ["shop", "amount", "pieces", "at"]})
)
PROTOBUF = Protobuf(
    'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message Sale { string shop = 1; '
    "optional string item = 2; double amount = 3; int32 pieces = 4; google.protobuf.Timestamp at = 5; }"
)
PARSED, MESSAGE = parse_schema(SCHEMA), GetMessageClass(PROTOBUF.descriptor)
DDL = "shop STRING NOT NULL, item STRING, amount DOUBLE NOT NULL, pieces INT NOT NULL, at BIGINT NOT NULL"
AT = int(time.time() * 1000)
SALES = {
    "JSON": Topic("sales-json", partitions=2, schema=DDL),
    "JSON Schema": Topic("sales-json-schema", partitions=2, schema=JSON_SCHEMA),
    "Avro": Topic("sales-avro", partitions=2, schema=AVRO),
    "Protobuf": Topic("sales-protobuf", partitions=2, schema=PROTOBUF),
}
OUT = Topic("doubled", partitions=2)
WITHOUT_SPARK = "Avro, without Spark"
WAYS = {
    "JSON": SALES["JSON"], "JSON Schema": SALES["JSON Schema"], "Avro, by Spark": SALES["Avro"],
    WITHOUT_SPARK: SALES["Avro"], "Protobuf": SALES["Protobuf"],
}  # fmt: skip


def doubled(sales: DataFrame) -> DataFrame:
    return sales.where("amount >= 0").select("shop", (F.col("amount") * 2).alias("twice"))


def as_json(one: Sale) -> bytes:
    return json.dumps(one, separators=(",", ":")).encode()


def as_json_schema(one: Sale) -> bytes:
    at = datetime.fromtimestamp(one["at"] / 1000, UTC).isoformat(timespec="milliseconds")
    return as_json({**one, "at": at.replace("+00:00", "Z")})


def as_avro(one: Sale) -> bytes:
    stream = BytesIO()
    schemaless_writer(stream, PARSED, one)
    return stream.getvalue()


def as_protobuf(one: Sale) -> bytes:
    message = MESSAGE(**{name: value for name, value in one.items() if name != "at"})
    message.at.FromMilliseconds(one["at"])
    return written_indexes(PROTOBUF.descriptor) + bytes(message.SerializeToString())


WRITERS: dict[str, Callable[[Sale], bytes]] = {
    "JSON": as_json, "JSON Schema": as_json_schema, "Avro": as_avro, "Protobuf": as_protobuf,
}  # fmt: skip


def sale(n: int) -> Sale:
    return {
        "shop": f"shop-{n % 1000}", "item": f"item-{n % 77}" if n % 3 else None, "amount": n % 977 + 0.5,
        "pieces": n % 9, "at": AT + n,
    }  # fmt: skip


def fill(bootstrap: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000, "linger.ms": 50})
    for name, topic in SALES.items():
        schema, start = topic.registry_schema, b""
        if schema:
            start = header(client.register(schema.subject_of(topic.name), schema.text, schema.kind))
        for n in range(records):
            producer.produce(topic.name, start + WRITERS[name](sale(n)), partition=n % 2, timestamp=AT)
            if n % 50_000 == 0:
                producer.poll(0)
        producer.flush()


def run(number: int, way: str, spark: SparkSession, bootstrap: str, folder: Path) -> float:
    """Seconds from the start of the query until all records are written."""
    topic = WAYS[way]
    event_time = "at" if topic.registry_schema else "timestamp_millis(at)"
    sales = Input(topic, event_time=event_time, dead_letters="count")
    output = TopicOutput(OUT, key="shop", value=("shop", "twice"))
    stream = Stream(f"doubled-{number}", "bench", {"sales": sales}, doubled, output, Stateless())
    at = time.perf_counter()
    with patch.object(decode, "MAX_NATIVE_SCHEMAS", 20 if way != WITHOUT_SPARK else 0):
        with running(stream, spark, bootstrap, folder) as started:
            started.process_all_available()
            return time.perf_counter() - at


def decode_alone(records: int, runs: int) -> None:
    """The decoders of Spark's workers and of tables, in one thread: Avro is decoded by the one without Spark."""
    ways: dict[str, tuple[RecordDecoder, pa.Table]] = {}
    for name, topic in SALES.items():
        schema = topic.registry_schema
        start, event_time = (header(1), "at") if schema else (b"", "timestamp_millis(at)")
        values = RegistryValues(schema, ((1, schema.text),)) if schema else None
        decoder = RecordDecoder(topic.name, name, topic.ddl, event_time, None, keep_records=False, registry=values)
        columns: dict[str, pa.Array[Any]] = {
            "key": pa.nulls(records, pa.binary()),
            "value": pa.array([start + WRITERS[name](sale(n)) for n in range(records)], pa.binary()),
            "partition": pa.array([0] * records, pa.int32()), "offset": pa.array(range(records), pa.int64()),
            "clock": pa.array([2 * AT * 1000] * records, pa.int64()),
        }  # fmt: skip
        ways[name] = decoder, pa.table(columns)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs + 1):
        for name, (decoder, rows) in ways.items():
            at = time.process_time()
            assert sum(batch.num_rows for batch in decoder(iter(rows.to_batches()))) == records
            times[name].append(time.process_time() - at)
    medians = {name: statistics.median(of_way[1:]) for name, of_way in times.items()}
    lines = [
        [name, f"{1e6 * medians[name] / records:.2f}", ", ".join(f"{1e6 * s / records:.2f}" for s in times[name][1:]),
         f"{medians['JSON'] / medians[name]:.2f}"]
        for name in ways
    ]  # fmt: skip
    text = f"{records:,} records of five fields, {runs} runs of each in turn after one that is not counted.\n\n"
    figures = {"CPU a record, µs": {n: [1e6 * s / records for s in found[1:]] for n, found in times.items()}}
    head = ["", "median, µs of CPU a record", "runs, µs", "speed beside JSON"]
    write("decoders", text + table(head, lines), figures, chart="CPU a record, µs")


def main(records: int, runs: int) -> None:
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with (
        tempfile.TemporaryDirectory() as name,
        Broker(home=Path(name), port=free_port(2)) as broker,
        SchemaRegistryServer(Path(name), port=free_port()) as registry,
    ):
        os.environ["PENSTOCK_SCHEMA_REGISTRY_URL"] = registry.url
        settings.cache_clear()
        create(broker.bootstrap, *SALES.values(), OUT, COMMITS)
        fill(broker.bootstrap, records)
        with spark_session() as spark:
            for number in range((runs + 1) * len(WAYS)):
                way = list(WAYS)[number % len(WAYS)]
                seconds = run(number, way, spark, broker.bootstrap, Path(name) / "checkpoints")
                print(f"{way}: {seconds:.1f} s", flush=True)
                if number >= len(WAYS):
                    times[way].append(seconds)
    medians = {way: statistics.median(of_way) for way, of_way in times.items()}
    rows = [
        [way, f"{medians[way]:.1f}", ", ".join(f"{s:.1f}" for s in times[way]), f"{records / medians[way]:,.0f}",
         f"{medians['JSON'] / medians[way]:.2f}"]
        for way in WAYS
    ]  # fmt: skip
    text = f"{records:,} records of five fields, {runs} runs of each in turn after one that is not counted.\n\n"
    head = ["", "median, s", "runs, s", "records/s", "speed beside JSON"]
    write("registry-formats", text + table(head, rows), {"time, s": times})


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:] if argument != "decoders"]
    if "decoders" not in sys.argv:
        # A batch has them all: more would not fit the heap of the session.
        main(*arguments, *(300_000, 3)[len(arguments) :])
    if "decoders" in sys.argv or not arguments:
        decode_alone(*arguments, *(500_000, 3)[len(arguments) :])
