"""Encodes rows in columns to Avro in the wire format of a schema registry, without Spark.

Logical types are converted in columns; the record itself is written by fastavro.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.avro import with_types, without_logical_type
from penstock.codec.registry_values import ValueEncoder
from penstock.errors import optional_packages
from penstock.model.avro import Avro, AvroType
from penstock.registry.wire_format import header

WRITTEN_AS = {"timestamp-millis": pa.int64(), "timestamp-micros": pa.int64(), "date": pa.int32()}


@dataclass(frozen=True)
class AvroEncoder(ValueEncoder[Avro]):
    """Encodes the values of a topic, without Spark."""

    def encode_records(self, records: pa.StructArray) -> list[bytes]:
        fields, columns = self.schema.record.fields, records.flatten()
        for (name, of), column in zip(fields, columns, strict=True):
            if column.null_count and not of.nullable:
                raise ValueError(f"field {name} is NULL, and no union with null")
        # An array of structs is slower to read than its columns.
        names = [name for name, _ in fields]
        pairs = zip(columns, fields, strict=True)
        lists = [_written(column, of).to_pylist(maps_as_pydicts="strict") for column, (_, of) in pairs]
        with optional_packages():
            from fastavro import schemaless_writer
            from fastavro.validation import validate

        # fastavro writes a NULL as FALSE.
        is_validated = _has_nulls_within(records, self.schema.record)
        schema, start, stream = self._written_schema, header(self.schema_id), BytesIO()
        values: list[bytes] = []
        for fields_of_row in zip(*lists, strict=True):
            row = dict(zip(names, fields_of_row, strict=True))
            stream.seek(0)
            stream.truncate()
            stream.write(start)
            try:
                if is_validated:
                    validate(row, schema)
                try:
                    schemaless_writer(stream, schema, row)
                except Exception:
                    # Its error names the field.
                    validate(row, schema)
                    raise
            except Exception as e:
                said = " ".join(str(e).split())[:200] or type(e).__name__
                raise ValueError(f"it cannot be written by its Avro schema: {said}") from e
            values.append(stream.getvalue())
        return values

    @cached_property
    def _written_schema(self) -> Any:
        """The schema as fastavro writes it: of the logical types, it converts decimals only."""
        from fastavro import parse_schema

        def without_others(node: dict[str, Any]) -> dict[str, Any]:
            return node if node.get("logicalType") == "decimal" else without_logical_type(node)

        return parse_schema(with_types(json.loads(self.schema.text), without_others))


def _written(values: Any, of: AvroType) -> Any:
    """Values without the logical types that are numbers, an Arrow array."""
    if of.logical in WRITTEN_AS:
        if of.logical == "timestamp-millis":
            # A cast rounds times before 1970 up.
            values = pc.floor_temporal(values, unit="millisecond").cast(pa.timestamp("ms", "UTC"))
        return values.cast(WRITTEN_AS[of.logical])
    if of.name == "record":
        columns = [_written(values.field(number), inner) for number, (_, inner) in enumerate(of.fields)]
        names = [name for name, _ in of.fields]
        return pa.StructArray.from_arrays(columns, names, mask=values.is_null())
    if of.element is None:
        return values
    if of.name == "map":
        return pa.MapArray.from_arrays(
            values.offsets, values.keys, _written(values.items, of.element), mask=values.is_null()
        )
    return pa.ListArray.from_arrays(values.offsets, _written(values.values, of.element), mask=values.is_null())


def _has_nulls_within(values: Any, of: AvroType) -> bool:
    """Whether a nested value that is no union with null may be NULL."""
    if of.name == "record":
        inner = [(values.field(number), kind) for number, (_, kind) in enumerate(of.fields)]
    elif of.element:
        inner = [(values.items if of.name == "map" else values.values, of.element)]
    else:
        return False
    return any((one.null_count and not kind.nullable) or _has_nulls_within(one, kind) for one, kind in inner)
