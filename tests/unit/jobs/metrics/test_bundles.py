"""Bundles as the second stage takes them: what somebody else wrote, or wrote by hand, must not stop it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.metrics import summaries
from penstock.codec.columnar import RecordDecoder
from tests.support.record_batches import batch, run

READING = RecordDecoder.of_input(summaries.STREAM.sources["bundles"], combine=True, keep_records=False)
WINDOW = 1_700_000_400_000


def bundle(**other: Any) -> bytes:
    made = {"environment": "prod", "metric": "m", "window": WINDOW, "count": 2, "average": 1.5, "m2": 0.5}
    return json.dumps({**made, "min": 1.0, "max": 2.0, "values": [1.0, 2.0], "counts": None, **other}).encode()


def test_the_one_with_most_receipts_is_taken_whole() -> None:
    """Also where it does not know its values, and an older one does."""
    newer = bundle(count=9, values=None)
    for given in ([bundle(), newer], [newer, bundle()]):
        [row] = run(READING, batch(given))
        assert (row["count"], row["values"]) == (9, None)


@pytest.mark.parametrize(
    ("values", "counts", "known"),
    [
        ([1.0, 2.0], None, True),
        ([1.5], [2], True),
        ([], None, False),
        ([1.0], None, False),
        ([1.0, None], None, False),
        ([1.5], [1], False),
        ([1.5, 2.0], [2], False),
        ([1.5], [None], False),
        ([1.5], [], False),
    ],
)
def test_lists_that_do_not_fit_are_not_known(values: list[Any], counts: list[Any] | None, known: bool) -> None:
    [row] = run(READING, batch([bundle(values=values, counts=counts)]))
    assert not row["_bad"]
    assert row["values"] == (values if known else None)


@pytest.mark.parametrize(
    ("values", "counts", "known"),
    [
        ([1.5, 2.0], [5, -3], False),
        ([1.5, 2.0], [2, 0], False),
        ([1.5, 2.0], [2**24, 1], True),
        ([1.5, 2.5], [2**52, 2**52], True),
    ],
)
def test_values_that_cannot_be_counted_are_not_known(values: list[float], counts: list[int], known: bool) -> None:
    [row] = run(READING, batch([bundle(values=values, counts=counts, count=sum(counts))]))
    assert row["count"] == sum(counts)
    assert (row["values"], row["counts"]) == ((values, counts) if known else (None, None))


@pytest.mark.parametrize("count", [0, -1, 2**53 + 1, 2**63 - 1])
def test_one_that_counts_nothing_adds_nothing(count: int) -> None:
    assert run(READING, batch([bundle(count=count, values=[], counts=[])])) == []
