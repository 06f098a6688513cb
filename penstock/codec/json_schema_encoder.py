"""Encodes records in Arrow to JSON of a JSON Schema in the wire format of a schema registry, without Spark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import orjson

from penstock.codec.registry_values import ValueEncoder
from penstock.model.json_schema import JsonProperty, JsonSchema, JsonType
from penstock.registry.wire_format import header


@dataclass(frozen=True)
class JsonSchemaEncoder(ValueEncoder[JsonSchema]):
    """Encodes the values of a topic. A NULL is left out, or written as null if the property is required."""

    def encode_records(self, records: Any) -> list[bytes]:
        start, properties = header(self.schema_id), self.schema.record.properties
        rows = records.to_pylist(maps_as_pydicts="strict")
        return [start + orjson.dumps(_object(row, properties, "")) for row in rows]


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
    if of.kind == "timestamp":
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value
