"""Decodes Avro in the wire format of a schema registry to Arrow, as a topic's schema reads it.

It runs wherever records are decoded, also without Spark. Spark decodes most records natively
(`penstock.engine.query.native_avro`), and leaves those whose schema is newer than the query, and broken ones.

Records are resolved by fastavro without logical types, as the specification wants it, and become columns; the logical
types are then those of the schema that reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_types import arrow_type
from penstock.errors import UnknownSchema, optional_packages
from penstock.model.avro import LOGICAL, Avro, AvroType
from penstock.registry import client
from penstock.registry.endpoint import RegistryEndpoint
from penstock.registry.wire_format import HEADER_BYTES, schema_id

# Of the logical types that change a type.
RAW_TYPES = {"timestamp": pa.int64(), "date": pa.int32(), "decimal": pa.binary()}
EXACT = Context(prec=76)
# A field of records that Spark has decoded, TRUE; it is NULL in what it returns for others.
VALID = "_valid"


@dataclass(frozen=True)
class AvroValues:
    """What the decoder of a topic's values is told; it is sent to Spark's workers.

    Attributes:
        schema: The schema that reads.
        known: Schemas of writers that need not be looked up: id and text.
        endpoint: The registry that has any other; None for that of this process's settings, which workers of a cluster
            do not have.
        has_decoded: Whether a column `decoded` has the records that are decoded already, with VALID.
    """

    schema: Avro
    known: tuple[tuple[int, str], ...] = ()
    endpoint: RegistryEndpoint | None = None
    has_decoded: bool = False


class AvroDecoder:
    """Decodes the values of a topic. Schemas that are not known are taken from the registry, once."""

    def __init__(self, values: AvroValues) -> None:
        self._schema, self._record = values.schema, values.schema.record
        self._known, self._has_decoded, self._endpoint = dict(values.known), values.has_decoded, values.endpoint
        self._readers: dict[int, tuple[Any, Any]] = {}

    def decode_table(self, table: pa.Table) -> tuple[pa.Array[Any], pa.Array[Any]]:
        """As `decode`, of the column `value` where the column `decoded` has nothing yet."""
        values = _one_array(table["value"])
        if not self._has_decoded:
            return self.decode(values)
        decoded: Any = _one_array(table["decoded"])
        record_type: Any = arrow_type(self._record.type)
        is_valid = pc.fill_null(pc.struct_field(decoded, VALID), False)
        fields: list[Any] = list(decoded.type)[:-1]
        typed: Any = pa.StructArray.from_arrays(decoded.flatten()[:-1], fields=fields, mask=pc.invert(is_valid))
        try:
            # Spark's decimals have more digits than the schema's, and Java takes texts that are no UTF-8.
            typed = typed.cast(record_type)
            typed.validate(full=True)
        except pa.ArrowInvalid:
            return self.decode(values)
        if pc.all(is_valid).as_py():
            return typed, pa.nulls(len(typed), pa.string())
        others, errors = self.decode(pc.if_else(is_valid, pa.scalar(None, pa.binary()), values))
        return pc.coalesce(typed, others), errors

    def decode(self, values: pa.Array[Any]) -> tuple[pa.Array[Any], pa.Array[Any]]:
        """Decode values.

        Args:
            values: BINARY, the values of records; NULL is none.

        Returns:
            The records, a STRUCT of the schema's fields, and for each that could not be decoded the reason. Where a
            value is NULL both are.
        """
        headers = pc.binary_slice(values, 0, HEADER_BYTES).dictionary_encode()
        record = self._record
        rows: list[Any] = [None] * len(values)
        reasons: list[str | None] = [None] * len(values)
        distinct: list[Any] = headers.dictionary.to_pylist()
        decoders = [self._reader(header) for header in distinct]
        records: list[Any] = values.to_pylist()
        for row, (value, number) in enumerate(zip(records, headers.indices.to_pylist(), strict=True)):
            if number is None:
                continue
            decoder = decoders[number]
            if isinstance(decoder, str):
                reasons[row] = decoder
                continue
            stream = BytesIO(value)
            stream.seek(HEADER_BYTES)
            try:
                rows[row] = decoder(stream)
            except Exception as e:
                reasons[row] = _reason(value, e)
        try:
            return _typed(pa.array(rows, _raw_type(record)), record), pa.array(reasons, pa.string())
        except (pa.ArrowInvalid, ValueError, OverflowError):
            return self._one_by_one(values, rows, reasons)

    def _one_by_one(
        self, values: pa.Array[Any], rows: list[Any], reasons: list[str | None]
    ) -> tuple[pa.Array[Any], pa.Array[Any]]:
        """The records of a batch of which some have values outside of their type."""
        record = self._record
        parts: list[pa.Array[Any]] = []
        none: Any = arrow_type(record.type)
        for number, row in enumerate(rows):
            try:
                parts.append(_typed(pa.array([row], _raw_type(record)), record))
            except (pa.ArrowInvalid, ValueError, OverflowError) as e:
                parts.append(pa.nulls(1, none))
                reasons[number] = _reason(values[number].as_py(), e)
        return pa.concat_arrays(parts), pa.array(reasons, pa.string())

    def _reader(self, header: bytes) -> Callable[[BytesIO], Any] | str:
        """What reads the records that begin with a header; or why none can be read."""
        number = schema_id(header)
        if number is None:
            got = f"it begins with 0x{header.hex()}" if header else "it is empty"
            return f"not in the wire format of a schema registry: {got}"
        written: dict[str, Any] = {}
        with optional_packages():
            from fastavro import schemaless_reader
            from fastavro.schema import SchemaParseException, UnknownType, parse_schema
        if number not in self._readers:
            try:
                text = self._known.get(number) or client.schema_text(number, self._endpoint)
            except UnknownSchema:
                return f"schema id {number} is not in the registry"
            try:
                writer = parse_schema(_without_logical_types(json.loads(text)), written)
            except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError) as e:
                return f"schema id {number} is no Avro schema: {e}"
            self._readers[number] = writer, _reader_schema(self._schema.text, written)
        writer, reader = self._readers[number]
        return lambda stream: schemaless_reader(stream, writer, reader)


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


def _one_array(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
