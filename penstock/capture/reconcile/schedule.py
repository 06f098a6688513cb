"""When table and topic of a capture are compared by themselves."""

from __future__ import annotations

import zlib
from datetime import timedelta

# Seconds after a start within which what is overdue begins.
START_SPREAD_SECONDS = 600.0


def due(name: str, every: timedelta, compared: float, opened: float) -> float:
    """When the next comparison is to begin. Times are epoch seconds.

    compared: when table and topic were last known to be the same, 0 if never; opened: when the capture was.
    Captures that were opened together begin at different times, by their names: each up to a quarter early.
    """
    share, seconds = zlib.crc32(name.encode()) / 2**32, every.total_seconds()
    return max(compared + seconds * (1 - share / 4), opened + share * min(START_SPREAD_SECONDS, seconds / 24))
