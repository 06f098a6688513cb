"""A stream of each format: what Confluent's serialiser writes is read, also by a schema that is registered while it
runs, and Confluent's deserialiser reads what it writes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.engine.query.encode import encode_rows
from penstock.errors import DeclarationError, SchemaNotRegistered
from penstock.model.topic import COMMITS
from penstock.registry import client
from penstock.streams import F, Input, Stateless, Stream, Table, Topic, TopicOutput
from penstock.testing import create, read, running
from tests.support.registry_formats import FORMATS, reader
from tests.support.schema_registry import in_home_of
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration


def named(orders: DataFrame, shops: DataFrame) -> DataFrame:
    return orders.join(shops, orders.shop == shops.key, "left").select("id", "shop", "at", "town", F.lit(1).alias("n"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_stream_reads_and_writes_a_format(
    name: str, spark: SparkSession, fresh_broker: Broker, schema_registry: SchemaRegistryServer, tmp_path: Path
) -> None:
    bootstrap, form, prefix = fresh_broker.bootstrap, FORMATS[name], name.replace(" ", "-").lower()
    orders = Topic(f"{prefix}-orders", partitions=1, schema=form.order)
    shops = Topic(f"{prefix}-shops", partitions=1, compacted=True, schema=form.shop)
    out = Topic(f"{prefix}-named", partitions=1, schema=form.named)
    stream = Stream(
        f"{prefix}-named", "test", {"orders": Input(orders, event_time="at"), "shops": Table(shops)}, named,
        TopicOutput(out, key="id", value=("id", "shop", "at", "town", "n")), Stateless(),
    )  # fmt: skip
    create(bootstrap, out, *stream.topics(), COMMITS)
    producer = Producer({"bootstrap.servers": bootstrap})

    def send(topic: Topic, *values: bytes, key: str | None = None) -> None:
        for value in values:
            producer.produce(topic.name, value, key=key)
        producer.flush()

    with (
        closing(SchemaRegistryClient({"url": schema_registry.url})) as registry,
        in_home_of(schema_registry, tmp_path / "project"),
    ):
        first, second, third = (
            {"id": number, "shop": shop, "at": form.at(number)} for number, shop in ((1, "a"), (2, "b"), (3, "a"))
        )
        old = [form.write(registry, orders.name, form.older, value) for value in (first, second)]
        send(shops, form.write(registry, shops.name, form.shop, {"town": "Ulm"}), key="a")
        send(orders, *old)
        with pytest.raises(SchemaNotRegistered), running(stream, spark, bootstrap, tmp_path / "refused"):
            pass
        client.register(form.named.subject_of(out.name), form.named.text, form.named.kind)
        with running(stream, spark, bootstrap, tmp_path / "checkpoints"):
            wait_until(lambda: len(read(bootstrap, out.name)) == 2, 120)
            new = form.write(registry, orders.name, form.newer, {**third, "note": "new"})
            send(orders, new, b"\x00\x00\x00\xff\xff!", b"{}", old[0][:5] + b"\xff\xff")
            wait_until(lambda: len(read(bootstrap, out.name)) == 3, 120)
            wait_until(lambda: len(read(bootstrap, orders.dead_letters)) == 3, 120)
        written = read(bootstrap, out.name)
        rows = [reader(registry, form.named)(record.value_bytes) for record in written]
    assert [(row["id"], row["shop"], row["at"].timestamp(), row["town"], row["n"]) for row in rows] == [
        (1, "a", 1.0, "Ulm", 1), (2, "b", 2.0, None, 1), (3, "a", 3.0, "Ulm", 1),
    ]  # fmt: skip
    reasons = {dict(record.headers)["penstock.reason"] for record in read(bootstrap, orders.dead_letters)}
    assert len(reasons) == 3
    assert reasons > {
        "schema id 65535 is not in the registry",
        "not in the wire format of a schema registry: it begins with 0x7b7d",
    }


@pytest.mark.parametrize("name", FORMATS)
def test_a_preview_shows_values_as_json_and_asks_no_registry(name: str, spark: SparkSession) -> None:
    output = TopicOutput(Topic("named", schema=FORMATS[name].named), key="id", value=("id", "shop", "at", "town", "n"))
    stream = Stream("s", "a", {"rows": Input(Topic("in"))}, lambda rows: rows, output, Stateless())
    rows = spark.sql("SELECT '1' AS id, 'a' AS shop, timestamp '2026-02-03 04:05:06Z' AS at, NULL AS town, 1L AS n")
    [record] = encode_rows(stream, rows, readable=True).collect()
    assert json.loads(record.value) == {
        "id": 1, "shop": "a", "at": "2026-02-03T04:05:06.000000Z", "town": None, "n": 1,
    }  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_a_preview_refuses_what_a_batch_would(name: str, spark: SparkSession) -> None:
    output = TopicOutput(Topic("named", schema=FORMATS[name].named), key="id", value=("id", "shop", "at", "town", "n"))
    stream = Stream("s", "a", {"rows": Input(Topic("in"))}, lambda rows: rows, output, Stateless())
    rows = spark.sql("SELECT 1L AS id, 'a' AS shop, timestamp '2026-02-03 04:05:06Z' AS at, NULL AS town, 1.5D AS n")
    with pytest.raises(DeclarationError, match="a column cannot be written as its field: topic named, n"):
        encode_rows(stream, rows, readable=True)
