"""Rows as Protobuf, encoded by Spark's Python workers in Arrow batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from penstock.codec.protobuf_encoder import message_encoder

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock.model.protobuf import Protobuf


def protobuf_value(record: Column, schema: Protobuf) -> Column:
    """BINARY: the record as Protobuf, NULL of NULL.

    A batch fails whose row has a NULL in a field that every message has, or an enum's value that is none.

    Args:
        record: STRUCT of the schema's fields.
        schema: The schema.
    """

    # Spark evaluates the hints, and Arrow's classes have no parameters at run time.
    def encode(records: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        return message_encoder(schema).encode(records)  # type: ignore[no-any-return]

    # Its type wants another argument, which makes it warn.
    arrow_udf: Any = F.arrow_udf
    encoded: Column = arrow_udf(encode, "binary")(record)
    return encoded
