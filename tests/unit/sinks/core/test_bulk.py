"""Bulk writes: what is retried, what is bisected, and what is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from penstock.errors import SinkError, Wait
from penstock.sinks.core.bulk import (
    OK,
    BulkWriter,
    ItemResult,
    ItemStatus,
    RequestRejected,
    RequestTimedOut,
    SinkBatchResult,
)

BUSY = ItemResult(ItemStatus.RETRY, "busy")


@dataclass(frozen=True)
class Item:
    row: int
    size: int = 10


Bulk = Callable[..., BulkWriter[Item]]


@pytest.fixture
def bulk() -> Iterator[Bulk]:
    made: list[BulkWriter[Item]] = []

    def new(parallel: int = 1, rows: int = 100, tries: int = 3) -> BulkWriter[Item]:
        made.append(BulkWriter(parallel, rows, 1000, tries, 0.001, give_up))
        return made[-1]

    yield new
    for one in made:
        one.close()


def give_up(left: Sequence[tuple[Item, ItemResult]]) -> None:
    raise Wait("busy", got=left[0][1].reason, seconds=1)


def items(count: int) -> list[Item]:
    return [Item(row) for row in range(count)]


def test_only_busy_items_are_sent_again(bulk: Bulk) -> None:
    sent: list[list[int]] = []

    def send(part: Sequence[Item]) -> list[ItemResult]:
        sent.append([one.row for one in part])
        return [BUSY if one.row == 1 and len(sent) < 3 else OK for one in part]

    result = SinkBatchResult()
    assert bulk().write(items(3), result, send).written == 3
    assert sent == [[0, 1, 2], [1], [1]]
    assert (result.retried, result.bytes) == (2, 50)


def test_the_outcome_is_known_also_if_the_store_stays_busy(bulk: Bulk) -> None:
    result = SinkBatchResult()
    with pytest.raises(Wait, match="busy"):
        bulk().write(items(3), result, lambda part: [BUSY if one.row == 1 else OK for one in part])
    assert (result.retried, result.bytes) == (2, 50)


def test_a_rejected_request_is_bisected_to_the_wrong_items(bulk: Bulk) -> None:
    def send(part: Sequence[Item]) -> list[ItemResult]:
        if {3, 7} & {one.row for one in part}:
            raise RequestRejected("bad")
        return [OK] * len(part)

    outcome = bulk().write(items(10), SinkBatchResult(), send)
    assert (outcome.written, outcome.refused) == (8, {3: "bad", 7: "bad"})


def test_results_are_sorted_by_status(bulk: Bulk) -> None:
    results = [OK, ItemResult(ItemStatus.CONFLICT), ItemResult(ItemStatus.DUPLICATE, "x_1"), OK]
    outcome = bulk().write(items(4), SinkBatchResult(), lambda _: results)
    assert [one.row for one in outcome.conflicts] == [1]
    assert [(one.row, reason) for one, reason in outcome.of(ItemStatus.DUPLICATE)] == [(2, "x_1")]
    assert outcome.written == 2


def test_requests_are_bounded_and_shrink_after_a_timeout(bulk: Bulk) -> None:
    sizes: list[int] = []

    def send(part: Sequence[Item]) -> list[ItemResult]:
        sizes.append(len(part))
        return [OK] * len(part)

    def hang(_: Sequence[Item]) -> list[ItemResult]:
        raise RequestTimedOut("slow", seconds=1)

    writer = bulk(rows=40)
    writer.write(items(100), SinkBatchResult(), send)
    assert sizes == [40, 40, 20]
    sizes.clear()
    writer.write([Item(0), Item(1, 995), Item(2, 2000), *items(2)], SinkBatchResult(), send)
    assert sizes == [1, 1, 1, 2], "at most 1000 bytes, but for an item that is larger by itself"
    with pytest.raises(Wait):
        writer.write(items(10), SinkBatchResult(), hang)
    sizes.clear()
    writer.write(items(20), SinkBatchResult(), send)
    writer.write(items(20), SinkBatchResult(), send)
    assert sizes == [10, 10, 20]


def test_an_error_stops_requests_that_are_not_sent_yet(bulk: Bulk) -> None:
    sent: list[int] = []

    def send(part: Sequence[Item]) -> list[ItemResult]:
        sent.append(part[0].row)
        raise SinkError("no")

    with pytest.raises(SinkError, match="no"):
        bulk(rows=1).write(items(5), SinkBatchResult(), send)
    assert sent == [0]
