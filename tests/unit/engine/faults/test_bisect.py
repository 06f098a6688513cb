"""The search for records that make a batch fail."""

from __future__ import annotations

import random

import pytest

from penstock.engine.checkpoint.layout import PlannedBatch as Taken
from penstock.engine.checkpoint.offset_log import BatchPlan
from penstock.engine.faults.bisect import Bisection, Inconclusive, NoCulprit, RecordOrder
from penstock.engine.faults.data_loss import InputChanges
from penstock.engine.faults.poison import PoisonRecords
from penstock.engine.query.source import RecordPosition


class Batch:
    """A batch some of whose records fail by themselves; counts how often it was run."""

    def __init__(self, *bad: int) -> None:
        self.bad, self.runs = set(bad), 0

    def fails(self, count: int, without: frozenset[int]) -> str:
        self.runs += 1
        left = sorted(at for at in self.bad if at < count and at not in without)
        return f"record {left[0]}" if left else ""


@pytest.mark.parametrize("seed", range(30))
def test_exactly_the_records_that_fail_are_found(seed: int) -> None:
    chance = random.Random(seed)
    total = chance.choice([1, 2, 7, 1000, 1_000_000])
    bad = {chance.randrange(total) for _ in range(chance.randrange(8))}
    batch = Batch(*bad)
    assert Bisection(total, batch.fails).find(10) == ({at: f"record {at}" for at in bad}, True)
    assert batch.runs < 2 + 50 * len(bad)


def test_neighbours_cost_a_few_runs_each() -> None:
    batch = Batch(*range(500, 600))
    found, all_of_them = Bisection(1_000_000, batch.fails).find(100)
    assert (sorted(found), all_of_them) == (list(range(500, 600)), True)
    assert batch.runs < 500


def test_no_more_than_asked_for_are_found() -> None:
    found, all_of_them = Bisection(1000, Batch(*range(1000)).fails).find(5)
    assert (sorted(found), all_of_them) == ([0, 1, 2, 3, 4], False)


def test_a_sum_that_is_too_large_loses_the_record_that_makes_it_so() -> None:
    amounts = [40, 40, 40, 1, 2]

    def fails(count: int, without: frozenset[int]) -> str:
        return "overflow" if sum(a for at, a in enumerate(amounts[:count]) if at not in without) > 100 else ""

    assert Bisection(5, fails).find(3) == ({2: "overflow"}, True)


def test_what_passes_has_none() -> None:
    assert Bisection(1000, Batch().fails).find(5) == ({}, True)


def test_what_fails_without_a_record_is_nobodys_fault() -> None:
    with pytest.raises(NoCulprit, match="the disk is full"):
        Bisection(10, lambda _count, _without: "the disk is full").find(5)


def test_what_fails_now_and_then_puts_no_record_aside() -> None:
    chance = random.Random(7)

    def fails(count: int, _without: frozenset[int]) -> str:
        return "lightning" if count and chance.random() < 0.5 else ""

    wrong = 0
    for _ in range(200):
        try:
            found, _all = Bisection(1000, fails).find(5)
            wrong += bool(found)
        except Inconclusive:
            pass
    # A record is blamed only where two runs in a row say so and a third clears the rest.
    assert wrong < 200 // 4


def test_records_are_numbered_partition_behind_partition() -> None:
    order = RecordOrder([("a", 0, 5, 8), ("a", 1, 3, 3), ("b", 0, 0, 2)])
    places = [order.position(n)[:3] for n in range(len(order))]
    assert places == [("a", 0, 5), ("a", 0, 6), ("a", 0, 7), ("b", 0, 0), ("b", 0, 1)]
    first = order.first_records(4, Taken(1, 2, 3, {}, {}, BatchPlan("", {}, ()), None))
    assert first.starts == {"a": {0: 5, 1: 3}, "b": {0: 0}}
    assert first.ends == {"a": {0: 8, 1: 3}, "b": {0: 1}}
    assert order.first_records(0, first).ends == first.starts


def test_what_lies_behind_a_topic_made_again_or_cut_is_no_longer_left_out() -> None:
    kept = RecordPosition("kept", 0, 4)
    places = [RecordPosition("again", 0, 1), RecordPosition("cut", 0, 9), RecordPosition("cut", 1, 9), kept]
    poison = PoisonRecords(None, None, lambda _: None)  # type: ignore[arg-type]
    poison.left_out = dict.fromkeys(places, "why")
    poison.forget(InputChanges(frozenset({"again"}), {("cut", 0): (0, 5), ("cut", 1): (0, 50)}, {}))
    assert set(poison.left_out) == {RecordPosition("cut", 1, 9), kept}
