"""Topics without a rule of their own are judged by the schemas that a real registry has for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import SparkSession

from jobs.quality import counts, rules, validity
from penstock.codec.registry_verdicts import RegistryVerdicts
from penstock.errors import RegistryError
from penstock.host.ports import free_port
from penstock.registry import client, wire_format
from penstock.registry.endpoint import RegistryEndpoint
from penstock.testing import frames
from tests.support.registry_formats import FORMATS

pytestmark = pytest.mark.integration

Value = str | bytes | None


def statuses(spark: SparkSession, folder: Path, topic: str, values: list[Value]) -> list[str]:
    """Of each record by itself: it has a second of its own."""
    found = rules.load(folder)
    read = replace(counts.RECORDS, combine=validity.combiner(found, by_registry=True))
    stream = replace(counts.STREAM, inputs={"records": read})
    given = [{"topic": topic, "key": "k", "value": value, "timestamp": 1000 * n} for n, value in enumerate(values)]
    judged = validity.add_status(frames(spark, stream, records=given)["records"], found).orderBy("event_time")
    return [row.status for row in judged.collect()]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_registered_topic_is_judged_by_the_schemas_of_its_writers(
    spark: SparkSession, registry: SchemaRegistryClient, tmp_path: Path, kind: str
) -> None:
    topic, given = f"orders-{uuid4().hex[:8]}", FORMATS[kind]
    client.register(given.order.subject_of(topic), given.order.text, given.order.kind)
    order = {"id": 1, "shop": "a", "at": given.at(1)}
    first = given.write(registry, topic, given.order, order)
    second = given.write(registry, topic, given.newer, {**order, "note": "new"})
    unknown = wire_format.header(2**31 - 1) + first[5:]
    values: list[Value] = [first, second, None, '{"id":1}', unknown, first[:-1], b"", b"\x00\x00"]
    assert statuses(spark, tmp_path, topic, values) == [*["valid"] * 3, *["invalid"] * 5]
    assert statuses(spark, tmp_path, f"{topic}-2", values) == [
        *["invalid"] * 2, *["valid"] * 2, *["invalid"] * 4,
    ]  # fmt: skip
    (tmp_path / "own.sql").write_text(f"-- topic: {topic}\n-- format: json\nTRUE")
    assert statuses(spark, tmp_path, topic, values)[:4] == ["invalid", "invalid", "valid", "valid"]


def test_no_record_is_judged_while_the_registry_does_not_answer() -> None:
    verdicts = RegistryVerdicts(RegistryEndpoint(f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(RegistryError):
        verdicts.columns(pa.array(["t"]), pa.array([b"{}"]))
