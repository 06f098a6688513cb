"""Records that one version of a schema wrote and another reads."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO, StringIO
from typing import Any, NamedTuple

from fastavro import json_reader, parse_schema, schemaless_writer


class AvroCase(NamedTuple):
    """The fields of the writer and of the reader, a record as Avro's JSON, and the values that are read."""

    writer: list[Any]
    reader: list[Any]
    written: str
    read: dict[str, Any]


def field(name: str, of: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": of, **more}


def logical(of: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": of, "logicalType": name, **more}


def optional(of: Any) -> list[Any]:
    return ["null", of]


def record(name: str, *fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


A, B = field("a", "int"), field("b", "string")
OPTIONAL_B = field("b", optional("string"), default=None)
TWO_BYTES = {"type": "fixed", "name": "F", "size": 2}
ENUM = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}
WIDE_ENUM = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE", "GREEN"]}
DECIMAL = logical("bytes", "decimal", precision=20, scale=3)
FIXED = {"type": "fixed", "name": "Money", "size": 8, "logicalType": "decimal", "precision": 12, "scale": 2}
AT = datetime(2026, 2, 3, 4, 5, 6, 789000, UTC)
AT_MS = int(AT.timestamp() * 1000)

CASES = {
    "the same": AvroCase([A, B], [A, B], '{"a": 1, "b": "x"}', {"a": 1, "b": "x"}),
    "added with a default": AvroCase([A], [A, field("b", "string", default="none")], '{"a": 1}', {"a": 1, "b": "none"}),
    "added as optional": AvroCase(
        [A], [A, field("b", optional("long"), default=None)], '{"a": 1}', {"a": 1, "b": None}
    ),
    "removed": AvroCase([A, B], [A], '{"a": 1, "b": "x"}', {"a": 1}),
    "in another order": AvroCase([A, B], [B, A], '{"a": 1, "b": "x"}', {"a": 1, "b": "x"}),
    "renamed with an alias": AvroCase([A], [field("count", "int", aliases=["a"])], '{"a": 7}', {"count": 7}),
    "promoted: int to long": AvroCase([A], [field("a", "long")], '{"a": 1}', {"a": 1}),
    "promoted: int to double": AvroCase([A], [field("a", "double")], '{"a": 1}', {"a": 1.0}),
    "promoted: long to float": AvroCase([field("a", "long")], [field("a", "float")], '{"a": 3}', {"a": 3.0}),
    "promoted: string to bytes": AvroCase([B], [field("b", "bytes")], '{"b": "x"}', {"b": b"x"}),
    "promoted: bytes to string": AvroCase([field("b", "bytes")], [B], '{"b": "x"}', {"b": "x"}),
    "union: value to optional": AvroCase([A], [field("a", optional("int"))], '{"a": 1}', {"a": 1}),
    "union: optional to value": AvroCase([field("a", optional("int"))], [A], '{"a": {"int": 1}}', {"a": 1}),
    "union: null": AvroCase([field("a", optional("int"))], [field("a", optional("long"))], '{"a": null}', {"a": None}),
    "union: int and long": AvroCase(
        [field("a", ["int", "long"])], [field("a", ["int", "long"])], '{"a": {"int": 1}}', {"a": 1}
    ),
    "union: more types to one": AvroCase(
        [field("a", ["null", "string", "int"])], [field("a", optional("string"))], '{"a": {"string": "x"}}', {"a": "x"}
    ),
    "nested: field added": AvroCase(
        [field("n", record("N", A))],
        [field("n", record("N", A, field("c", "boolean", default=True)))],
        '{"n": {"a": 1}}',
        {"n": {"a": 1, "c": True}},
    ),
    "nested: optional record": AvroCase(
        [field("n", optional(record("N", A)))], [field("n", optional(record("N", A)))], '{"n": null}', {"n": None}
    ),
    "nested: record named twice": AvroCase(
        [field("n", record("N", A)), field("m", "N")], [field("n", record("N", A)), field("m", "N")],
        '{"n": {"a": 1}, "m": {"a": 2}}', {"n": {"a": 1}, "m": {"a": 2}},
    ),
    "array of records": AvroCase(
        [field("l", {"type": "array", "items": record("I", A)})],
        [field("l", {"type": "array", "items": record("I", field("a", "long"), OPTIONAL_B)})],
        '{"l": [{"a": 1}, {"a": 2}]}',
        {"l": [{"a": 1, "b": None}, {"a": 2, "b": None}]},
    ),
    "map of optional": AvroCase(
        [field("m", {"type": "map", "values": optional("long")})],
        [field("m", {"type": "map", "values": optional("long")})],
        '{"m": {"k": {"long": 5}, "l": null}}',
        {"m": {"k": 5, "l": None}},
    ),
    "default of a nested type": AvroCase(
        [A], [A, field("l", {"type": "array", "items": "string"}, default=["x"])], '{"a": 1}', {"a": 1, "l": ["x"]}
    ),
    "enum": AvroCase([field("e", ENUM)], [field("e", ENUM)], '{"e": "BLUE"}', {"e": "BLUE"}),
    "enum: symbol added": AvroCase([field("e", ENUM)], [field("e", WIDE_ENUM)], '{"e": "RED"}', {"e": "RED"}),
    "enum: symbol removed, with a default": AvroCase(
        [field("e", WIDE_ENUM)], [field("e", {**ENUM, "default": "RED"})], '{"e": "GREEN"}', {"e": "RED"}
    ),
    "fixed": AvroCase(
        [field("f", TWO_BYTES)], [field("f", TWO_BYTES)], '{"f": "ab"}', {"f": b"ab"},
    ),
    "decimal": AvroCase(
        [field("d", DECIMAL)], [field("d", DECIMAL)], '{"d": "\\u00fe\\u001d\\u00c0"}', {"d": Decimal("-123.456")}
    ),
    "decimal, fixed": AvroCase(
        [field("d", FIXED)], [field("d", FIXED)], '{"d": "\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000\\u0001\\u0002"}',
        {"d": Decimal("2.58")},
    ),
    "timestamp-millis": AvroCase(
        [field("t", logical("long", "timestamp-millis"))], [field("t", logical("long", "timestamp-millis"))],
        f'{{"t": {AT_MS}}}', {"t": AT},
    ),
    "timestamp-micros": AvroCase(
        [field("t", logical("long", "timestamp-micros"))], [field("t", optional(logical("long", "timestamp-micros")))],
        f'{{"t": {AT_MS * 1000}}}', {"t": AT},
    ),
    "timestamp: logical type added": AvroCase(
        [field("t", "long")], [field("t", logical("long", "timestamp-millis"))], f'{{"t": {AT_MS}}}', {"t": AT}
    ),
    "timestamps in an array": AvroCase(
        [field("l", {"type": "array", "items": optional(logical("long", "timestamp-millis"))})],
        [field("l", {"type": "array", "items": optional(logical("long", "timestamp-millis"))})],
        f'{{"l": [{{"long": {AT_MS}}}, null]}}', {"l": [AT, None]},
    ),
    "date": AvroCase(
        [field("d", logical("int", "date"))], [field("d", logical("int", "date"))], '{"d": 20454}',
        {"d": date(2026, 1, 1)},
    ),
    "time-millis is a number": AvroCase(
        [field("t", logical("int", "time-millis"))], [field("t", logical("int", "time-millis"))], '{"t": 1000}',
        {"t": 1000},
    ),
    "uuid": AvroCase(
        [field("u", logical("string", "uuid"))], [field("u", logical("string", "uuid"))],
        '{"u": "0b21c2c4-5d0f-4e0c-8f4e-111213141516"}', {"u": "0b21c2c4-5d0f-4e0c-8f4e-111213141516"},
    ),
    "logical types that are not read": AvroCase(
        [field("t", logical("long", "time-micros")), field("l", logical("long", "local-timestamp-micros"))],
        [field("t", logical("long", "time-micros")), field("l", logical("long", "local-timestamp-micros"))],
        '{"t": 1500, "l": 7}', {"t": 1500, "l": 7},
    ),
    "defaults of bytes and decimal": AvroCase(
        [A],
        [A, field("y", "bytes", default="\u00ff"), field("f", TWO_BYTES, default="\u00ff\u0001"),
         field("g", "F", default="\u00fe\u00ff"), field("d", optional(DECIMAL), default=None),
         field("e", [DECIMAL, "null"], default="\u00ff")],
        '{"a": 1}',
        {"a": 1, "y": b"\xff", "f": b"\xff\x01", "g": b"\xfe\xff", "d": None, "e": Decimal("-0.001")},
    ),
    "default of a record without all fields": AvroCase(
        [A], [A, field("n", record("N", A, field("b", "string", default="x")), default={"a": 2})],
        '{"a": 1}', {"a": 1, "n": {"a": 2, "b": "x"}},
    ),
    "record of another name": AvroCase(
        [field("n", optional(record("M", A)))], [field("n", optional(record("N", A)))],
        '{"n": {"M": {"a": 1}}}', {"n": {"a": 1}},
    ),
    "all plain types": AvroCase(
        [field("z", "boolean"), field("f", "float"), field("d", "double"), field("y", "bytes")],
        [field("z", "boolean"), field("f", "float"), field("d", "double"), field("y", "bytes")],
        '{"z": true, "f": 1.5, "d": -2.25, "y": "\\u0000\\u00ff"}', {"z": True, "f": 1.5, "d": -2.25, "y": b"\x00\xff"},
    ),
}  # fmt: skip


def schema_text(fields: list[Any]) -> str:
    return json.dumps(record("R", *fields))


def python_bytes(case: AvroCase) -> bytes:
    """The record as fastavro, Confluent's serialiser for Python, writes it, without the header."""
    schema = parse_schema(json.loads(schema_text(case.writer)))
    (value,) = json_reader(StringIO(case.written), schema)
    return record_bytes(case.writer, value)


def record_bytes(fields: list[Any], values: Any) -> bytes:
    """A record as Avro, without the header. Times and dates may be numbers."""
    stream = BytesIO()
    schemaless_writer(stream, parse_schema(json.loads(schema_text(fields))), values)
    return stream.getvalue()
