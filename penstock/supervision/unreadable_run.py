"""In a driver, the place of a stream or capture that is wanted and whose file cannot be read."""

from __future__ import annotations

import time
from dataclasses import replace

from penstock.control import ProgressRow
from penstock.kafka.admin import PartitionOffsets


class UnreadableRun:
    """Runs nothing and says why, with the figures of before; a release of mended code takes it up."""

    def __init__(self, figures: ProgressRow, why: str) -> None:
        self.offsets: dict[str, dict[int, int]] = {}
        self.running = False
        # An active run is reconciled without a check of its lease, which it does not need.
        self.active = True
        self._figures, self._why = figures, why
        self._since = time.monotonic()

    def reconcile(self) -> None:
        if not self.running:
            self.running = True
            self._figures.state, self._figures.error = "failing", self._why
            self._figures.error_at = int(time.time() * 1000)

    def stop(self) -> None:
        self.running = False
        self._figures.state = "stopped"

    def report(self) -> ProgressRow:
        behind_ms = self._figures.behind_ms
        elapsed_ms = int((time.monotonic() - self._since) * 1000)
        return replace(self._figures, behind_ms=None if behind_ms is None else behind_ms + elapsed_ms)

    def write_seconds(self) -> float:
        return 0.0

    def lag(
        self, offsets: dict[str, dict[int, int]], stable: PartitionOffsets, ends: PartitionOffsets, at: float
    ) -> None:
        """It reads nothing."""
