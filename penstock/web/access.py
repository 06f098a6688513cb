"""Checks of callers that all HTTP servers of Penstock make."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterable, Collection
from contextlib import suppress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def is_own_host(header: str, names: Collection[str | None]) -> bool:
    """Whether a Host header names this server. Other names are refused, against DNS rebinding by foreign pages."""
    with suppress(ValueError):
        name = urlsplit(f"//{header}").hostname or ""
        return name in names or is_loopback(name)
    return False


class TooLarge(Exception):
    """A body is larger than it may be."""


async def read_body(chunks: AsyncIterable[bytes], limit: int, timeout: float) -> bytes:
    """The body of a request, and no more of it than it may have. TooLarge, or TimeoutError after timeout seconds."""
    body = bytearray()
    async with asyncio.timeout(timeout):
        async for chunk in chunks:
            body += chunk
            if len(body) > limit:
                raise TooLarge
    return bytes(body)
