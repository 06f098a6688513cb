"""Avro in Spark, natively: decoded by schemas that are known when a query starts, and encoded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.avro.functions import from_avro, to_avro

from penstock.codec.avro import HEADER_BYTES, MAGIC, VALID
from penstock.model.types import quoted
from penstock.registry import client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

    from penstock.codec.avro import AvroValues
    from penstock.model.avro import Avro
    from penstock.model.output import TopicOutput


def decoded_avro(values: AvroValues, value: str = "value") -> Column:
    """STRUCT of the schema's fields and VALID: the record of a value, if it is Avro of a known schema.

    The result for any other value is a struct of NULLs or NULL.

    Args:
        values: How values are decoded.
        value: The column, BINARY.
    """
    schema = values.schema
    # What Spark returns for bytes that are no record is a record of NULLs: a field that no writer has tells them apart.
    reader = json.loads(schema.text)
    reader["fields"].append({"name": VALID, "type": "boolean", "default": True})
    options = {"mode": "PERMISSIVE", "avroSchema": json.dumps(reader)}
    ddl = ", ".join(f"{quoted(name)}: {of.type.ddl}" for name, of in schema.record.fields)
    header, record = F.substring(value, 1, HEADER_BYTES), F.expr(f"substring({value}, {HEADER_BYTES + 1})")
    result = F.lit(None).cast(f"STRUCT<{ddl}, {VALID}: BOOLEAN>")
    for number, text in values.known:
        decoded = from_avro(record, text, options).cast(f"STRUCT<{ddl}, {VALID}: BOOLEAN>")
        result = F.when(header == F.lit(MAGIC + number.to_bytes(HEADER_BYTES - 1)), decoded).otherwise(result)
    return result


def avro_columns(output: TopicOutput, schema: Avro, masked: Mapping[str, Column]) -> list[Column]:
    """The columns of an output whose values are Avro: `key` and `value`.

    The schema is registered at the release; here its id is looked up.

    Args:
        output: The output.
        schema: The schema of its values.
        masked: The expressions of its masked columns, by name in lower case.

    Raises:
        SchemaNotRegistered: It is not registered.
        RegistryError: The registry does not answer.
    """
    key, _ = output.columns(masked)
    names = [name for name, _ in schema.record.fields]
    types = ", ".join(f"{quoted(name)}: {of.type.ddl}" for name, of in schema.record.fields)
    record = F.struct(*(masked.get(name.lower(), F.col(quoted(name))).alias(name) for name in names)).cast(
        f"STRUCT<{types}>"
    )
    number = client.registered_id(schema.subject_of(output.topic.name), schema.text, schema.kind)
    header = F.lit(MAGIC + number.to_bytes(HEADER_BYTES - 1))
    return [key, F.concat(header, to_avro(record, schema.text)).alias("value")]
