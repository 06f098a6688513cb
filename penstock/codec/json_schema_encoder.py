"""Encodes records in Arrow to JSON of a JSON Schema in the wire format of a schema registry, without Spark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.registry_values import ValueEncoder
from penstock.model.json_schema import JsonProperty, JsonSchema, JsonType
from penstock.registry.wire_format import header


@dataclass(frozen=True)
class JsonSchemaEncoder(ValueEncoder[JsonSchema]):
    """Encodes the values of a topic. A NULL is left out, or written as null if the property is required."""

    def encode_records(self, records: Any) -> list[bytes]:
        start, properties = header(self.schema_id), self.schema.record.properties
        # An array of structs is slower to read than its columns.
        columns = [_with_times_as_text(column).to_pylist(maps_as_pydicts="strict") for column in records.flatten()]
        names = [one.name for one in properties]
        rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        return [start + orjson.dumps(_object(row, properties, "")) for row in rows]


def _with_times_as_text(values: Any) -> Any:
    """An Arrow array with its times, at any depth, in RFC 3339: Python's datetimes would take longer than all else."""
    if pa.types.is_timestamp(values.type):
        return pc.strftime(values, format="%Y-%m-%dT%H:%M:%SZ")
    if pa.types.is_struct(values.type):
        columns = [_with_times_as_text(values.field(number)) for number in range(values.type.num_fields)]
        return pa.StructArray.from_arrays(columns, [field.name for field in values.type], mask=values.is_null())
    if pa.types.is_map(values.type):
        return pa.MapArray.from_arrays(
            values.offsets, values.keys, _with_times_as_text(values.items), mask=values.is_null()
        )
    if pa.types.is_list(values.type):
        return pa.ListArray.from_arrays(values.offsets, _with_times_as_text(values.values), mask=values.is_null())
    return values


def _object(values: Mapping[str, Any], properties: Sequence[JsonProperty], where: str) -> dict[str, Any]:
    found = dict[str, Any]()
    for one in properties:
        value = values[one.name]
        if value is not None or one.required:
            found[one.name] = _plain(value, one.of, f"{where}{one.name}")
    return found


def _plain(value: Any, of: JsonType, where: str) -> Any:
    """A value as orjson takes it.

    Raises:
        ValueError: Its type in the schema does not have it.
    """
    if value is None:
        if not of.nullable:
            raise ValueError(f"field {where} is NULL, which its JSON Schema does not allow")
        return None
    if of.element:
        if of.kind == "map":
            return {key: _plain(one, of.element, f"{where}[]") for key, one in value.items()}
        return [_plain(one, of.element, f"{where}[]") for one in value]
    if of.properties:
        return _object(value, of.properties, f"{where}.")
    if of.kind == "double" and not math.isfinite(value):
        raise ValueError(f"field {where} is no finite number, which JSON does not have")
    return value
