"""Encodes rows in columns to Avro in the wire format of a schema registry, without Spark.

Captures and backfills write by it. Logical types are converted in columns; the record itself is written by fastavro.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.avro import with_types, without_logical_type
from penstock.errors import optional_packages
from penstock.model.avro import Avro, AvroType
from penstock.registry.wire_format import header

WRITTEN_AS = {"timestamp-millis": pa.int64(), "timestamp-micros": pa.int64(), "date": pa.int32()}


@dataclass(frozen=True)
class AvroEncoder:
    """Encodes the values of a topic.

    Attributes:
        schema: The schema that writes.
        schema_id: Its id in the registry.
    """

    schema: Avro
    schema_id: int

    def encode(
        self, columns: Mapping[str, pa.Array[Any]], without: Collection[int] = ()
    ) -> tuple[list[bytes | None], dict[int, str]]:
        """Encode rows.

        Args:
            columns: A column of its Arrow type for each field of the schema, all of one length.
            without: Numbers of rows that are not encoded.

        Returns:
            The values, None where there is none, and by its number why a row has none.
        """
        fields = self.schema.record.fields
        lists = [_written(columns[name], of).to_pylist(maps_as_pydicts="strict") for name, of in fields]
        names = [name for name, _ in fields]
        reasons = {
            row: f"field {name} is NULL, and no union with null"
            for name, of in reversed(fields)
            if not of.nullable and columns[name].null_count
            for row in map(int, pc.indices_nonzero(pc.is_null(columns[name])).to_numpy())
            if row not in without
        }
        # fastavro writes a NULL as FALSE.
        is_validated = any(_has_nulls_within(columns[name], of) for name, of in fields)
        with optional_packages():
            from fastavro import schemaless_writer
            from fastavro.validation import validate

        schema, start, stream = self._written_schema, header(self.schema_id), BytesIO()
        values: list[bytes | None] = []
        for number, row in enumerate(zip(*lists, strict=True)):
            if number in without or number in reasons:
                values.append(None)
                continue
            record = dict(zip(names, row, strict=True))
            stream.seek(0)
            stream.truncate()
            stream.write(start)
            try:
                if is_validated:
                    validate(record, schema)
                schemaless_writer(stream, schema, record)
            except Exception as e:
                values.append(None)
                said = " ".join(str(e).split())[:200] or type(e).__name__
                reasons[number] = f"it cannot be written by its Avro schema: {said}"
                continue
            values.append(stream.getvalue())
        return values, reasons

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
