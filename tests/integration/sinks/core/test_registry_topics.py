"""Sinks of a topic of each format: every type keeps its meaning in each store, and a tombstone deletes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pymongo
import pytest
from bson import Decimal128
from pyspark.sql import SparkSession

from penstock.devstack.servers.influxdb import InfluxDBServer
from penstock.devstack.servers.kafka import Broker
from penstock.model.avro import Avro
from penstock.model.json_schema import JsonSchema
from penstock.model.registry_schema import RegistrySchema
from penstock.model.sql.sink_file import parse
from penstock.settings import settings
from penstock.sinks.core.stream import sink_stream, with_declared_schemas
from penstock.streams import Topic
from penstock.testing import Record, create, running, send
from penstock.testing.registry_values import RegistryTopics
from tests.support.avro_cases import field, logical, optional, record, schema_text
from tests.support.elasticsearch import Server
from tests.support.http_client import HTTP
from tests.support.influxdb import asked
from tests.support.long_cases import quick
from tests.support.registry_formats import protobuf

pytestmark = pytest.mark.integration

AT = datetime(2026, 2, 3, 4, 5, 6, 789000, UTC)
TIME = "2026-02-03T04:05:06.789Z"
INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


class SinkFormat(NamedTuple):
    """A format, and what the stores get of `day` and `tag`, and MongoDB of `amount`."""

    schema: RegistrySchema
    amount: Any
    day: Any
    tag: Any


# Of these, only Avro has decimals and dates, and JSON has no bytes.
FORMATS = {
    "Avro": SinkFormat(
        Avro(
            schema_text(
                [
                    field("id", "long"),
                    field("amount", logical("bytes", "decimal", precision=10, scale=2)),
                    field("day", optional(logical("int", "date"))),
                    field("at", logical("long", "timestamp-millis")),
                    field("tag", optional("bytes")),
                    field("lines", {"type": "array", "items": record("Line", field("n", "int"))}),
                ]
            )
        ),
        Decimal128("12.30"),
        datetime(2026, 2, 3, tzinfo=UTC),
        b"\x00\xff",
    ),
    "JSON Schema": SinkFormat(
        JsonSchema(
            json.dumps(
                {
                    "type": "object",
                    "properties": {
                        "id": INTEGER,
                        "amount": {"type": "number"},
                        "day": {**TEXT, "format": "date"},
                        "at": {**TEXT, "format": "date-time"},
                        "tag": TEXT,
                        "lines": {"type": "array", "items": {"type": "object", "properties": {"n": INTEGER}}},
                    },
                    "required": ["id"],
                }
            )
        ),
        12.3,
        datetime(2026, 2, 3, tzinfo=UTC),
        "AP8=",
    ),
    "Protobuf": SinkFormat(
        protobuf(
            "message Line { int32 n = 1; } int64 id = 1; double amount = 2; optional string day = 3; "
            "google.protobuf.Timestamp at = 4; optional bytes tag = 5; repeated Line lines = 6;"
        ),
        12.3,
        "2026-02-03",
        b"\x00\xff",
    ),
}
READ = "READ {topic} EVENT TIME at KEY (id) TOMBSTONES DELETE (bigint(string(record.key)))"
SINKS = {
    "es": f"UPSERT INTO elasticsearch.{{topic}} {READ} AS SELECT id, amount, day, at, tag, lines FROM `{{topic}}`",
    "mongo": f"UPSERT INTO mongodb.registry_sales.sales {READ} AS SELECT id, amount, day, at, tag, lines "
    "FROM `{topic}`",
    "influx": "UPSERT INTO influxdb.registry_sales.sales READ {topic} EVENT TIME at TAGS (id) TIME (at) "
    "TOMBSTONES IGNORE AS SELECT string(id) AS id, at, amount FROM `{topic}`",
}


@pytest.mark.parametrize("name", quick(FORMATS, "Avro"))
def test_every_store_gets_the_types_of_the_schema(
    spark: SparkSession,
    fresh_broker: Broker,
    search: Server,
    mongodb_url: str,
    influxdb_server: InfluxDBServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    bootstrap, form = fresh_broker.bootstrap, FORMATS[name]
    for server, url in (("ELASTICSEARCH", search.url), ("MONGODB", mongodb_url), ("INFLUXDB", influxdb_server.url)):
        monkeypatch.setenv(f"PENSTOCK_{server}_URL", url)
    settings.cache_clear()
    asked(influxdb_server, "DROP DATABASE registry_sales", "")
    asked(influxdb_server, "CREATE DATABASE registry_sales", "")
    sales = Topic(
        f"{form.schema.kind.lower()}-sink-sales", partitions=1, compacted=True, schema=form.schema,
        config={"retention.ms": "-1"},
    )  # fmt: skip
    topics = {sales.name: sales}
    declared = [parse(text.format(topic=sales.name), Path(f"sql/sinks/{one}.sql")) for one, text in SINKS.items()]
    streams = [sink_stream(with_declared_schemas(one, topics), topics) for one in declared]
    create(bootstrap, sales, *(topic for stream in streams for topic in stream.topics()))
    registered = RegistryTopics(topics)
    value = {"id": 7, "amount": 12.3, "day": "2026-02-03", "at": TIME, "tag": "AP8=", "lines": [{"n": 1}]}
    data = registered.to_bytes(sales.name, value)
    assert data
    with pymongo.MongoClient[Any](mongodb_url, tz_aware=True) as client, registered.in_place():
        send(bootstrap, [Record(sales.name, "7", "", value_bytes=data), Record(sales.name, "8", "", value_bytes=b"{}")])
        for stream in streams:
            with running(stream, spark, bootstrap, tmp_path) as run:
                run.process_all_available()
                assert (run.figures.dead, run.figures.error) == (1, None)
        [found] = client["registry_sales"]["sales"].find()
        assert {field.name: found[field.name] for field in form.schema.fields} == {
            "id": 7, "amount": form.amount, "day": form.day, "at": AT, "tag": form.tag, "lines": [{"n": 1}],
        }  # fmt: skip
        document = HTTP.get(f"{search.url}/{sales.name}/_doc/7").json()["_source"]
        assert (document["id"], document["amount"], document["day"], document["tag"], document["lines"]) == (
            7, 12.3, "2026-02-03", "AP8=", [{"n": 1}],
        )  # fmt: skip
        assert datetime.fromisoformat(document["at"]) == AT
        [series] = asked(influxdb_server, "SELECT amount FROM sales GROUP BY id", "registry_sales")["series"]
        assert (series["tags"], series["values"]) == ({"id": "7"}, [[int(AT.timestamp() * 1000), 12.3]])
        send(bootstrap, [Record(sales.name, "7", None)])
        for stream in streams[:2]:
            with running(stream, spark, bootstrap, tmp_path) as run:
                run.process_all_available()
        assert list(client["registry_sales"]["sales"].find()) == []
        assert HTTP.get(f"{search.url}/{sales.name}/_doc/7").status_code == 404
        client.drop_database("registry_sales")
