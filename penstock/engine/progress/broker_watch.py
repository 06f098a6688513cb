"""Whether the broker still answers a stream that runs."""

from __future__ import annotations

import time

# Seconds without an answer after which a running stream is failing: Spark itself asks for minutes before it gives up.
BROKER_SILENT_S = 15.0
# The driver measures lag on every fifth tick. If a tick was blocked by another stream, the broker was not asked.
MAX_UNANSWERED_TICKS = 6


class BrokerWatch:
    """Counts the ticks since the broker last returned the ends of all partitions that a stream reads."""

    def __init__(self) -> None:
        self._answered_at = time.monotonic()
        self._ticks = 0

    def tick(self) -> None:
        """The driver looks after its streams once more."""
        self._ticks += 1

    def answered(self) -> None:
        """The broker has returned the ends of all partitions."""
        self._answered_at, self._ticks = time.monotonic(), 0

    def is_silent(self, last_commit: float) -> bool:
        """Whether the broker has not answered for long. last_commit: monotonic time of the stream's last batch."""
        silent_for = time.monotonic() - max(self._answered_at, last_commit)
        return self._ticks > MAX_UNANSWERED_TICKS and silent_for > BROKER_SILENT_S
