"""Decodes Avro in the wire format of a schema registry to Arrow, as a topic's schema reads it.

It runs wherever records are decoded, also without Spark. Spark decodes most records natively
(`penstock.engine.query.native_avro`), and leaves those whose schema is newer than the query, and broken ones.

Records are resolved by fastavro without logical types, as the specification wants it, and become columns; the logical
types are then those of the schema that reads.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from decimal import Context, Decimal
from io import BytesIO
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_types import arrow_type
from penstock.codec.registry_values import (
    ERROR,
    PARSED,
    Column,
    RegistryValues,
    ValueDecoder,
    WriterSchemas,
    check_times,
    headers_of,
    one_array,
)
from penstock.errors import optional_packages
from penstock.model.avro import LOGICAL, Avro, AvroType
from penstock.registry.wire_format import HEADER_BYTES, schema_id

# Of the logical types that change a type.
RAW_TYPES = {"timestamp": pa.int64(), "date": pa.int32(), "decimal": pa.binary()}
# JSON has no such numbers; texts by what Python calls them.
NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
EXACT = Context(prec=76)
# A field of records that Spark has decoded, TRUE; it is NULL in what it returns for others.
VALID = "_valid"


class AvroDecoder(ValueDecoder):
    """Decodes by Avro's rules of schema resolution."""

    def __init__(self, values: RegistryValues) -> None:
        assert isinstance(values.schema, Avro)
        self._schema, self._record, self._has_decoded = values.schema, values.schema.record, values.has_decoded
        self._raw_type = _raw_type(self._record)
        self._schemas = WriterSchemas.of_format(values, self._schemas_of)

    def columns(self, table: pa.Table) -> dict[str, Column]:
        parsed, errors = self.decode_table(table)
        return {PARSED: parsed, ERROR: errors}

    def decode_table(self, table: pa.Table) -> tuple[pa.Array[Any], pa.Array[Any]]:
        """As `decode`, of the column `value` where the column `decoded` has nothing yet."""
        values = one_array(table["value"])
        if not self._has_decoded:
            return self.decode(values)
        decoded: Any = one_array(table["decoded"])
        record_type: Any = arrow_type(self._record.type)
        is_valid = pc.fill_null(pc.struct_field(decoded, VALID), False)
        fields: list[Any] = list(decoded.type)[:-1]
        typed: Any = pa.StructArray.from_arrays(decoded.flatten()[:-1], fields=fields, mask=pc.invert(is_valid))
        records = pa.concat_arrays(_cast(typed, record_type))
        if not records.null_count:
            return records, pa.nulls(len(records), pa.string())
        others, errors = self.decode(pc.if_else(pc.is_valid(records), pa.scalar(None, pa.binary()), values))
        return pc.coalesce(records, others), errors

    def decode(self, values: pa.Array[Any]) -> tuple[pa.Array[Any], pa.Array[Any]]:
        """Decode values.

        Args:
            values: BINARY, the values of records; NULL is none.

        Returns:
            The records, a STRUCT of the schema's fields, and for each that could not be decoded the reason. Where a
            value is NULL both are.
        """
        headers, numbers = headers_of(values)
        with optional_packages():
            from fastavro import schemaless_reader as read
        rows: list[Any] = [None] * len(values)
        reasons: list[str | None] = [None] * len(values)
        decoders = [self._schemas.of_header(header) for header in headers]
        records: list[Any] = values.to_pylist()
        for row, (value, number) in enumerate(zip(records, numbers.to_pylist(), strict=True)):
            if number is None:
                continue
            decoder = decoders[number]
            if isinstance(decoder, str):
                reasons[row] = decoder
                continue
            stream = BytesIO(value)
            stream.seek(HEADER_BYTES)
            try:
                rows[row] = read(stream, *decoder)
            except Exception as e:
                reasons[row] = _reason(value, e)
        return pa.concat_arrays(self._records(rows, 0, values, reasons)), pa.array(reasons, pa.string())

    def _records(
        self, rows: list[Any], start: int, values: pa.Array[Any], reasons: list[str | None]
    ) -> list[pa.Array[Any]]:
        """Rows as records; one with a value outside of its type, found by halving, is NULL and has a reason.

        Args:
            rows: Some of the rows that the values are.
            start: The number of the first of them.
            values: All values.
            reasons: The reasons of all values.
        """
        try:
            typed = _typed(pa.array(rows, self._raw_type), self._record)
            check_times(typed, "")
            return [typed]
        except (ValueError, OverflowError) as e:
            if len(rows) == 1:
                reasons[start] = _reason(values[start].as_py(), e)
                none: Any = arrow_type(self._record.type)
                return [pa.nulls(1, none)]
        half = len(rows) // 2
        first = self._records(rows[:half], start, values, reasons)
        return [*first, *self._records(rows[half:], start + half, values, reasons)]

    def _schemas_of(self, text: str) -> tuple[Any, Any]:
        """The schema of a writer, and the one that reads."""
        written: dict[str, Any] = {}
        writer = _parsed(_without_logical_types(json.loads(text)), written)
        return writer, _reader_schema(self._schema.text, written)


