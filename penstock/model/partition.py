"""Partitions of event time: the intervals for which a stream or an archive tells Airflow that they are complete.

A window belongs to the partition in which it ends; one that ends at the end of a partition belongs to it. So a
partition is closed once the watermark has reached its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

PartitionBy = Literal["hour", "day", "window"]
PARTITIONS = get_args(PartitionBy)
LENGTHS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
# The format that Airflow's own mappers of partition keys read.
KEY_FORMAT = "%Y-%m-%dT%H:%M:%S"
SECOND = timedelta(seconds=1)
FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Partitions:
    """Consecutive intervals of event time, without end.

    Attributes:
        length: Of each, in whole seconds.
        phase: How long after each multiple of `length` one ends.
    """

    length: timedelta
    phase: timedelta = timedelta(0)

    def last_closed(self, mark_ms: int) -> str:
        """The key of the last partition that ends at a time, epoch ms, or before it."""
        at = datetime.fromtimestamp(mark_ms // 1000, UTC)
        return partition_key(at - (at - self._epoch) % self.length - self.length)

    def closed_after(self, key: str, mark_ms: int, limit: int = 1000) -> list[str]:
        """The keys of the partitions after `key` that end at a time, epoch ms, or before it; `limit` at most."""
        last, keys = self.last_closed(mark_ms), [key]
        while keys[-1] < last and len(keys) <= limit:
            keys.append(self._next(keys[-1]))
        return keys[1:]

    def overlapping(self, begin: datetime, end: datetime) -> list[str]:
        """The keys of the partitions that have a part of an interval; one that begins before year 1 has none."""
        first = max((begin - self._epoch) // self.length, -((self._epoch - FIRST) // self.length))
        behind = -((self._epoch - end) // self.length)
        return [partition_key(self._epoch + n * self.length) for n in range(first, behind)]

    @property
    def _epoch(self) -> datetime:
        return datetime.fromtimestamp(0, UTC) + self.phase

    def _next(self, key: str) -> str:
        """The key of the partition after the one in which `key` lies, which may be of another length."""
        start = partition_start(key) + self.length
        return partition_key(start - (start - self._epoch) % self.length)


def partition_key(start: datetime) -> str:
    """The key of the partition that starts at a time: the time in UTC. Keys are in order of time."""
    # strftime does not pad years.
    return start.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds")


def partition_start(key: str) -> datetime:
    """The start of a partition. ValueError if this is no key."""
    return datetime.strptime(key, KEY_FORMAT).replace(tzinfo=UTC)
