"""Streams of Avro over time: many versions, subjects that are deleted, and heartbeats in the topic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.query.decode import MAX_NATIVE_SCHEMAS
from penstock.errors import SchemaNotRegistered
from penstock.model.avro import Avro
from penstock.model.topic import COMMITS
from penstock.registry import client
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.avro_cases import field, optional, schema_text
from tests.support.schema_registry import close_clients

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

ID = [field("id", "long")]
Write = Callable[[str, dict[str, Any]], bytes]


def copied(ids: DataFrame) -> DataFrame:
    return ids.select("id")


def stream(name: str) -> Stream:
    given, output = (Topic(f"{name}-{of}", partitions=1, schema=Avro(schema_text(ID))) for of in ("in", "out"))
    return Stream(
        name,
        "test",
        {"ids": Input(given, event_time="record.timestamp", record=True)},
        copied,
        TopicOutput(output, value=("id",)),
        Stateless(),
    )


def written(registry: SchemaRegistryClient, topic: str, text: str, value: dict[str, Any]) -> Record:
    data = AvroSerializer(registry, text)(value, SerializationContext(topic, MessageField.VALUE))
    return Record(topic, None, "", value_bytes=bytes(data or b""))


@pytest.mark.long
def test_more_versions_than_spark_decodes_itself(
    spark: SparkSession, fresh_broker: Broker, registry: SchemaRegistryClient, tmp_path: Path
) -> None:
    one, bootstrap, count = stream("many"), fresh_broker.bootstrap, MAX_NATIVE_SCHEMAS + 3
    create(bootstrap, *one.topics(), COMMITS)
    client.register("many-out-value", schema_text(ID), "AVRO")
    records = []
    for version in range(count):
        more = [field(f"f{n}", optional("string"), default=None) for n in range(version)]
        records.append(written(registry, "many-in", schema_text([*ID, *more]), {"id": version}))
    send(bootstrap, records)
    assert len(client.subject_schemas("many-in-value", "AVRO")) == count
    with running(one, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert run.figures.dead == 0
    assert sorted(record.value_bytes[-1] // 2 for record in read(bootstrap, "many-out") if record.value_bytes) == [
        *range(count)
    ]


def test_a_subject_that_is_deleted_while_the_stream_runs(
    spark: SparkSession, fresh_broker: Broker, registry: SchemaRegistryClient, tmp_path: Path
) -> None:
    one, bootstrap = stream("deleted"), fresh_broker.bootstrap
    create(bootstrap, *one.topics(), COMMITS)
    number = client.register("deleted-out-value", schema_text(ID), "AVRO")
    record = written(registry, "deleted-in", schema_text(ID), {"id": 1})
    send(bootstrap, [record])
    with running(one, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        for subject in ("deleted-in-value", "deleted-out-value"):
            registry.delete_subject(subject)
        send(bootstrap, [record])
        run.process_all_available()
        assert run.figures.dead == 0
    assert len(read(bootstrap, "deleted-out")) == 2
    close_clients()
    # A release registers it again, with another id or the same.
    with pytest.raises(SchemaNotRegistered), running(one, spark, bootstrap, tmp_path):
        pass
    assert client.register("deleted-out-value", schema_text(ID), "AVRO") >= number
    send(bootstrap, [record])
    with running(one, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        dead = run.figures.dead
    letters = read(bootstrap, "deleted-in-dead-letter") if dead else []
    assert len(read(bootstrap, "deleted-out")) + len(letters) == 3
    assert all("is not in the registry" in dict(letter.headers)["penstock.reason"] for letter in letters)
