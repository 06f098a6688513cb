"""No commit is missed: simulated transactions that draw a cursor, commit in any order, while polls read in pages."""

from __future__ import annotations

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


class Table:
    """A table of versions by key, a clock, and transactions that draw cursors from a sequence while they are open."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
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
                self.sequence += 1
                version = self.rows.get(key, (0, 0))[1] + 1
                self.open.append(Transaction(started, key, self.sequence, version))
        for one in list(self.open):
            if self.chance.random() < 0.2:
                self.commit(one)

    def commit(self, one: Transaction) -> None:
        self.open.remove(one)
        self.rows[one.key] = (one.cursor, one.version)

    def page(self, low: int | None, behind: tuple[int, int] | None, limit: int = 5) -> list[tuple[int, int, int]]:
        """(cursor, key, version) of so many rows."""
        self.goes_on()
        found = sorted((c, k, v) for k, (c, v) in self.rows.items() if low is None or c >= low)
        return [row for row in found if behind is None or row[:2] > behind][:limit]


def polled(table: Table, low: int | None, seen: dict[int, int]) -> int | None:
    """Read all pages from a cursor on into `seen`; the highest cursor."""
    behind: tuple[int, int] | None = None
    while page := table.page(low, behind):
        seen.update({key: version for _, key, version in page})
        behind = page[-1][:2]
    return behind[0] if behind else None


def careful(table: Table, rounds: int) -> dict[int, int]:
    mark, seen = LowMark(overlap=0.0), dict[int, int]()
    for _ in range(rounds):
        began, oldest = table.clock, min((t.started for t in table.open), default=None)
        high = polled(table, mark.value, seen)
        mark.polled(began, oldest, table.clock, high)
        table.goes_on()
    table.end()
    polled(table, mark.value, seen)
    return seen


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
def test_no_commit_is_missed(seed: int) -> None:
    table = Table(seed)
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
    assert mark.value == 1149


def test_a_clock_that_was_set_back_is_waited_for() -> None:
    mark = LowMark(overlap=1.0)
    for second in range(10):
        mark.polled(second, None, second, second)
    assert mark.value == 7
    mark.polled(3.0, None, 3.0, 9)
    for second in (4, 5):
        mark.polled(second, None, second, second)
    assert mark.value == 9
