"""Whether this host has room for another driver."""

from __future__ import annotations

import psutil

from penstock.engine.session import memory_bytes
from penstock.settings import settings

# Bytes that a driver needs besides its heap: for the JVM itself, Python and its workers.
BESIDES_HEAP = 512 << 20


def lacking_memory(*, heap: bool = True) -> str:
    """What this host lacks to run one more driver; empty if nothing. heap: whether it has a JVM of its own."""
    needed = memory_bytes(settings().driver_memory) * heap + BESIDES_HEAP
    there = psutil.virtual_memory().available
    if there >= needed:
        return ""
    return f"this host has {there >> 20} MiB of memory left, and one more driver needs {needed >> 20} MiB"
