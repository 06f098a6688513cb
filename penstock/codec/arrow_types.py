"""Types of declared fields in Arrow."""

from __future__ import annotations

import pyarrow as pa

from penstock.model.types import Type

ARROW_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def arrow_type(of: Type) -> pa.DataType:
    """Returns the Arrow type with which Spark exchanges a type."""
    match of.kind:
        case "array":
            assert of.element
            return pa.list_(pa.field("element", arrow_type(of.element)))
        case "map":
            assert of.element
            return pa.map_(pa.string(), arrow_type(of.element))
        case "struct":
            return pa.struct([(f.name, arrow_type(f.type)) for f in of.fields])
        case "decimal":
            return pa.decimal128(of.precision, of.scale)
    return ARROW_TYPES[of.kind]
