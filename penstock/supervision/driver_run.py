"""What a driver needs of each of its streams and captures."""

from __future__ import annotations

from typing import Protocol

from penstock.control import ProgressRow
from penstock.kafka.admin import PartitionOffsets


class DriverRun(Protocol):
    """One stream or capture of a driver.

    Attributes:
        offsets: Of its input, {topic: {partition: next offset}}.
    """

    offsets: dict[str, dict[int, int]]

    @property
    def running(self) -> bool:
        """Started and not stopped; it may have failed and wait for `reconcile`."""

    @property
    def active(self) -> bool:
        """At work."""

    def reconcile(self) -> None:
        """Start what should run and restart what failed."""

    def stop(self) -> None: ...

    def report(self) -> ProgressRow: ...

    def write_seconds(self) -> float:
        """Seconds since the present write began; 0 if there is none."""

    def lag(
        self, offsets: dict[str, dict[int, int]], stable: PartitionOffsets, ends: PartitionOffsets, at: float
    ) -> None:
        """Take in how far the inputs' ends are away. stable: for a committed reader; ends: also behind open
        transactions; at: monotonic time before they were asked for."""
