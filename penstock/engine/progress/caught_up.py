"""How long ago a stream was caught up: it had read all records that its inputs held, and had written their rows."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

# Measurements that are not reached yet: a minute of them. With a longer backlog new ones are not taken.
MAX_MEASUREMENTS = 12

Offsets = Mapping[str, Mapping[int, int]]


class CaughtUpTracker:
    """Tracks when one run of a stream was caught up.

    Args:
        behind_ms: what an earlier run had reached, in milliseconds, or None.
        waits: whether the stream waits for the clock: the rows of windows that a batch closes are written with the
            next batch.
        clock: monotonic seconds.
    """

    def __init__(self, behind_ms: int | None, *, waits: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._waits, self._clock = waits, clock
        self._lock = threading.Lock()
        self._measurements: deque[tuple[float, dict[tuple[str, int], int]]] = deque()
        self._read_up_to: float | None = None
        self._caught_up_at = None if behind_ms is None else clock() - behind_ms / 1000

    @property
    def behind_ms(self) -> int | None:
        """Milliseconds since the stream was caught up; None if it never was."""
        return None if self._caught_up_at is None else int((self._clock() - self._caught_up_at) * 1000)

    def reset(self) -> None:
        """Forget the measurements: they may be of another log."""
        with self._lock:
            self._measurements.clear()
            self._read_up_to = None

    def add_measurement(self, at: float, ends: Mapping[tuple[str, int], int], offsets: Offsets) -> None:
        """Take a measurement of the inputs.

        Args:
            at: time of the clock at which the inputs ended there, or ended earlier.
            ends: the ends, by topic and partition.
            offsets: next offsets of the stream.
        """
        all_ends = {(t, p): ends.get((t, p)) for t, parts in offsets.items() for p in parts}
        known_ends = {partition: end for partition, end in all_ends.items() if end is not None}
        if not all_ends or len(known_ends) < len(all_ends):
            return
        with self._lock:
            if len(self._measurements) < MAX_MEASUREMENTS:
                self._measurements.append((at, known_ends))
            self._advance(offsets)

    def batch_written(self, offsets: Offsets) -> None:
        """A batch is written, which ends at these next offsets."""
        with self._lock:
            self._confirm()
            self._advance(offsets)

    def query_idle(self) -> None:
        """The query has found nothing to do since its last batch."""
        with self._lock:
            self._confirm()

    def _advance(self, offsets: Offsets) -> None:
        while self._measurements and all(
            offsets.get(t, {}).get(p, 0) >= end for (t, p), end in self._measurements[0][1].items()
        ):
            self._read_up_to = self._measurements.popleft()[0]
        if not self._waits:
            self._confirm()

    def _confirm(self) -> None:
        if self._read_up_to is not None:
            self._caught_up_at, self._read_up_to = self._read_up_to, None
