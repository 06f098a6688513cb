"""How long ago a stream was through its inputs: all that lay in them then has been read, and its rows are written."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

# Measurements that wait until they are reached: a minute of them. Of a longer backlog the newest is left out.
MAX_MEASUREMENTS = 12

Offsets = Mapping[str, Mapping[int, int]]


class CaughtUpTracker:
    """Of one run of a stream.

    behind_ms: what an earlier run had reached, or None. waits: whether the stream waits for the clock: rows of windows
    that a batch closes are written with the next one.
    """

    def __init__(self, behind_ms: int | None, *, waits: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._waits, self._clock = waits, clock
        self._lock = threading.Lock()
        self._ends: deque[tuple[float, dict[tuple[str, int], int]]] = deque()
        self._read: float | None = None
        self._through = None if behind_ms is None else clock() - behind_ms / 1000

    @property
    def behind_ms(self) -> int | None:
        """Milliseconds since then, None if it never was."""
        return None if self._through is None else int((self._clock() - self._through) * 1000)

    def reset(self) -> None:
        """Begin again: offsets measured before may be another log's."""
        with self._lock:
            self._ends.clear()
            self._read = None

    def add_measurement(self, at: float, ends: Mapping[tuple[str, int], int], offsets: Offsets) -> None:
        """Take in where the inputs ended at a time of the clock, or later."""
        mine = {(t, p): ends.get((t, p)) for t, parts in offsets.items() for p in parts}
        known = {place: end for place, end in mine.items() if end is not None}
        if not mine or len(known) < len(mine):
            return
        with self._lock:
            if len(self._ends) < MAX_MEASUREMENTS:
                self._ends.append((at, known))
            self._reached(offsets)

    def batch_written(self, offsets: Offsets) -> None:
        """Take in that a batch is written; the next offsets behind it."""
        with self._lock:
            self._settled()
            self._reached(offsets)

    def query_idle(self) -> None:
        """Take in that the query has found nothing to do since its last batch."""
        with self._lock:
            self._settled()

    def _reached(self, offsets: Offsets) -> None:
        while self._ends and all(offsets.get(t, {}).get(p, 0) >= end for (t, p), end in self._ends[0][1].items()):
            self._read = self._ends.popleft()[0]
        if not self._waits:
            self._settled()

    def _settled(self) -> None:
        if self._read is not None:
            self._through, self._read = self._read, None
