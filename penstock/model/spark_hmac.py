"""HMAC-SHA-256 (RFC 2104) in Spark SQL, which has none: two hashes, over pads that are made of the key."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from penstock.model.lazy_spark import F

if TYPE_CHECKING:
    from pyspark.sql import Column

# Block of SHA-256, bytes.
BLOCK = 64
BITS = 256


def hmac_pads(key: bytes) -> tuple[bytes, bytes]:
    """The inner and outer pad of a key."""
    block = (hashlib.sha256(key).digest() if len(key) > BLOCK else key).ljust(BLOCK, b"\0")
    return bytes(b ^ 0x36 for b in block), bytes(b ^ 0x5C for b in block)


def hmac_sha256(inner: Column, outer: Column, message: Column) -> Column:
    """STRING: the HMAC of a message in 64 hexadecimal digits.

    Plans appear in logs, errors and Spark's UI, and show the columns of a table and not its rows: pads belong in a
    table.

    Args:
        inner: BINARY, the inner pad.
        outer: BINARY, the outer pad.
        message: BINARY.
    """
    return F.sha2(F.concat(outer, F.unhex(F.sha2(F.concat(inner, message), BITS))), BITS)
