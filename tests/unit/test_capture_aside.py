"""Which rows are put aside, what is told of them, and until when they count."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from penstock.capture.aside import SCHEMA, Aside
from penstock.capture.records import Records
from penstock.declare.capture import parse
from penstock.kafka.sizes import Limit

CAPTURE = parse("CAPTURE INTO out FROM sqlite x KEY id CURSOR c AS SELECT * FROM t", Path("shop.sql"))
NOISE = random.Random(7).randbytes(10_000)
LARGE, OTHER, SMALL = NOISE, NOISE[::-1], b"small"


@pytest.fixture
def db() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.executescript(SCHEMA)
    return made


def opened(db: sqlite3.Connection, largest: int = 5_000) -> Aside:
    return Aside(db, CAPTURE, Limit("out", largest))


def records(**values: bytes | None) -> Records:
    return Records([key.encode() for key in values], list(values.values()))


def test_what_is_too_large_becomes_a_tombstone_and_a_letter(db: sqlite3.Connection) -> None:
    aside = opened(db)
    assert aside.without(records(a=SMALL, b=LARGE, c=None), 1) == records(a=SMALL, b=None, c=None)
    [letter] = aside.letters
    said = dict(letter.headers)
    assert (letter.topic, letter.key, said["penstock.stream"], said["penstock.output"]) == (
        "penstock.aside", b"b", b"shop", b"out",
    )  # fmt: skip
    assert said["penstock.reason"] == b"its record is larger than its topic takes: 10,001 bytes"


def test_what_is_compressed_enough_is_no_large_row(db: sqlite3.Connection) -> None:
    aside = opened(db)
    assert aside.without(records(a=b"x" * 10_000), 1) == records(a=b"x" * 10_000)
    assert aside.letters == []


def test_each_version_of_a_row_is_told_once_also_by_the_next_process(db: sqlite3.Connection) -> None:
    aside = opened(db)
    aside.without(records(a=LARGE), 1)
    assert len(aside) == 0, "nothing is committed yet"
    aside.told()
    assert (len(aside), aside.first) == (1, b"a")
    for again in (aside, opened(db)):
        assert again.without(records(a=LARGE), 1) == records(a=None)
        assert (again.letters, len(again)) == ([], 1)
    aside.without(records(a=OTHER), 1)
    assert len(aside.letters) == 1


def test_what_is_not_told_yet_is_kept_until_it_is_or_fits(db: sqlite3.Connection) -> None:
    aside = opened(db)
    aside.without(records(a=LARGE), 1)
    aside.without(records(b=LARGE, c=SMALL), 1)
    assert [letter.key for letter in aside.letters] == [b"a", b"b"]
    aside.without(records(a=SMALL), 1)
    assert [letter.key for letter in aside.letters] == [b"b"]


@pytest.mark.parametrize("value", [SMALL, None], ids=["small", "deleted"])
def test_a_row_that_fits_again_is_no_longer_aside(db: sqlite3.Connection, value: bytes | None) -> None:
    aside = opened(db)
    aside.without(records(a=LARGE, b=LARGE), 1)
    aside.told()
    assert aside.without(records(a=value), 1) == records(a=value)
    assert (len(aside), opened(db).first) == (1, b"b")


def test_rows_that_a_comparison_did_not_meet_are_gone(db: sqlite3.Connection) -> None:
    aside = opened(db)
    aside.without(records(a=LARGE, b=LARGE), 1)
    aside.told()
    aside.without(records(b=LARGE), 2)
    opened(db).compared(2)
    assert (len(opened(db)), opened(db).first) == (1, b"b")


def test_a_topic_that_takes_more_is_worth_a_look(db: sqlite3.Connection) -> None:
    aside = opened(db)
    aside.without(records(a=LARGE), 1)
    aside.told()
    assert not opened(db).may_fit
    raised = opened(db, 6_000)
    assert raised.may_fit
    raised.without(records(a=LARGE), 1)
    assert not raised.may_fit, "it is still too large"


def test_a_letter_of_a_long_row_is_cut(db: sqlite3.Connection) -> None:
    aside = opened(db)
    aside.without(records(a=LARGE * 10), 1)
    [letter] = aside.letters
    assert letter.size <= 64 * 1024
    assert dict(letter.headers)["penstock.cut"] == b"value"
