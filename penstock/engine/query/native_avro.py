"""Avro in Spark, natively: decoded by schemas that are known when a query starts, and encoded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.avro.functions import from_avro, to_avro

from penstock.codec.avro import VALID, with_types, without_logical_type
from penstock.model.avro import LOGICAL, MAX_DIGITS, Avro
from penstock.model.types import quoted
from penstock.registry import wire_format
from penstock.registry.wire_format import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

    from penstock.codec.registry_values import RegistryValues
    from penstock.model.avro import AvroType


def decoded_avro(values: RegistryValues, value: str = "value") -> Column:
    """STRUCT of the schema's fields and VALID: the record of a value, if it is Avro of a known schema.

    The result for any other value is a struct of NULLs or NULL. Decimals have 38 digits, whatever the schema says:
    Spark reads those of up to 18 digits as 64 bits, and drops further bits without an error. `AvroDecoder` checks
    whether they fit the schema.

    Args:
        values: How values are decoded.
        value: The column, BINARY.
    """
    schema = values.schema
    assert isinstance(schema, Avro)
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


def avro_value(record: Column, schema: Avro) -> Column:
    """BINARY: the record as Avro. A batch fails whose row has a NULL in a field that is no union with null.

    Args:
        record: STRUCT of the schema's fields.
        schema: The schema.
    """
    return to_avro(record, json.dumps(_read_by_spark(schema.text)))


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
