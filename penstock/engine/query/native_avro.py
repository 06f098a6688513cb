"""Avro in Spark, natively: decoded by schemas that are known when a query starts, and encoded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    FractionalType,
    MapType,
    NumericType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.codec.avro import VALID, with_types, without_logical_type
from penstock.errors import DeclarationError
from penstock.model.avro import LOGICAL, MAX_DIGITS
from penstock.model.types import quoted
from penstock.registry import client, wire_format
from penstock.registry.wire_format import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame

    from penstock.codec.avro import AvroValues
    from penstock.model.avro import Avro, AvroType
    from penstock.model.output import TopicOutput


def decoded_avro(values: AvroValues, value: str = "value") -> Column:
    """STRUCT of the schema's fields and VALID: the record of a value, if it is Avro of a known schema.

    The result for any other value is a struct of NULLs or NULL. Decimals have 38 digits, whatever the schema says:
    Spark reads those of up to 18 digits as 64 bits, and drops further bits without an error. `AvroDecoder` checks
    whether they fit the schema.

    Args:
        values: How values are decoded.
        value: The column, BINARY.
    """
    schema = values.schema
    # What Spark returns for bytes that are no record is a record of NULLs: a field that no writer has tells them apart.
    reader = _read_by_spark(schema.text, _with_more_digits)
    reader["fields"].append({"name": VALID, "type": "boolean", "default": True})
    options = {"mode": "PERMISSIVE", "avroSchema": json.dumps(reader)}
    ddl = ", ".join(f"{quoted(name)}: {of.type.ddl}" for name, of in _with_all_digits(schema.record).fields)
    header, record = F.substring(value, 1, HEADER_BYTES), F.expr(f"substring({value}, {HEADER_BYTES + 1})")
    result = F.lit(None).cast(f"STRUCT<{ddl}, {VALID}: BOOLEAN>")
    for number, text in values.known:
        decoded = from_avro(record, text, options).cast(f"STRUCT<{ddl}, {VALID}: BOOLEAN>")
        result = F.when(header == F.lit(wire_format.header(number)), decoded).otherwise(result)
    return result


def avro_columns(rows: DataFrame, output: TopicOutput, schema: Avro, masked: Mapping[str, Column]) -> list[Column]:
    """The columns of an output whose values are Avro: `key` and `value`.

    The schema is registered at the release; here its id is looked up.

    Args:
        rows: The transform's rows.
        output: The output.
        schema: The schema of its values.
        masked: The expressions of its masked columns, by name in lower case.

    Raises:
        DeclarationError: A column cannot be written as its field without a change of its values.
        SchemaNotRegistered: It is not registered.
        RegistryError: The registry does not answer.
    """
    key, _ = output.columns(masked)
    columns = (masked.get(name.lower(), F.col(quoted(name))).alias(name) for name, _ in schema.record.fields)
    record = F.struct(*columns)
    (have,) = rows.select(record).schema
    record = record.cast(_written_type(have.dataType, schema.record, f"topic {output.topic.name}"))
    number = client.registered_id(schema.subject_of(output.topic.name), schema.text, schema.kind)
    header = F.lit(wire_format.header(number))
    written = json.dumps(_read_by_spark(schema.text))
    return [key, F.concat(header, to_avro(record, written)).alias("value")]


def _written_type(have: DataType, of: AvroType, where: str) -> str:
    """The DDL that values are cast to. A cast takes the fields of a struct by position, and Spark's Avro by name."""
    if isinstance(have, StructType) and of.name == "record":
        types = {name.lower(): (name, inner) for name, inner in of.fields}
        if sorted(types) != sorted(name.lower() for name in have.names):
            names = ", ".join(name for name, _ in of.fields)
            raise _no_fit(where, ", ".join(have.names), f"return a struct with the fields {names}")
        fields = ((*types[field.name.lower()], field.dataType) for field in have)
        inner = (f"{quoted(name)}: {_written_type(kind, one, f'{where}, {name}')}" for name, one, kind in fields)
        return f"STRUCT<{', '.join(inner)}>"
    if isinstance(have, ArrayType) and of.name == "array" and of.element:
        return f"ARRAY<{_written_type(have.elementType, of.element, where)}>"
    if isinstance(have, MapType) and of.name == "map" and of.element:
        return f"MAP<STRING, {_written_type(have.valueType, of.element, where)}>"
    kind = of.type.kind
    is_number, is_time = isinstance(have, NumericType), isinstance(have, DateType | TimestampType | TimestampNTZType)
    if (
        (isinstance(have, FractionalType) and kind in ("int", "bigint"))
        or (is_time and kind not in ("date", "timestamp", "string"))
        or (is_number and kind in ("date", "timestamp", "boolean"))
        or isinstance(have, ArrayType | MapType | StructType)
    ):
        hint = "convert it in the transform, such as with cast, round, unix_millis or timestamp_millis"
        raise _no_fit(where, f"{have.simpleString()} for {of.type}", hint)
    return of.type.ddl


def _no_fit(where: str, got: str, hint: str) -> DeclarationError:
    return DeclarationError(f"a column cannot be written as its Avro field: {where}", got=got, hint=hint)


def _read_by_spark(text: str, change: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Any:
    """A schema as JSON without the logical types that are not read, as Spark has types of its own for some of them."""

    def one(node: dict[str, Any]) -> dict[str, Any]:
        is_read = (str(node.get("type")), node.get("logicalType")) in LOGICAL
        return change(node if is_read else without_logical_type(node))

    return with_types(json.loads(text), one)


def _with_more_digits(node: dict[str, Any]) -> dict[str, Any]:
    """An object of a schema; if it is a decimal, with as many digits as can be read."""
    if node.get("logicalType") != "decimal":
        return node
    # A `fixed` cannot have more than its bytes hold.
    digits = len(str(2 ** (8 * node["size"] - 1) - 1)) - 1 if "size" in node else MAX_DIGITS
    return {**node, "precision": min(MAX_DIGITS, digits)}


def _with_all_digits(of: AvroType) -> AvroType:
    """A type with the most digits in all its decimals."""
    fields = tuple((name, _with_all_digits(inner)) for name, inner in of.fields)
    element = _with_all_digits(of.element) if of.element else None
    return replace(of, fields=fields, element=element, precision=MAX_DIGITS if of.precision else 0)
