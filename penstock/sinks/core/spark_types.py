"""Types of Spark that Arrow has no type of its own for, told by how Spark sends them."""

from __future__ import annotations

import pyarrow as pa

TAGS = {b"variant": "VARIANT", b"geometry": "GEOMETRY", b"geography": "GEOGRAPHY"}


def own_kind(kind: pa.DataType) -> str:
    """VARIANT, GEOMETRY or GEOGRAPHY, which come as structs of bytes; empty if it is none of them."""
    if not pa.types.is_struct(kind):
        return ""
    tagged = (tag for field in kind for tag, value in (field.metadata or {}).items() if value == b"true")
    return next((TAGS[tag] for tag in tagged if tag in TAGS), "")
