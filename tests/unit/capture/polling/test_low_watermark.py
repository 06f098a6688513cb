"""No commit is missed: simulated transactions that draw a cursor, commit in any order, while polls read in pages."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest

from penstock.capture.polling.low_watermark import LowWatermark
from penstock.capture.source.open_transactions import ServerSession, TransactionTracker
from tests.support.random_cases import seeds


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
    mark, seen = LowWatermark(overlap=SKEW if table.timed else 0.0), dict[int, int]()
    for _ in range(rounds):
        began, oldest = table.clock, min((t.started for t in table.open), default=None)
        high = polled(table, low_of(mark), seen)
        mark.poll_ended(began, oldest, table.clock, high)
        table.goes_on()
    table.end()
    polled(table, low_of(mark), seen)
    return seen


def low_of(mark: LowWatermark) -> float | None:
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


@pytest.mark.parametrize("seed", seeds(40, 200))
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
    mark = LowWatermark(overlap=10.0)
    for second in range(100):
        mark.poll_ended(second, None, second + 0.1, 1000 + second)
    assert mark.value == 1088
    for second in range(100, 200):
        mark.poll_ended(second, 150.0, second + 0.1, 1000 + second)
    assert mark.value == 1139


def test_rows_of_one_cursor_are_not_read_for_ever() -> None:
    mark = LowWatermark(overlap=2.0)
    for second in range(8):
        mark.poll_ended(second, None, second + 0.1, 1000)
    assert (mark.value, mark.spent) == (1000, True)
    mark.poll_ended(8, None, 8.1, None)
    assert mark.spent
    mark.poll_ended(9, None, 9.1, 1001)
    for second in range(10, 13):
        mark.poll_ended(second, None, second + 0.1, None)
    assert (mark.value, mark.spent) == (1001, False)


def test_rows_of_one_cursor_are_read_while_a_transaction_may_write_more() -> None:
    mark = LowWatermark(overlap=2.0)
    for second in range(20):
        mark.poll_ended(second, 4.0, second + 0.1, 1000)
    assert (mark.value, mark.spent) == (1000, False)


def test_after_a_clock_was_set_back_rows_of_the_low_mark_are_read_again() -> None:
    mark = LowWatermark(overlap=2.0)
    for second in range(20):
        mark.poll_ended(second, None, second + 0.1, 1000)
    mark.poll_ended(10, None, 10.1, None)
    assert (mark.value, mark.spent) == (1000, False)


def test_a_clock_that_was_set_back_is_waited_for() -> None:
    mark = LowWatermark(overlap=1.0)
    for second in range(10):
        mark.poll_ended(second, None, second, second)
    assert mark.value == 7
    mark.poll_ended(3.0, None, 3.0, 9)
    for second in (4, 5):
        mark.poll_ended(second, None, second, second)
    assert mark.value == 9


# Engines that show a transaction late


@dataclass
class Writer:
    """One who draws a cursor when his statement begins, waits, touches his row, and commits. shown: when he touched it,
    None before."""

    name: str
    began: float
    touches: float
    commits: float
    shown: float | None = None


class Server:
    """A clock, and writers of rows whose cursors are the time at which their statements began."""

    def __init__(self, seed: int) -> None:
        self.chance, self.clock, self.writers = random.Random(seed), 0.0, list[Writer]()
        self.rows: dict[str, float] = {}
        self.look = TransactionTracker()

    def passes(self, seconds: float) -> None:
        until = self.clock + seconds
        while self.clock < until:
            self.clock += 0.05
            if self.chance.random() < 0.05:
                touches = self.clock + self.chance.choice((0.0, 0.0, 0.3, 4.0, 8.0))
                commits = touches + self.chance.choice((0.0, 0.2, 3.0, 9.0))
                self.writers.append(Writer(f"{len(self.writers)}", self.clock, touches, commits))
            for one in self.writers:
                if one.touches <= self.clock:
                    one.shown = one.touches
                if one.commits <= self.clock:
                    self.rows[one.name] = one.began

    def looked(self) -> tuple[float, float | None]:
        """As an engine shows it: a statement by its beginning while it runs without a row, else only the row."""
        still = [one for one in self.writers if one.name not in self.rows]
        shown = [ServerSession(one.began if one.shown is None else one.shown, one.name, one.shown) for one in still]
        moment = self.look.taken(self.clock, shown)
        self.passes(self.chance.choice((0.0, 0.05)))
        return moment.now, moment.oldest


def missed(seed: int, *, looks: bool) -> int:
    """How many rows polls far apart missed. looks: there is a look behind a poll's end where it is needed."""
    server, mark, seen = Server(seed), LowWatermark(overlap=1.5), set[str]()

    def read() -> float | None:
        found = {name: c for name, c in server.rows.items() if mark.value is None or c >= mark.value}
        seen.update(found)
        return max(found.values(), default=None)

    for _ in range(60):
        began, oldest = server.looked()
        high = None
        for _ in range(server.chance.choice((1, 1, 8))):
            server.passes(server.chance.choice((0.05, 0.5)))
            high = read()
        ended = server.clock
        at = server.looked()[0] if looks and mark.needs_look else None
        mark.poll_ended(began, oldest, ended, high)
        if not looks:
            mark.observed(ended)
        elif at is not None:
            mark.observed(at)
        server.passes(server.chance.choice((0.05, 1.0, 10.0)))
    assert server.clock - (mark.value or 0.0) < 90, "it comes on"
    server.rows.update({one.name: one.began for one in server.writers})
    read()
    return len(server.rows.keys() - seen)


def test_statements_that_waited_before_they_were_shown_are_not_missed() -> None:
    assert sum(missed(seed, looks=True) for seed in seeds(20, 60)) == 0


def test_without_a_look_behind_each_poll_some_are_missed() -> None:
    assert any(missed(seed, looks=False) for seed in range(60))
