"""Values of a JSON Schema: JSON behind the header of a schema registry, read as the JSON of any other topic."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.registry_values import (
    ERROR,
    MAX_VALUE_BYTES,
    TEXT,
    Column,
    RegistryValues,
    ValueDecoder,
    WriterSchemas,
    headers_of,
    one_array,
)
from penstock.codec.text import as_text
from penstock.registry.wire_format import HEADER_BYTES


class JsonSchemaDecoder(ValueDecoder):
    """Cuts the header off; the fields are then read from the text by the schema that reads."""

    def __init__(self, values: RegistryValues) -> None:
        # Whichever version wrote a value, it is read by its names.
        self._schemas = WriterSchemas[None].of_format(values, lambda _: None)

    def columns(self, table: pa.Table) -> dict[str, Column]:
        values = one_array(table["value"])
        headers, numbers = headers_of(values)
        reasons = pa.array([self._schemas.of_header(header) for header in headers], pa.string())
        text: Any = pc.binary_slice(values, HEADER_BYTES, MAX_VALUE_BYTES)
        return {TEXT: as_text(pa.chunked_array([text])), ERROR: reasons.take(numbers)}


class JsonText:
    """Shows values: they are JSON already."""

    def __init__(self, _: str) -> None:
        pass

    @staticmethod
    def as_json(value: bytes) -> bytes:
        """A value without its header."""
        return value
