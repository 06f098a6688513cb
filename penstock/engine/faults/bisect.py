"""Bisection of a batch: finds the records that make it fail by running it on ever smaller parts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from penstock.engine.query.source import RecordPosition

if TYPE_CHECKING:
    from penstock.engine.checkpoint.layout import PlannedBatch

# Why a run over the first n records fails, without some of them; empty if it passes.
RunPart = Callable[[int, frozenset[int]], str]


class Inconclusive(Exception):
    """The batch fails without a record, or not each time."""


class NoCulprit(Inconclusive):
    """The batch fails without any record, of its state alone."""


@dataclass(frozen=True)
class Bisection:
    """The search over the records of one batch.

    What fails with the first n records is taken to fail with more. So a record is found that fails by itself, or
    together with those before it, as the last one of a sum that overflows.

    Attributes:
        total: How many records there are.
        fails: Runs a part of the batch.
    """

    total: int
    fails: RunPart

    def find(self, limit: int) -> tuple[dict[int, str], bool]:
        """The records without which the others pass, with the reason; and whether these are all.

        Args:
            limit: How many records to find at most.

        Raises:
            NoCulprit: The batch fails without any record.
            Inconclusive: It does not fail each time.
        """
        culprits: dict[int, str] = {}
        passes = 0
        while self.fails(self.total, frozenset(culprits)):
            if not culprits and (why := self.fails(0, frozenset())):
                raise NoCulprit(why)
            if len(culprits) == limit:
                return culprits, False
            at, why = self._next(passes, frozenset(culprits))
            culprits[at], passes = why, at + 1
        return culprits, True

    def _next(self, passes: int, without: frozenset[int]) -> tuple[int, str]:
        """The first record that fails after those that pass; bad records are often neighbours."""
        step = 1
        while not self.fails(high := min(passes + step, self.total), without):
            if high == self.total:
                raise Inconclusive("it does not fail each time")
            passes, step = high, step * 2
        while high - passes > 1:
            middle = (passes + high) // 2
            if self.fails(middle, without):
                high = middle
            else:
                passes = middle
        # Run both once more, so that a transient error does not condemn a good record.
        why = self.fails(high, without)
        if not why or self.fails(passes, without):
            raise Inconclusive("it does not fail each time")
        return passes, why


@dataclass(frozen=True)
class RecordOrder:
    """The records of a batch in one sequence, partition by partition.

    Attributes:
        parts: Topic, partition, first offset and next offset of each partition.
    """

    parts: list[tuple[str, int, int, int]]

    def __len__(self) -> int:
        return sum(end - start for _, _, start, end in self.parts)

    def position(self, number: int) -> RecordPosition:
        ends = list(accumulate(end - start for _, _, start, end in self.parts))
        which = bisect_right(ends, number)
        topic, partition, _, end = self.parts[which]
        return RecordPosition(topic, partition, end - (ends[which] - number))

    def first_records(self, count: int, batch: PlannedBatch) -> PlannedBatch:
        """The batch as if it held only the first records."""
        starts: dict[str, dict[int, int]] = {}
        ends: dict[str, dict[int, int]] = {}
        for topic, partition, start, end in self.parts:
            length = min(count, end - start)
            starts.setdefault(topic, {})[partition] = start
            ends.setdefault(topic, {})[partition] = start + length
            count -= length
        return replace(batch, starts=starts, ends=ends)


def span_of(positions: list[RecordPosition], batch: PlannedBatch) -> PlannedBatch:
    """The batch as if it held only the records between the first and the last of some positions."""
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    for topic, parts in batch.ends.items():
        for partition, end in parts.items():
            offsets = [p.offset for p in positions if (p.topic, p.partition) == (topic, partition)]
            starts.setdefault(topic, {})[partition] = min(offsets, default=end)
            ends.setdefault(topic, {})[partition] = max(offsets, default=end - 1) + 1
    return replace(batch, starts=starts, ends=ends)
