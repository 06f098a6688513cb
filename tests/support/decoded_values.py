"""Values in the wire format of a schema registry, read as tables and views read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from penstock.model.registry_schema import RegistrySchema
from penstock.registry.client import WriterSchema
from penstock.registry.endpoint import RegistryEndpoint, in_place_of_settings
from penstock.streams import Table, Topic
from penstock.tables.topic_reader import TableDecoder

WRITER_ID = 1
"""The id of the writer's schema."""


def read_by_table(
    schema: RegistrySchema, writer: WriterSchema | RegistrySchema, values: Sequence[bytes | None]
) -> list[Any]:
    """The fields of values, in their order.

    Args:
        schema: The schema that reads.
        writer: The schema that they were written by.
        values: The values, none of which may be a bad record.
    """
    endpoint = RegistryEndpoint("", table=(("t-value", writer.text, writer.kind),))
    # A process decodes a topic by the schemas that it has read once.
    decoder = TableDecoder(Table(Topic(f"t-{uuid4().hex}", compacted=True, schema=schema)))
    records: list[tuple[bytes | None, bytes | None, int, int]] = [
        (str(number).encode(), value, 0, number) for number, value in enumerate(values)
    ]
    with in_place_of_settings(endpoint):
        batch = decoder.decode(records, {0: len(values)})
    assert [row["reason"] for row in batch.bad_records.to_pylist()] == []
    rows = {row["key"]: row for row in batch.rows[0].to_pylist()}
    names = [field.name for field in schema.fields]
    return [{name: rows[str(number)][name] for name in names} for number in range(len(values))]
