"""Rows that no output takes are bounded in a row."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.engine.commit.reject_budget import RejectBudget
from penstock.errors import Blocked, Refused


def batch(untaken: RejectBudget, rows: int, bad: int = 0) -> None:
    """One with so many rows, some of which are never taken."""
    untaken.begin_batch()
    if bad:
        untaken.charge(Refused("no", rows={"out": dict.fromkeys(range(bad), "it is too large")}))
    untaken.batch_written(rows - bad)


@pytest.fixture
def untaken() -> RejectBudget:
    return RejectBudget(SimpleNamespace(name="s", app="a", max_poison=3))  # type: ignore[arg-type]


def test_beyond_the_declared_number_in_a_row_a_stream_is_blocked_whatever_the_batches(untaken: RejectBudget) -> None:
    batch(untaken, 3, 1)
    # Neither a batch without rows nor one that is nothing but bad rows ends the row.
    batch(untaken, 0)
    batch(untaken, 1, 1)
    for _ in range(2):
        with pytest.raises(Blocked, match="4, more than 3, the first: it is too large"):
            batch(untaken, 3, 2)
    # A larger batch was not written; what it counted is not kept.
    batch(untaken, 3, 1)


def test_a_batch_whose_rows_are_all_taken_ends_the_row(untaken: RejectBudget) -> None:
    for _ in range(3):
        batch(untaken, 5, 3)
        batch(untaken, 1)
