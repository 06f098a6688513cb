"""What decoding Avro costs: the same records as JSON and as Avro, by Spark's decoder and by the one without Spark.

The stream, without state, has one input and one topic. Each run reads the topic from its beginning in one batch, in a
session that is warm; the runs of the ways are in turn. Without Spark's decoder,
every schema is as one that is registered while the query runs.

    python -m tests.bench.avro [records] [runs of each]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from confluent_kafka import Producer
from fastavro import parse_schema, schemaless_writer

from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.engine.query import decode
from penstock.host.ports import free_port
from penstock.model.avro import Avro
from penstock.model.topic import COMMITS
from penstock.registry import client
from penstock.registry.wire_format import MAGIC
from penstock.settings import settings
from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import create, running, spark_session
from tests.bench.common import table, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
DDL = "shop STRING NOT NULL, item STRING, amount DOUBLE NOT NULL, pieces INT NOT NULL, at BIGINT NOT NULL"
AT = 1_700_000_400_000
FOREVER = {"retention.ms": "-1"}
AS_JSON = Topic("sales-json", partitions=2, config=FOREVER, schema=DDL)
AS_AVRO = Topic("sales-avro", partitions=2, config=FOREVER, schema=AVRO)
OUT = Topic("doubled", partitions=2, config=FOREVER)
WAYS = {
    "JSON": Input(AS_JSON, event_time="timestamp_millis(at)", dead_letters="count"),
    "Avro, by Spark": Input(AS_AVRO, event_time="at", dead_letters="count"),
    "Avro, without Spark": Input(AS_AVRO, event_time="at", dead_letters="count"),
}


def doubled(sales: DataFrame) -> DataFrame:
    return sales.where("amount >= 0").select("shop", (F.col("amount") * 2).alias("twice"))


def fill(bootstrap: str, records: int, schema_id: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000, "linger.ms": 50})
    header, schema = MAGIC + schema_id.to_bytes(4), parse_schema(SCHEMA)
    for n in range(records):
        sale = {
            "shop": f"shop-{n % 1000}", "item": f"item-{n % 77}" if n % 3 else None, "amount": n % 977 + 0.5,
            "pieces": n % 9, "at": AT + n,
        }  # fmt: skip
        stream = BytesIO()
        stream.write(header)
        schemaless_writer(stream, schema, sale)
        producer.produce(AS_JSON.name, json.dumps(sale, separators=(",", ":")), partition=n % 2, timestamp=AT)
        producer.produce(AS_AVRO.name, stream.getvalue(), partition=n % 2, timestamp=AT)
        if n % 50_000 == 0:
            producer.poll(0)
    producer.flush()


def run(number: int, way: str, spark: SparkSession, bootstrap: str, folder: Path) -> float:
    """Seconds from the start of the query until all records are written."""
    output = TopicOutput(OUT, key="shop", value=("shop", "twice"))
    stream = Stream(f"doubled-{number}", "bench", {"sales": WAYS[way]}, doubled, output, Stateless())
    at = time.perf_counter()
    with patch.object(decode, "MAX_NATIVE_SCHEMAS", 20 if way != "Avro, without Spark" else 0):
        with running(stream, spark, bootstrap, folder) as started:
            started.process_all_available()
            return time.perf_counter() - at


def main(records: int, runs: int) -> None:
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with (
        tempfile.TemporaryDirectory() as name,
        Broker(home=Path(name), port=free_port(2)) as broker,
        SchemaRegistryServer(Path(name), port=free_port()) as registry,
    ):
        os.environ["PENSTOCK_SCHEMA_REGISTRY_URL"] = registry.url
        settings.cache_clear()
        create(broker.bootstrap, AS_JSON, AS_AVRO, OUT, COMMITS)
        fill(broker.bootstrap, records, client.register(AVRO.subject_of(AS_AVRO.name), AVRO.text, AVRO.kind))
        with spark_session() as spark:
            for number in range((runs + 1) * len(WAYS)):
                way = list(WAYS)[number % len(WAYS)]
                seconds = run(number, way, spark, broker.bootstrap, Path(name) / "checkpoints")
                print(f"{way}: {seconds:.1f} s", flush=True)
                if number >= len(WAYS):
                    times[way].append(seconds)
    medians = {way: statistics.median(found) for way, found in times.items()}
    rows = [
        [way, f"{medians[way]:.1f}", ", ".join(f"{s:.1f}" for s in times[way]), f"{records / medians[way]:,.0f}",
         f"{medians['JSON'] / medians[way]:.2f}"]
        for way in WAYS
    ]  # fmt: skip
    text = f"{records:,} records of five fields, {runs} runs of each in turn after one that is not counted.\n\n"
    write("avro", text + table(["", "median, s", "runs, s", "records/s", "speed beside JSON"], rows))


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    main(*arguments, *(500_000, 3)[len(arguments) :])
