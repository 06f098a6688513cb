"""A stream of Avro: what Confluent's serialiser writes is read, also by a schema that is registered while it runs, and
Confluent's deserialiser reads what it writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.errors import SchemaNotRegistered
from penstock.model.avro import Avro
from penstock.model.topic import COMMITS
from penstock.registry import client
from penstock.streams import F, Input, Stateless, Stream, Table, Topic, TopicOutput
from penstock.testing import create, read, running
from tests.support.avro_cases import field, logical, optional, schema_text
from tests.support.schema_registry import in_home_of
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

AT = field("at", logical("long", "timestamp-millis"))
ORDER = [field("id", "long"), field("shop", "string"), AT]
OLD = schema_text([field("id", "int"), field("shop", "string"), AT])
NEW = schema_text([*ORDER, field("note", optional("string"), default=None)])
ORDERS = Topic("orders", partitions=1, schema=Avro(schema_text(ORDER)))
SHOPS = Topic("shops", partitions=1, compacted=True, schema=Avro(schema_text([field("town", "string")])))
NAMED = Topic(
    "named-orders",
    partitions=1,
    schema=Avro(schema_text([*ORDER, field("town", optional("string")), field("n", "int")])),
)


def named(orders: DataFrame, shops: DataFrame) -> DataFrame:
    return orders.join(shops, orders.shop == shops.key, "left").select("id", "shop", "at", "town", F.lit(1).alias("n"))


STREAM = Stream(
    "named-orders", "test", {"orders": Input(ORDERS, event_time="at"), "shops": Table(SHOPS)}, named,
    TopicOutput(NAMED, key="id", value=("id", "shop", "at", "town", "n")), Stateless(),
)  # fmt: skip


def serialiser(registry: SchemaRegistryClient, topic: str, text: str) -> Callable[[dict[str, Any]], bytes]:
    """Confluent's serialiser, which registers the schema."""
    write, context = AvroSerializer(registry, text), SerializationContext(topic, MessageField.VALUE)
    return lambda value: bytes(write(value, context) or b"")


def test_a_stream_reads_and_writes_avro(
    spark: SparkSession, fresh_broker: Broker, schema_registry: SchemaRegistryServer, tmp_path: Path
) -> None:
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, NAMED, *STREAM.topics(), COMMITS)
    producer = Producer({"bootstrap.servers": bootstrap})

    def send(topic: Topic, *values: bytes, key: str | None = None) -> None:
        for value in values:
            producer.produce(topic.name, value, key=key)
        producer.flush()

    with (
        closing(SchemaRegistryClient({"url": schema_registry.url})) as registry,
        in_home_of(schema_registry, tmp_path / "project"),
    ):
        old = serialiser(registry, ORDERS.name, OLD)
        send(SHOPS, serialiser(registry, SHOPS.name, schema_text([field("town", "string")]))({"town": "Ulm"}), key="a")
        send(ORDERS, old({"id": 1, "shop": "a", "at": 1000}), old({"id": 2, "shop": "b", "at": 2000}))
        with pytest.raises(SchemaNotRegistered), running(STREAM, spark, bootstrap, tmp_path / "refused"):
            pass
        assert NAMED.avro
        client.register("named-orders-value", NAMED.avro.text, NAMED.avro.kind)
        with running(STREAM, spark, bootstrap, tmp_path / "checkpoints"):
            wait_until(lambda: len(read(bootstrap, NAMED.name)) == 2, 60)
            new = serialiser(registry, ORDERS.name, NEW)
            send(ORDERS, new({"id": 3, "shop": "a", "at": 3000, "note": "new"}), b"\x00\x00\x00\xff\xff!", b"{}")
            wait_until(lambda: len(read(bootstrap, NAMED.name)) == 3, 60)
            wait_until(lambda: len(read(bootstrap, ORDERS.dead_letters)) == 2, 60)
        reads = AvroDeserializer(registry)
        rows: list[Any] = [
            reads(record.value_bytes, SerializationContext(NAMED.name, MessageField.VALUE))
            for record in read(bootstrap, NAMED.name)
        ]
    assert [(row["id"], row["shop"], row["at"].timestamp(), row["town"], row["n"]) for row in rows] == [
        (1, "a", 1.0, "Ulm", 1), (2, "b", 2.0, None, 1), (3, "a", 3.0, "Ulm", 1),
    ]  # fmt: skip
    assert {dict(record.headers)["penstock.reason"] for record in read(bootstrap, ORDERS.dead_letters)} == {
        "schema id 65535 is not in the registry",
        "not in the wire format of a schema registry: it begins with 0x7b7d",
    }
