"""A batch given to a store that waits, or refuses some of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from penstock.engine.commit.dead_letter_index import DeadLetterIndex
from penstock.engine.commit.delivery import BatchDelivery, OutputStore
from penstock.engine.commit.reject_budget import RejectBudget
from penstock.errors import Blocked, Refused, Wait
from penstock.model.output import NO_COMMIT, CommitMarker
from penstock.model.topic import DEAD_LETTERS
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from tests.support.outputs import Heap

OUT = TopicOutput(Topic("out"), value="value")
MARK = CommitMarker("q", 1, {})


def rows(*values: str) -> dict[str, pa.Table]:
    given = [value.encode() for value in values]
    return {"out": pa.table({"key": pa.nulls(len(given), pa.binary()), "value": pa.array(given, pa.binary())})}


@dataclass
class Writer:
    """says: what it answers, one after the other; then it takes what it is given."""

    says: list[Exception] = field(default_factory=list)
    taken: list[list[bytes | None]] = field(default_factory=list)

    def committed(self) -> CommitMarker:
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:
        assert mark == MARK
        self.taken.append(rows["out"]["value"].to_pylist())
        if self.says:
            raise self.says.pop(0)
        return len(self.taken[-1])

    def close(self) -> None: ...


@dataclass
class Given:
    """One batch given to a store; stood: why its stream stood still, in words."""

    writer: Writer
    marked: bool = True
    stood: list[str] = field(default_factory=list)
    beside: dict[str, pa.Table] = field(default_factory=dict)
    waits: int = 0
    answered: bool = False

    def give(self, *values: str) -> int:
        stream = Stream("s", "a", {"rows": Input(Topic("in"))}, lambda rows: rows, OUT, Stateless(), max_poison=2)
        stood = self.stood
        giving = BatchDelivery(
            stream, "", threading.Event(), lambda why: stood.append(getattr(why, "what", "")), RejectBudget(stream)
        )
        store = OutputStore([OUT] if self.marked else [Named()], self.writer, NO_COMMIT)
        refused = giving.deliver(store, rows(*values), self.beside, MARK, DeadLetterIndex(stream, "", None))
        self.waits, self.answered = giving.waits, giving.answered_at is not None
        return refused


class Named(Heap):
    """A store without marks under the same name."""

    @property
    def name(self) -> str:
        return "out"


def test_a_wait_is_told_and_its_end() -> None:
    given = Given(Writer([Wait("away", seconds=0), Wait("busy", seconds=0)]))
    assert given.give("a") == 0
    assert given.stood == ["away", "busy", ""]
    assert given.writer.taken == [[b"a"]] * 3
    assert (given.waits, given.answered) == (2, False), "of a store with marks nobody asks when it answered"


@pytest.mark.parametrize(("written", "taken"), [(None, [[b"a", b"b"], [b"a"]]), (1, [[b"a", b"b"]])])
def test_what_is_refused_is_put_aside_and_the_rest_given_again_unless_it_is_written(
    written: int | None, taken: list[list[bytes]]
) -> None:
    given = Given(Writer([Refused("no", rows={"out": {1: "too large"}}, written=written)]))
    assert given.give("a", "b") == 1
    assert given.writer.taken == taken
    (letter,) = given.beside[DEAD_LETTERS.name].to_pylist()
    assert (letter["value"], dict(letter["headers"])["penstock.reason"]) == (b"b", b"too large")


def test_only_what_stops_the_rest_is_bounded() -> None:
    """A store that has taken all others goes on, however many documents it refuses."""
    why = {"out": dict.fromkeys(range(3), "too large")}
    assert Given(Writer([Refused("no", rows=why, written=1)])).give("a", "b", "c", "d") == 3
    given = Given(Writer([Refused("no", rows=why)]))
    with pytest.raises(Blocked, match="more than 2, the first: too large"):
        given.give("a", "b", "c", "d")
    assert not given.beside


def test_a_wait_ends_also_where_all_that_is_left_is_refused() -> None:
    refused = Refused("no", rows={"out": {0: "too large"}})
    given = Given(Writer([Wait("away", seconds=0), refused]), marked=False)
    assert given.give("a") == 1
    assert given.stood == ["away", ""]
    assert not given.answered, "it took nothing"
    assert given.give("a") == 0
    assert given.answered


def test_a_store_without_marks_is_not_asked_for_nothing() -> None:
    given = Given(Writer([Wait("away", seconds=0)]), marked=False)
    assert given.give() == 0
    assert (given.writer.taken, given.stood, given.answered) == ([], [], False)


@pytest.mark.parametrize("asks", [False, True])
def test_only_who_asks_for_it_is_given_a_batch_without_rows(monkeypatch: pytest.MonkeyPatch, *, asks: bool) -> None:
    monkeypatch.setattr(Named, "empty_batches", asks)
    given = Given(Writer(), marked=False)
    assert given.give() == 0
    assert given.writer.taken == ([[]] if asks else [])
