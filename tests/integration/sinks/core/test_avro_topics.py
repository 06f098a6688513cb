"""Sinks of a topic of Avro: every type keeps its meaning in each store, and a tombstone deletes."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pymongo
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from penstock.devstack.servers.influxdb import InfluxDBServer
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.model.avro import Avro
from penstock.model.sql.sink_file import parse
from penstock.settings import settings
from penstock.sinks.core.stream import sink_stream, with_declared_schemas
from penstock.streams import Topic
from penstock.testing import Record, create, running, send
from tests.support.avro_cases import field, logical, optional, record, schema_text
from tests.support.elasticsearch import Server
from tests.support.http_client import HTTP
from tests.support.influxdb import asked
from tests.support.schema_registry import close_clients

pytestmark = pytest.mark.integration

AT = datetime(2026, 2, 3, 4, 5, 6, 789000, UTC)
SCHEMA = schema_text(
    [
        field("id", "long"),
        field("amount", logical("bytes", "decimal", precision=10, scale=2)),
        field("day", optional(logical("int", "date"))),
        field("at", logical("long", "timestamp-millis")),
        field("tag", optional("bytes")),
        field("lines", {"type": "array", "items": record("Line", field("n", "int"))}),
    ]
)
SALES = Topic("avro-sink-sales", partitions=1, compacted=True, schema=Avro(SCHEMA), config={"retention.ms": "-1"})
READ = "READ avro-sink-sales EVENT TIME at KEY (id) TOMBSTONES DELETE (bigint(string(record.key)))"
SINKS = {
    "es": f"UPSERT INTO elasticsearch.avro-sales {READ} AS SELECT id, amount, day, at, tag, lines "
    "FROM `avro-sink-sales`",
    "mongo": f"UPSERT INTO mongodb.avro_sales.sales {READ} AS SELECT id, amount, day, at, tag, lines "
    "FROM `avro-sink-sales`",
    "influx": "UPSERT INTO influxdb.avro_sales.sales READ avro-sink-sales EVENT TIME at TAGS (id) TIME (at) "
    "TOMBSTONES IGNORE AS SELECT string(id) AS id, at, amount FROM `avro-sink-sales`",
}


def test_every_store_gets_the_types_of_the_schema(
    spark: SparkSession,
    fresh_broker: Broker,
    schema_registry: SchemaRegistryServer,
    search: Server,
    mongodb_url: str,
    influxdb_server: InfluxDBServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap = fresh_broker.bootstrap
    for name, url in (
        ("SCHEMA_REGISTRY", schema_registry.url), ("ELASTICSEARCH", search.url), ("MONGODB", mongodb_url),
        ("INFLUXDB", influxdb_server.url),
    ):  # fmt: skip
        monkeypatch.setenv(f"PENSTOCK_{name}_URL", url)
    settings.cache_clear()
    asked(influxdb_server, "CREATE DATABASE avro_sales", "")
    topics = {SALES.name: SALES}
    declared = [parse(text, Path(f"sql/sinks/{name}.sql")) for name, text in SINKS.items()]
    streams = [sink_stream(with_declared_schemas(one, topics), topics) for one in declared]
    create(bootstrap, SALES, *(topic for stream in streams for topic in stream.topics()))
    value: dict[str, Any] = {
        "id": 7, "amount": Decimal("12.30"), "day": AT.date(), "at": AT, "tag": b"\x00\xff", "lines": [{"n": 1}],
    }  # fmt: skip
    with closing(SchemaRegistryClient({"url": schema_registry.url})) as registry:
        write = AvroSerializer(registry, SCHEMA)
        data = bytes(write(value, SerializationContext(SALES.name, MessageField.VALUE)) or b"")
    with pymongo.MongoClient[Any](mongodb_url, tz_aware=True) as client:
        send(bootstrap, [Record(SALES.name, "7", "", value_bytes=data), Record(SALES.name, "8", "", value_bytes=b"{}")])
        for stream in streams:
            with running(stream, spark, bootstrap, tmp_path) as run:
                run.process_all_available()
                assert (run.figures.dead, run.figures.error) == (1, None)
        [found] = client["avro_sales"]["sales"].find()
        assert {name: found[name] for name in ("id", "tag", "lines")} == {
            "id": 7, "tag": b"\x00\xff", "lines": [{"n": 1}],
        }  # fmt: skip
        assert (found["amount"].to_decimal(), found["at"], found["day"]) == (
            Decimal("12.30"), AT, datetime(2026, 2, 3, tzinfo=UTC),
        )  # fmt: skip
        document = HTTP.get(f"{search.url}/avro-sales/_doc/7").json()["_source"]
        assert (document["id"], document["amount"], document["day"], document["tag"], document["lines"]) == (
            7, 12.3, "2026-02-03", "AP8=", [{"n": 1}],
        )  # fmt: skip
        assert datetime.fromisoformat(document["at"]) == AT
        [series] = asked(influxdb_server, "SELECT amount FROM sales GROUP BY id", "avro_sales")["series"]
        assert (series["tags"], series["values"]) == ({"id": "7"}, [[int(AT.timestamp() * 1000), 12.3]])
        send(bootstrap, [Record(SALES.name, "7", None)])
        for stream in streams[:2]:
            with running(stream, spark, bootstrap, tmp_path) as run:
                run.process_all_available()
        assert list(client["avro_sales"]["sales"].find()) == []
        assert HTTP.get(f"{search.url}/avro-sales/_doc/7").status_code == 404
        client.drop_database("avro_sales")
    close_clients()