class AvroText:
    """Shows values, as their writer wrote them, as JSON.

    Raises:
        ValueError: The text is no Avro schema.
    """

    def __init__(self, text: str) -> None:
        self._schema = _parsed(with_types(json.loads(text), _without_invalid_decimal), {})

    def as_json(self, value: bytes) -> bytes:
        """A value without its header."""
        from fastavro import schemaless_reader

        read = schemaless_reader(BytesIO(value), self._schema, None)
        text = orjson.dumps(read, default=_text)
        # orjson writes NaN as null.
        return orjson.dumps(_with_texts(read), default=_text) if b"null" in text else text


def _parsed(schema: Any, names: dict[str, Any]) -> Any:
    """A schema as fastavro reads it; ValueError if it is none. names: gets its named types."""
    with optional_packages():
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema
    try:
        return parse_schema(schema, names)
    except (SchemaParseException, UnknownType, TypeError, KeyError, AttributeError) as e:
        raise ValueError(e) from e


def _without_invalid_decimal(node: dict[str, Any]) -> dict[str, Any]:
    """An object of a schema; a decimal that is not valid is the bytes that it is written as, as Avro wants it."""
    if node.get("logicalType") != "decimal":
        return node
    digits, scale, size = node.get("precision", 0), node.get("scale", 0), node.get("size", math.inf)
    is_valid = isinstance(digits, int) and isinstance(scale, int) and 0 <= scale <= digits > 0
    # A `fixed` cannot have more digits than its bytes hold.
    is_valid = is_valid and digits <= math.log10(2) * (8 * size - 1)
    return node if is_valid else without_logical_type(node)


def _with_texts(value: Any) -> Any:
    """A value whose numbers that are not finite are texts, as in the JSON of Protobuf."""
    match value:
        case dict():
            return {key: _with_texts(one) for key, one in value.items()}
        case list():
            return [_with_texts(one) for one in value]
        case float() if not math.isfinite(value):
            return NOT_FINITE[str(value)]
    return value


def _text(value: Any) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _reason(value: bytes, error: Exception) -> str:
    said = str(error).splitlines()[0][:200] if str(error) else ""
    return f"not Avro of schema id {schema_id(value)}: {said or type(error).__name__}"


