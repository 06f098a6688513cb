"""Records that one version of a schema wrote and another reads, of every format of a registry."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.errors import DeclarationError
from penstock.model.avro import Avro
from penstock.model.json_schema import JsonSchema
from penstock.model.protobuf import Protobuf
from penstock.model.registry_schema import RegistrySchema
from penstock.registry.client import WriterSchema
from penstock.registry.wire_format import header
from tests.support import avro_cases, protobuf_cases
from tests.support.decoded_values import WRITER_ID

TEXT, INTEGER = {"type": "string"}, {"type": "integer"}


class EvolutionCase(NamedTuple):
    """A value and what it is read as.

    Attributes:
        writer: The schema that it was written by.
        as_written: The same as a topic declares it; None if it has a type that is not read.
        reader: The schema that reads it.
        written: The value.
        read: Its fields.
    """

    writer: WriterSchema
    as_written: RegistrySchema | None
    reader: RegistrySchema
    written: bytes
    read: dict[str, Any]


def _avro(case: avro_cases.AvroCase) -> EvolutionCase:
    text, declared = avro_cases.schema_text(case.writer), None
    with suppress(DeclarationError):
        declared = Avro(text)
    reader = Avro(avro_cases.schema_text(case.reader))
    value = header(WRITER_ID) + avro_cases.python_bytes(case)
    return EvolutionCase(WriterSchema(text, "AVRO"), declared, reader, value, case.read)


def _protobuf(case: protobuf_cases.ProtobufCase) -> EvolutionCase:
    writer: Protobuf = protobuf_cases.schema(case.writer)
    value = protobuf_cases.value(writer, case.written, WRITER_ID)
    reader = protobuf_cases.schema(case.reader)
    return EvolutionCase(WriterSchema(writer.text, writer.kind), writer, reader, value, case.read)


def _json(
    writer: dict[str, Any], reader: dict[str, Any], written: dict[str, Any], read: dict[str, Any]
) -> EvolutionCase:
    first, second = (JsonSchema(json.dumps({"type": "object", **one})) for one in (writer, reader))
    value = header(WRITER_ID) + json.dumps(written).encode()
    return EvolutionCase(WriterSchema(first.text, first.kind), first, second, value, read)


A, NULLABLE = {"properties": {"a": INTEGER}, "required": ["a"]}, {"type": ["integer", "null"]}
JSON_CASES = {
    "the same": _json(A, A, {"a": 1}, {"a": 1}),
    "added": _json(A, {"properties": {"a": INTEGER, "b": TEXT}}, {"a": 1}, {"a": 1, "b": None}),
    "removed": _json({"properties": {"a": INTEGER, "b": TEXT}}, A, {"a": 1, "b": "x"}, {"a": 1}),
    "promoted: integer to number": _json(A, {"properties": {"a": {"type": "number"}}}, {"a": 3}, {"a": 3.0}),
    "value to nullable": _json(A, {"properties": {"a": NULLABLE}, "required": ["a"]}, {"a": 1}, {"a": 1}),
    "nested: property added": _json(
        {"properties": {"n": {"type": "object", **A}}},
        {"properties": {"n": {"type": "object", "properties": {"a": INTEGER, "c": {"type": "boolean"}}}}},
        {"n": {"a": 1}}, {"n": {"a": 1, "c": None}},
    ),
    "enum: value added": _json(
        {"properties": {"e": {"enum": ["RED"]}}}, {"properties": {"e": {"enum": ["RED", "BLUE"]}}}, {"e": "RED"},
        {"e": "RED"},
    ),
    "format added": _json(
        {"properties": {"t": TEXT}}, {"properties": {"t": {"type": "string", "format": "date-time"}}},
        {"t": "2026-02-03T04:05:06.789Z"}, {"t": avro_cases.AT},
    ),
}  # fmt: skip
CASES = {
    **{f"Avro, {name}": _avro(case) for name, case in avro_cases.CASES.items()},
    **{f"Protobuf, {name}": _protobuf(case) for name, case in protobuf_cases.CASES.items()},
    **{f"JSON Schema, {name}": case for name, case in JSON_CASES.items()},
}


def as_dicts(value: Any) -> Any:
    """A value of Arrow, whose maps are lists of pairs, with dictionaries."""
    if isinstance(value, list):
        is_map = value and isinstance(value[0], tuple)
        return {key: as_dicts(one) for key, one in value} if is_map else [as_dicts(one) for one in value]
    return {name: as_dicts(one) for name, one in value.items()} if isinstance(value, dict) else value
