"""Decodes the values of a topic to the fields of its schema, without Spark."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from penstock.codec.arrow_types import arrow_type
from penstock.codec.columnar import DecoderQueries, RecordDecoder, coalesce_batches, connection
from penstock.codec.registry_values import RegistryValues
from penstock.model.topic import Topic, reader_fields

# One that DuckDB does not evaluate, so no record is refused for it.
NO_EVENT_TIME = ""
CHUNK_ROWS = 20_000


def fields_type(topic: Topic) -> pa.StructType:
    """The STRUCT of the fields of a topic's schema."""
    fields = reader_fields(f"topic {topic.name}", topic.registry_schema or topic.ddl)
    return pa.struct([(field.name, arrow_type(field.type)) for field in fields])


class FieldsDecoder:
    """Decodes values of a topic, by one thread at a time.

    Args:
        topic: It declares a schema.
        label: Names the reader in messages.
    """

    def __init__(self, topic: Topic, label: str) -> None:
        registry = RegistryValues(topic.registry_schema) if topic.registry_schema else None
        decoder = RecordDecoder(
            topic.name, label, topic.ddl, NO_EVENT_TIME, None, keep_records=False, registry=registry
        )
        duck = connection().cursor()
        duck.execute("SET timezone = 'UTC'")
        self._type, self._queries = fields_type(topic), DecoderQueries(decoder, duck)

    def decode(self, values: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
        """Decode values.

        Args:
            values: BINARY; NULL for a tombstone.

        Returns:
            STRUCT of the fields; NULL for a tombstone, and for a value that is no record of the schema.

        Raises:
            RegistryError: The schema registry does not answer.
        """
        count = len(values)
        columns: dict[str, Any] = {
            "key": pa.nulls(count, pa.binary()), "value": values, "partition": pa.nulls(count, pa.int32()),
            "offset": pa.nulls(count, pa.int64()), "clock": pa.nulls(count, pa.int64()),
        }  # fmt: skip
        batches = iter(pa.table(columns).to_batches(max_chunksize=CHUNK_ROWS))
        chunks = [decoded for part in coalesce_batches(batches) for decoded in self._queries.fields(part)]
        return pa.chunked_array(chunks, cast("Any", self._type))
