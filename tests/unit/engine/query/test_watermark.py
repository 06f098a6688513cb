"""Which batches may move the watermark: those that left nothing in an input."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.engine.checkpoint.layout import PlannedBatch
from penstock.engine.faults.batch_splitting import BatchSplitter
from penstock.engine.jvm.bridge import BatchExecution
from penstock.engine.query.watermark import Watermark
from penstock.streams import EmitChanges, Input, Stream, Topic, TopicOutput

MINUTE = timedelta(minutes=1)
NOW = 1_700_000_000_000
Ends = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Planned:
    """What of a batch has a part in it."""

    starts: Ends
    ends: Ends
    at_ms: int = NOW
    watermark_ms: int = 0
    batch_id: int = 0


@dataclass
class Executed:
    """A batch of two inputs. held: what was let through to the watermark."""

    held: list[int | None] = field(default_factory=list)

    def watermark_paths(self) -> list[tuple[int, ...]]:
        return [(0, 1), (0, 2)]

    def metric_names_below(self, place: tuple[int, ...]) -> set[str]:
        return {"beats_one"} if place == (0, 1) else {"beats_more", "old_more"}

    def cap_watermark(self, places: list[tuple[int, ...]], latest: list[int | None]) -> list[int | None]:
        assert places == self.watermark_paths()
        assert len(set(latest)) == 1
        self.held.append(latest[0])
        return latest


def held(limit: int, starts: Ends, ends: Ends, *, cut: bool = False) -> int | None:
    one, more = Input(Topic("one")), Input(pattern="more-.*")
    output = TopicOutput(Topic("out"), key="n", value="n")
    stream = Stream(
        "s", "a", {"one": one, "more": more}, lambda one, more: one.union(more), output,
        EmitChanges(MINUTE, MINUTE), max_records=limit,
    )  # fmt: skip
    execution = Executed()
    splitter = cast(BatchSplitter, SimpleNamespace(limit_of=lambda _: limit, is_split=lambda _: cut))
    Watermark(stream, splitter).cap(cast(PlannedBatch, Planned(starts, ends)), cast(BatchExecution, execution))
    return execution.held[0]


def taken(limit: int, waiting: list[int]) -> list[int]:
    """Spark's KafkaMicroBatchStream.rateLimit."""
    total = sum(waiting)
    shares = [limit * (size / total) if total else 0.0 for size in waiting]
    return [
        min(size, math.ceil(share) if share < 1 else math.floor(share))
        for size, share in zip(waiting, shares, strict=True)
    ]


@pytest.mark.parametrize(
    ("limit", "read", "moves"),
    [
        (0, [10**9], True),
        (100, [50, 47], True),
        (100, [50, 49], False),
        (100, [99, 99], False),
        (100, [99, 0], True),
        (100, [100, 0], False),
    ],
)
def test_a_batch_that_took_as_much_as_it_may_moves_nothing(limit: int, read: list[int], moves: bool) -> None:
    """Of one input; the other has little. Spark rounds down the share of each partition that has records."""
    ends = {"one": dict(enumerate(read)), "more-a": {0: 7}, "else": {0: 10**9}}
    starts = {topic: dict.fromkeys(parts, 0) for topic, parts in ends.items()}
    assert held(limit, starts, ends) == (NOW if moves else None)
    shifted = {"more-a": {0: 5}, "more-b": {p: end + 30 for p, end in enumerate(read)}, "one": {0: 2}}
    starts = {"more-a": {0: 5}, "more-b": dict.fromkeys(range(len(read)), 30), "one": {0: 2}}
    assert held(limit, starts, shifted) == (NOW if moves else None)


def test_what_was_read_of_a_new_partition_counts_from_its_first_offset() -> None:
    assert held(100, {"one": {0: 0}}, {"one": {0: 1, 1: 500}}) is None


def test_no_batch_that_spark_cut_short_moves_anything() -> None:
    chance = random.Random(13)
    cut = 0
    for _ in range(3000):
        waiting = [chance.choice([0, 1, 2, 40, chance.randrange(5000)]) for _ in range(chance.randrange(1, 9))]
        limit = chance.choice([1, 10, max(1, sum(waiting) - 1), chance.randrange(1, 9000)])
        now = taken(limit, waiting) if sum(waiting) > limit else waiting
        if sum(now) == sum(waiting):
            continue
        cut += 1
        starts = {"one": dict.fromkeys(range(len(waiting)), 1000)}
        assert held(limit, starts, {"one": {p: 1000 + n for p, n in enumerate(now)}}) is None, (limit, waiting)
    assert cut > 500


def test_a_piece_of_a_batch_that_memory_did_not_hold_moves_nothing() -> None:
    starts, ends = {"one": {0: 0}, "more-a": {0: 0}}, {"one": {0: 3}, "more-a": {0: 2}}
    assert held(0, starts, ends) == NOW
    assert held(0, starts, ends, cut=True) is None
