"""A heartbeat on the wire, and the proof that it is ours.

A beat is a record with the key BEAT_KEY, the header `penstock.heartbeat` and the value
`{"heartbeat":<epoch ms>,"proof":"<hex>"}`. The proof is an HMAC-SHA256 over topic, partition and time: so nobody else
can make one, and a copy is worth nothing in another partition and moves no time where it was sent. What has the key and
no proof is a record like any other. Readers that are not Penstock's skip a beat by its key.
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
SHA256_BLOCK: Final = 64
"""Bytes that SHA-256 takes at once."""


@dataclass(frozen=True)
class HeartbeatSigner:
    """secret: of BLOCK bytes at most."""

    secret: bytes = field(repr=False)

    def value(self, topic: str, partition: int, at_ms: int) -> bytes:
        proof = hmac.digest(self.secret, f"{topic} {partition} {at_ms}".encode(), hashlib.sha256)
        return b'{"heartbeat":%d,"proof":"%s"}' % (at_ms, proof.hex().encode())

    def verified_time(self, topic: str, partition: int, value: bytes | None) -> int | None:
        """Epoch ms of a beat by its value; None if that does not prove it."""
        found = VALUE_PATTERN.fullmatch(value or b"")
        if found is None:
            return None
        at_ms = int(found[1])
        return at_ms if hmac.compare_digest(value or b"", self.value(topic, partition, at_ms)) else None

    @property
    def hmac_pads(self) -> tuple[bytes, bytes]:
        """What HMAC hashes in front of the message, and in front of that hash (RFC 2104): for Spark, which has none."""
        block = self.secret.ljust(SHA256_BLOCK, b"\0")
        return bytes(b ^ 0x36 for b in block), bytes(b ^ 0x5C for b in block)


def heartbeat_signer() -> HeartbeatSigner:
    """This platform's: by the setting, or by the secret that its home keeps."""
    given = settings().heartbeat_secret.get_secret_value()
    secret = hashlib.sha256(given.encode()).digest() if given else load_or_create(settings().home / SECRET_FILE)
    return HeartbeatSigner(secret)
