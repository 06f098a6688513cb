"""Rows as values in the wire format of a schema registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    FractionalType,
    MapType,
    NumericType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.engine.query.native_avro import avro_value
from penstock.engine.query.native_json_schema import json_value
from penstock.engine.query.protobuf_udf import protobuf_value
from penstock.errors import DeclarationError
from penstock.model.types import Type, quoted
from penstock.registry import client, wire_format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from penstock.model.output import TopicOutput
    from penstock.model.registry_schema import RegistrySchema

# By the format: what makes BINARY, without the header, of the STRUCT of a schema's fields.
ENCODERS: dict[str, Callable[[Column, Any], Column]] = {
    "AVRO": avro_value,
    "JSON": json_value,
    "PROTOBUF": protobuf_value,
}
# Of these, the formats that Spark's Python workers encode.
IN_WORKERS = {"PROTOBUF"}


def written_columns(
    rows: DataFrame,
    output: TopicOutput,
    schema: RegistrySchema,
    masked: Mapping[str, Column],
    is_own: Column | None = None,
) -> list[Column]:
    """The columns of an output to a topic of a schema registry: `key` and `value`.

    The schema is registered at the release; here its id is looked up.

    Args:
        rows: The transform's rows.
        output: The output.
        schema: The schema of its values.
        masked: The expressions of its masked columns, by name in lower case.
        is_own: Whether a row is of this output; None if all are. Spark's workers also get the others.

    Raises:
        DeclarationError: A column cannot be written as its field without a change of its values.
        SchemaNotRegistered: It is not registered.
        RegistryError: The registry does not answer.
    """
    key, _ = output.columns(masked)
    record = _record(rows, output, schema, masked)
    if is_own is not None and schema.kind in IN_WORKERS:
        record = F.when(is_own, record)
    number = client.registered_id(schema.subject_of(output.topic.name), schema.text, schema.kind)
    header = F.lit(wire_format.header(number))
    return [key, F.concat(header, ENCODERS[schema.kind](record, schema)).alias("value")]


def readable_columns(
    rows: DataFrame, output: TopicOutput, schema: RegistrySchema, masked: Mapping[str, Column]
) -> list[Column]:
    """As `written_columns`, with the same values as plain JSON, for people; no registry is asked."""
    key, _ = output.columns(masked)
    record = _record(rows, output, schema, masked)
    fields = {field.name.lower(): record.getField(field.name) for field in schema.fields}
    _, value = replace(output, topic=replace(output.topic, schema="")).columns({**masked, **fields})
    return [key, value]


def _record(rows: DataFrame, output: TopicOutput, schema: RegistrySchema, masked: Mapping[str, Column]) -> Column:
    """A struct of the fields of a schema, with their types."""
    fields = schema.fields
    record = F.struct(*(masked.get(f.name.lower(), F.col(quoted(f.name))).alias(f.name) for f in fields))
    (have,) = rows.select(record).schema
    return record.cast(_written_type(have.dataType, Type("struct", fields=fields), f"topic {output.topic.name}"))


def _written_type(have: DataType, of: Type, where: str) -> str:
    """The DDL that values are cast to. A cast takes the fields of a struct by position, and formats by name."""
    if isinstance(have, StructType) and of.kind == "struct":
        types = {f.name.lower(): f for f in of.fields}
        if sorted(types) != sorted(name.lower() for name in have.names):
            names = ", ".join(f.name for f in of.fields)
            raise _no_fit(where, ", ".join(have.names), f"return a struct with the fields {names}")
        pairs = ((types[field.name.lower()], field.dataType) for field in have)
        inner = (f"{quoted(f.name)}: {_written_type(kind, f.type, f'{where}, {f.name}')}" for f, kind in pairs)
        return f"STRUCT<{', '.join(inner)}>"
    if isinstance(have, ArrayType) and of.kind == "array" and of.element:
        return f"ARRAY<{_written_type(have.elementType, of.element, where)}>"
    if isinstance(have, MapType) and of.kind == "map" and of.element:
        return f"MAP<STRING, {_written_type(have.valueType, of.element, where)}>"
    is_number, is_time = isinstance(have, NumericType), isinstance(have, DateType | TimestampType | TimestampNTZType)
    if (
        (isinstance(have, FractionalType) and of.kind in ("int", "bigint"))
        or (is_time and of.kind not in ("date", "timestamp", "string"))
        or (is_number and of.kind in ("date", "timestamp", "boolean"))
        # A cast does not look whether the bytes are a text.
        or (isinstance(have, BinaryType) and of.kind == "string")
        or isinstance(have, ArrayType | MapType | StructType)
    ):
        hint = "convert it in the transform, such as with cast, round, base64, unix_millis or timestamp_millis"
        raise _no_fit(where, f"{have.simpleString()} for {of}", hint)
    return of.ddl


def _no_fit(where: str, got: str, hint: str) -> DeclarationError:
    return DeclarationError(f"a column cannot be written as its field: {where}", got=got, hint=hint)
