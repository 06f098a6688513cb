"""The schedule of reconciles."""

from __future__ import annotations

import zlib
from datetime import timedelta

# Seconds after a start over which overdue reconciles are spread.
START_SPREAD_SECONDS = 600.0


def due(name: str, every: timedelta, compared: float, started: float) -> float:
    """When the next reconcile is due. Times are epoch seconds.

    Captures of one driver are due at different times, by their names, up to a quarter early.

    Args:
        name: The capture.
        every: The interval.
        compared: When table and topic were last known to be equal; 0 if never.
        started: When the driver began to run the capture.
    """
    share, seconds = zlib.crc32(name.encode()) / 2**32, every.total_seconds()
    return max(compared + seconds * (1 - share / 4), started + share * min(START_SPREAD_SECONDS, seconds / 24))
