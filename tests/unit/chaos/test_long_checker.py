"""The checker of the long chaos run sees what is lost, doubled, late twice or gone back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.long.checker import KEEP_LATE, READ_EVENTS, STREAMS, Checker
from tests.chaos.long.topics import CommittedRecord

AT, HORIZON = 1_800_000_000_000, 1_800_000_020_000
LEDGER = [(1, {"version": 3}), (2, {"version": 1}), (2, None)]
Contents = dict[str, list[CommittedRecord]]


def record(offset: int, key: Any, value: Any, headers: dict[str, str] | None = None, at: int = AT) -> CommittedRecord:
    def encoded(given: Any) -> bytes | None:
        return given.encode() if isinstance(given, str) else None if given is None else json.dumps(given).encode()

    return CommittedRecord(0, offset, at, encoded(key), encoded(value), headers or {})


def event(number: int, at: int = AT) -> dict[str, Any]:
    return {"id": number, "k": "a", "g": "g", "v": 4, "name": "n", "seen": 1, "at": at}


def told(offset: int, stream: str, why: str) -> dict[str, str]:
    named = {"topic": "events", "partition": "0", "offset": str(offset), "stream": stream, why: "so"}
    return {f"penstock.{name}": text for name, text in named.items()}


def whole() -> Contents:
    """Two events, one of them late, one that is none, and all that must come of them."""
    late = event(2, AT - 3_600_000)
    sums = record(0, {"k": "a", "start": AT}, {"n": 1, "total": 4})
    return {
        "events": [record(0, "1", event(1)), record(1, "bad-text-1", "x"), record(2, "2", late)],
        "pays": [record(0, "1", {"of": 1, "amount": 9, "at": AT + 10_000})],
        "names": [record(0, "n", {"version": 1}, {"kind": "change"}), record(1, "n", {"version": 2})],
        "wild-0": [record(0, None, "x")],
        "named": [record(n, n, {"v": 4, "name": "n", "seen": 1, "version": n}) for n in (1, 2)],
        "even": [record(0, 1, 4), record(1, 2, 4)],
        "totals": [sums],
        "finals": [sums],
        "once": [record(0, AT, 1)],
        "joined": [record(0, 1, {"v": 4, "amount": 9})],
        "timed": [record(0, "g", {"n": 1, "total": 4})],
        "wilds": [record(0, {"topic": "wild-0", "start": AT}, 1)],
        "events-dead-letter": [record(0, "bad-text-1", "x", told(1, s, "reason")) for s in READ_EVENTS],
        **{f"{s}-late": [record(0, "2", late, told(2, s, "late-ms"))] for s in KEEP_LATE},
        "ledger": [record(n, {"id": i}, v) for n, (i, v) in enumerate(LEDGER)],
    }  # fmt: skip


class Given:
    """Stands for the topics of a broker."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def read(self, topic: str) -> list[CommittedRecord]:
        return self._contents.get(topic, [])

    def names(self) -> set[str]:
        return set(self._contents)


def mistakes(contents: Contents) -> list[str]:
    checker = Checker.__new__(Checker)
    checker.topics, checker.streams = Given(contents), STREAMS  # type: ignore[assignment]
    return checker.mistakes(HORIZON, {1: 3})


def test_what_is_as_it_must_be_is_no_mistake() -> None:
    assert mistakes(whole()) == []


OUTPUTS = sorted(whole().keys() - {"events", "pays", "names", "wild-0"})


@pytest.mark.parametrize("topic", OUTPUTS)
def test_a_record_that_is_missing_is_found(topic: str) -> None:
    contents = whole()
    contents[topic].pop()
    found = mistakes(contents)
    assert [text.partition(":")[0] for text in found] == [topic]


@pytest.mark.parametrize("topic", sorted(set(OUTPUTS) - {"totals", "wilds", "ledger"}))
def test_a_record_that_is_there_twice_is_found(topic: str) -> None:
    contents = whole()
    contents[topic].append(contents[topic][-1])
    found = mistakes(contents)
    assert found
    assert all(text.startswith((f"{topic}: 1 too many", f"{topic}, twice: 1")) for text in found)


def back(contents: Contents) -> None:
    contents["totals"].insert(0, record(0, {"k": "a", "start": AT}, {"n": 2, "total": 8}))


def older(contents: Contents) -> None:
    contents["events"][0] = record(0, "1", {**event(1), "seen": 2})
    contents["named"][0] = record(0, 1, {"v": 4, "name": "n", "seen": 2, "version": 1})


def other(contents: Contents) -> None:
    contents["finals"][0] = record(0, {"k": "a", "start": AT}, {"n": 1, "total": 5})


def version(contents: Contents) -> None:
    contents["ledger"].insert(0, record(9, {"id": 1}, {"version": 4}))


@pytest.mark.parametrize("change", [back, older, other, version])
def test_a_value_that_is_older_or_another_is_found(change: Callable[[Contents], None]) -> None:
    contents = whole()
    change(contents)
    assert mistakes(contents)
