"""Heartbeats: their format and their proof.

A heartbeat is a record with the key HEARTBEAT_KEY, the header `penstock.heartbeat` and the value
`{"heartbeat":<epoch ms>,"proof":"<hex>"}`. The proof is an HMAC-SHA256 over topic, partition and time: nobody else can
create one, and a copy is invalid in another partition and does not change the time where it was sent. A record with
this key and no valid proof is an ordinary record. Other consumers skip heartbeats by their key.

`HeartbeatSigner` verifies wherever Python sees the records; only `engine.query.decode` repeats the HMAC in Spark SQL,
because raw records without a combiner never reach a Python worker.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from penstock.host.secret_file import load_or_create
from penstock.settings import settings

HEARTBEAT_KEY: Final = b"penstock.heartbeat"
HEARTBEAT_HEADER: Final = "penstock.heartbeat"
SECRET_FILE: Final = "heartbeat.secret"
VALUE_PATTERN: Final = re.compile(rb'\{"heartbeat":([0-9]{1,15}),"proof":"([0-9a-f]{64})"\}')


@dataclass(frozen=True)
class HeartbeatSigner:
    """Creates and verifies heartbeats."""

    secret: bytes = field(repr=False)

    def value(self, topic: str, partition: int, at_ms: int) -> bytes:
        proof = hmac.digest(self.secret, f"{topic} {partition} {at_ms}".encode(), hashlib.sha256)
        return b'{"heartbeat":%d,"proof":"%s"}' % (at_ms, proof.hex().encode())

    def verified_time(self, topic: str, partition: int, value: bytes | None) -> int | None:
        """Returns the epoch ms of a heartbeat; None if the proof is invalid."""
        match = VALUE_PATTERN.fullmatch(value or b"")
        if match is None:
            return None
        at_ms = int(match[1])
        return at_ms if hmac.compare_digest(value or b"", self.value(topic, partition, at_ms)) else None


def heartbeat_signer() -> HeartbeatSigner:
    """Returns the signer with the secret of the settings, else of the home folder."""
    secret_text = settings().secret("heartbeat_secret")
    secret = (
        hashlib.sha256(secret_text.encode()).digest() if secret_text else load_or_create(settings().home / SECRET_FILE)
    )
    return HeartbeatSigner(secret)
