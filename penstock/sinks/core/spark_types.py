"""Spark's types that Arrow has no type for, recognised by how Spark sends them."""

from __future__ import annotations

import pyarrow as pa

TAGS = {b"variant": "VARIANT", b"geometry": "GEOMETRY", b"geography": "GEOGRAPHY"}


def spark_only_type(kind: pa.DataType) -> str:
    """VARIANT, GEOMETRY or GEOGRAPHY, which are sent as structs of bytes; empty for all other types."""
    if not pa.types.is_struct(kind):
        return ""
    tagged = (tag for field in kind for tag, value in (field.metadata or {}).items() if value == b"true")
    return next((TAGS[tag] for tag in tagged if tag in TAGS), "")
