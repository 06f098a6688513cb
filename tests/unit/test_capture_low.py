"""No commit is missed: simulated transactions that draw a cursor, commit in any order, while polls read in pages."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest

from penstock.capture.low import LowMark


@dataclass
class Transaction:
    started: float
    key: int
    cursor: int
    version: int


# By how much the clocks of two writers differ at most.
SKEW = 0.9


class Table:
    """A table of versions by key, a clock, and transactions that draw cursors while they are open.

    timed: cursors are whole seconds of writers' clocks that differ; else they come from a sequence.
    """

    def __init__(self, seed: int, *, timed: bool = False) -> None:
        self.chance, self.timed = random.Random(seed), timed
        self.clock, self.sequence = 0.0, 0
        self.rows: dict[int, tuple[int, int]] = {}
        self.open: list[Transaction] = []
        self.ended = False

    def end(self) -> None:
        """All commit, and nothing happens any more."""
        for one in list(self.open):
            self.commit(one)
        self.ended = True

    def goes_on(self) -> None:
        """A moment passes; somebody may begin or commit."""
        if self.ended:
            return
        self.clock += self.chance.choice((0.0, 0.01, 0.3))
        for _ in range(self.chance.randrange(3)):
            locked = {t.key for t in self.open}
            if key := self.chance.choice([k for k in range(1, 40) if k not in locked]):
                started = self.clock - self.chance.choice((0.0, 0.0, 0.2))
                version = self.rows.get(key, (0, 0))[1] + 1
                self.open.append(Transaction(started, key, self.drawn(), version))
        for one in list(self.open):
            if self.chance.random() < 0.2:
                self.commit(one)

    def drawn(self) -> int:
        self.sequence += 1
        # Far from 0, so that no draw is below it.
        return math.floor(100 + self.clock + self.chance.uniform(0, SKEW)) if self.timed else self.sequence

    def commit(self, one: Transaction) -> None:
        self.open.remove(one)
        self.rows[one.key] = (one.cursor, one.version)

    def page(self, low: float | None, behind: tuple[int, int] | None, limit: int = 5) -> list[tuple[int, int, int]]:
        """(cursor, key, version) of so many rows."""
        self.goes_on()
        found = sorted((c, k, v) for k, (c, v) in self.rows.items() if low is None or c >= low)
        return [row for row in found if behind is None or row[:2] > behind][:limit]


def polled(table: Table, low: float | None, seen: dict[int, int]) -> int | None:
    """Read all pages from a cursor on into `seen`; the highest cursor."""
    behind: tuple[int, int] | None = None
    while page := table.page(low, behind):
        seen.update({key: version for _, key, version in page})
        behind = page[-1][:2]
    return behind[0] if behind else None


def careful(table: Table, rounds: int) -> dict[int, int]:
    mark, seen = LowMark(overlap=SKEW if table.timed else 0.0), dict[int, int]()
    for _ in range(rounds):
        began, oldest = table.clock, min((t.started for t in table.open), default=None)
        high = polled(table, low_of(mark), seen)
        mark.polled(began, oldest, table.clock, high)
        table.goes_on()
    table.end()
    polled(table, low_of(mark), seen)
    return seen


def low_of(mark: LowMark) -> float | None:
    """From where to read: rows of a mark that is spent are not read again."""
    low: float | None = mark.value
    return low + 0.5 if low is not None and mark.spent else low


def naive(table: Table, rounds: int) -> dict[int, int]:
    """What pollers commonly do: on behind the last cursor seen."""
    low, seen = 0, dict[int, int]()
    for _ in range(rounds):
        low = (polled(table, low + 1, seen) or low) if low else (polled(table, None, seen) or 0)
        table.goes_on()
    table.end()
    polled(table, low + 1, seen)
    return seen


def versions(table: Table) -> dict[int, int]:
    return {key: version for key, (_, version) in table.rows.items()}


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("timed", [False, True], ids=["sequence", "seconds"])
def test_no_commit_is_missed(seed: int, timed: bool) -> None:
    table = Table(seed, timed=timed)
    assert careful(table, 60) == versions(table)


def test_a_naive_poller_misses_some() -> None:
    missed = 0
    for seed in range(20):
        table = Table(seed)
        seen = naive(table, 60)
        missed += sum(seen.get(k) != v for k, v in versions(table).items())
    assert missed > 20


def test_it_comes_on_behind_what_was_read() -> None:
    """All is not read again for ever."""
    mark = LowMark(overlap=10.0)
    for second in range(100):
        mark.polled(second, None, second + 0.1, 1000 + second)
    assert mark.value == 1088
    for second in range(100, 200):
        mark.polled(second, 150.0, second + 0.1, 1000 + second)
    assert mark.value == 1139


def test_rows_of_one_cursor_are_not_read_for_ever() -> None:
    mark = LowMark(overlap=2.0)
    for second in range(8):
        mark.polled(second, None, second + 0.1, 1000)
    assert (mark.value, mark.spent) == (1000, True)
    mark.polled(8, None, 8.1, None)
    assert mark.spent
    mark.polled(9, None, 9.1, 1001)
    for second in range(10, 13):
        mark.polled(second, None, second + 0.1, None)
    assert (mark.value, mark.spent) == (1001, False)


def test_rows_of_one_cursor_are_read_while_a_transaction_may_write_more() -> None:
    mark = LowMark(overlap=2.0)
    for second in range(20):
        mark.polled(second, 4.0, second + 0.1, 1000)
    assert (mark.value, mark.spent) == (1000, False)


def test_after_a_clock_was_set_back_rows_of_the_low_mark_are_read_again() -> None:
    mark = LowMark(overlap=2.0)
    for second in range(20):
        mark.polled(second, None, second + 0.1, 1000)
    mark.polled(10, None, 10.1, None)
    assert (mark.value, mark.spent) == (1000, False)


def test_a_clock_that_was_set_back_is_waited_for() -> None:
    mark = LowMark(overlap=1.0)
    for second in range(10):
        mark.polled(second, None, second, second)
    assert mark.value == 7
    mark.polled(3.0, None, 3.0, 9)
    for second in (4, 5):
        mark.polled(second, None, second, second)
    assert mark.value == 9
