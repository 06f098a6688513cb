"""A heartbeat on the wire.

A beat is a record with the key BEAT_KEY, the clock time it carries as its timestamp and, readable for people, in its
JSON value `{"heartbeat": <epoch ms>}`, and the header `penstock.heartbeat`. Readers that are not Penstock's skip it by
its key.
"""

from __future__ import annotations

from typing import Final

BEAT_KEY: Final = b"penstock.heartbeat"
BEAT_HEADER: Final = "penstock.heartbeat"


def beat_value(at_ms: int) -> bytes:
    return b'{"heartbeat":%d}' % at_ms
