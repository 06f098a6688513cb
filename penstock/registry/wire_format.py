"""Confluent's wire format: a zero byte, the id of the writer's schema in four bytes, and the record.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

MAGIC, HEADER_BYTES = b"\x00", 5


def header(schema_id: int) -> bytes:
    """The bytes before a record."""
    return MAGIC + schema_id.to_bytes(HEADER_BYTES - 1)


def schema_id(value: bytes) -> int | None:
    """The id in a value or in its first bytes; None if it is not in this format."""
    return int.from_bytes(value[1:HEADER_BYTES]) if len(value) >= HEADER_BYTES and value[:1] == MAGIC else None