def with_types(node: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A schema as JSON, with every object in it changed, the inner ones first."""
    if isinstance(node, list):
        return [with_types(one, change) for one in node]
    if isinstance(node, dict):
        # A default is a value.
        inner = (
            (name, value if name in ("default", "symbols", "aliases") else with_types(value, change))
            for name, value in node.items()
        )
        return change(dict(inner))
    return node


def without_logical_type(node: dict[str, Any]) -> dict[str, Any]:
    """An object of a schema without its logical type."""
    return {name: value for name, value in node.items() if name != "logicalType" or isinstance(value, dict | list)}


def _without_logical_types(node: Any) -> Any:
    return with_types(node, without_logical_type)


def _reader_schema(text: str, written: dict[str, Any]) -> Any:
    """The schema that reads, as fastavro needs it to resolve what Java does.

    Records match whatever their names are, and the defaults of `bytes` and `fixed` are bytes.

    Args:
        text: The schema.
        written: The named types of the writer's schema.
    """
    from fastavro.schema import parse_schema

    names: dict[str, Any] = {}
    parsed = parse_schema(_without_logical_types(json.loads(text)), names)
    # The outermost record is a copy of the named one.
    for named in (parsed, *names.values()):
        if named["type"] == "record":
            named["aliases"] = [name for name, other in written.items() if other["type"] == "record"]
        for field in named.get("fields", ()):
            if "default" in field:
                field["default"] = _default(field["default"], field["type"], names)
    return parsed


def _default(value: Any, of: Any, names: dict[str, Any]) -> Any:
    """The value of a default of JSON: a character is a byte, and a record may leave out fields with a default."""
    if value is None:
        return None
    if isinstance(of, list):
        return _default(value, next(one for one in of if one != "null"), names)
    if isinstance(of, str):
        of = names.get(of, {"type": of})
    match of["type"]:
        case "bytes" | "fixed" if isinstance(value, str):
            return value.encode("latin-1")
        case "array":
            return [_default(one, of["items"], names) for one in value]
        case "map":
            return {key: _default(one, of["values"], names) for key, one in value.items()}
        case "record":
            fields = ((one["name"], one["type"], one.get("default")) for one in of["fields"])
            return {name: _default(value.get(name, default), inner, names) for name, inner, default in fields}
    return value


def _cast(records: Any, to: Any) -> list[pa.Array[Any]]:
    """Records that Spark has decoded as another type; one that does not fit, found by halving, is NULL.

    Spark's decimals have more digits than the schema's, its times may be of any year, and Java takes texts that are no
    UTF-8.
    """
    try:
        cast = records.cast(to)
        cast.validate(full=True)
        check_times(cast, "")
        return [cast]
    except ValueError:
        if len(records) == 1:
            return [pa.nulls(1, to)]
    half = len(records) // 2
    return [*_cast(records[:half], to), *_cast(records[half:], to)]


def _raw_type(of: AvroType) -> Any:
    """The Arrow type of values without their logical type."""
    if of.logical:
        return RAW_TYPES[LOGICAL[of.name, of.logical]]
    if of.name == "record":
        return pa.struct([(name, _raw_type(inner)) for name, inner in of.fields])
    if of.element:
        element = _raw_type(of.element)
        return pa.list_(pa.field("element", element)) if of.name == "array" else pa.map_(pa.string(), element)
    return arrow_type(of.type)


def _typed(raw: Any, of: AvroType) -> Any:
    """Values with their logical type, an Arrow array.

    Raises:
        ArrowInvalid: A value is outside of its type.
    """
    target: Any = arrow_type(of.type)
    if raw.type == target:
        return raw
    if of.logical == "timestamp-millis":
        return pc.multiply_checked(raw, 1000).cast(target)
    if of.logical == "decimal":
        return pa.array([_decimal(value, of.scale) for value in raw.to_pylist()], target)
    if of.logical:
        return raw.cast(target)
    if of.name == "record":
        columns = [_typed(raw.field(number), inner) for number, (_, inner) in enumerate(of.fields)]
        return pa.StructArray.from_arrays(columns, fields=list(target), mask=raw.is_null())
    assert of.element
    if of.name == "map":
        items = _typed(raw.items, of.element)
        return pa.MapArray.from_arrays(raw.offsets, raw.keys, items, type=target, mask=raw.is_null())
    return pa.ListArray.from_arrays(raw.offsets, _typed(raw.values, of.element), type=target, mask=raw.is_null())


def _decimal(value: bytes | None, scale: int) -> Decimal | None:
    return None if value is None else Decimal(int.from_bytes(value, signed=True)).scaleb(-scale, EXACT)
