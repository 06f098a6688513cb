"""A store that does not answer is waited for without holding anybody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.commit import async_writer
from penstock.engine.commit.async_writer import AsyncStoreWriter, writer_counts
from penstock.errors import LeaseLost, SinkError, Wait
from penstock.model.output import NO_COMMIT, CommitMarker, WriterOwner
from tests.support.outputs import Heap
from tests.support.wait import wait_until

ROWS = {"heap": pa.table({"n": [1, 2]})}
FIRST, SECOND = (CommitMarker("q", n, {}) for n in (1, 2))


@dataclass
class Counts:
    conflicts: int = 0


@dataclass
class Store:
    """opened, written: what is done there, in the place of nothing."""

    opens: list[Store] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    closed: int = 0
    opened: Callable[[], None] = lambda: None
    written: Callable[[], None] = lambda: None
    told: list[str] = field(default_factory=list)
    counters: Counts = field(default_factory=Counts)
    leave: threading.Event = field(default_factory=threading.Event)

    def tell(self, why: Exception | None) -> None:
        self.told.append(str(why))

    def committed(self) -> CommitMarker:
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:
        self.written()
        self.batches.append(mark.batch)
        return sum(map(len, rows.values()))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store()

    def open_store(*_: object) -> Store:
        made.opened()
        made.opens.append(made)
        return made

    monkeypatch.setattr(async_writer, "open_store", open_store)
    for name in ("ANSWER_TIMEOUT_S", "MAX_REOPEN_WAIT_S", "STOP_GRACE_S"):
        monkeypatch.setattr(async_writer, name, 0.1)
    monkeypatch.setattr(async_writer, "POLL_S", 0.01)
    yield made
    made.leave.set()


def patient(store: Store) -> AsyncStoreWriter:
    return AsyncStoreWriter([Heap()], WriterOwner("s", "g", ""), store.leave, store.tell)


def waits(made: AsyncStoreWriter, said: str, mark: CommitMarker = FIRST) -> None:
    with pytest.raises(Wait, match=said):
        made.write(ROWS, mark)


def test_a_batch_without_an_answer_is_waited_for_and_not_given_twice(store: Store) -> None:
    hangs = threading.Event()
    store.written = lambda: _until(hangs)
    made = patient(store)
    waits(made, "heap has not answered for a batch of 2 rows")
    waits(made, "has not answered")
    hangs.set()
    assert made.write(ROWS, FIRST) == 2
    assert made.write(ROWS, SECOND) == 2
    assert (store.batches, len(store.opens)) == ([1, 2], 1)


def test_the_same_batch_is_given_again_once_it_was_answered(store: Store) -> None:
    answers: list[Exception] = [Wait("busy", seconds=0), SinkError("broken")]

    def written() -> None:
        if answers:
            raise answers.pop(0)

    store.written, store.counters = written, Counts(5)
    made = patient(store)
    waits(made, "busy")
    with pytest.raises(SinkError, match="broken"):
        made.write(ROWS, FIRST)
    assert made.write(ROWS, FIRST) == 2
    assert made.counters == {"conflicts": 5}
    made.close()
    assert (writer_counts(made), writer_counts(None)) == ({"conflicts": 5}, {})


@pytest.mark.parametrize("where", ["opened", "written"])
def test_what_never_answers_is_opened_anew(store: Store, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the old writer ends late does no harm, and a store that is opened too late is closed."""
    hangs, stuck = threading.Event(), [1]

    def once() -> None:
        if stuck:
            stuck.pop()
            _until(hangs)

    setattr(store, where, once)
    made = patient(store)
    waits(made, "is not open yet" if where == "opened" else "has not answered")
    monkeypatch.setattr(async_writer, "REOPEN_AFTER_S", 0.0)
    waits(made, "and is opened again")
    monkeypatch.setattr(async_writer, "REOPEN_AFTER_S", 600.0)
    assert made.write(ROWS, FIRST) == 2
    hangs.set()
    wait_until(lambda: store.closed == 1, what="the one that came late is closed")
    assert made.write(ROWS, SECOND) == 2


def test_a_store_that_is_away_from_the_start_is_told_of_without_a_batch(store: Store) -> None:
    away: list[Exception] = [Wait("nobody there", seconds=0.01), SinkError("no such user")]

    def opened() -> None:
        if away:
            raise away[0]

    store.opened = opened
    made = patient(store)
    wait_until(lambda: any("nobody there" in said for said in store.told), what="it is told")
    waits(made, "nobody there")
    away.pop(0)
    wait_until(lambda: any("no such user" in said for said in store.told), what="that is told too")
    with pytest.raises(SinkError, match="no such user"):
        made.write(ROWS, FIRST)
    away.clear()
    wait_until(lambda: store.told[-1] == "None", what="it is open")
    assert made.write(ROWS, FIRST) == 2


def test_a_stop_leaves_what_hangs(store: Store) -> None:
    hangs = threading.Event()
    store.written = lambda: _until(hangs)
    made = patient(store)
    waits(made, "has not answered")
    store.leave.set()
    waits(made, "has not answered")
    made.close()
    assert store.closed == 1
    hangs.set()
    wait_until(lambda: store.batches == [1], what="the write ends by itself")


def test_a_store_that_opens_behind_the_end_is_closed(store: Store) -> None:
    hangs = threading.Event()
    store.opened = lambda: _until(hangs)
    made = patient(store)
    made.close()
    hangs.set()
    wait_until(lambda: store.closed == 1, what="it is closed")
    with pytest.raises((LeaseLost, Wait)):
        made.write(ROWS, FIRST)


def test_a_store_that_fails_to_open_behind_the_end_tells_nobody(store: Store) -> None:
    """The next run of the stream may have begun, with a writer of its own."""
    hangs = threading.Event()

    def opened() -> None:
        _until(hangs)
        raise Wait("nobody there", seconds=0.01)

    store.opened = opened
    made = patient(store)
    made.close()
    hangs.set()
    assert made._task.wait(20, store.leave), "its thread ends"
    assert store.told == []


def _until(event: threading.Event) -> Any:
    assert event.wait(20)
