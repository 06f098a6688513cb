"""Which rows are put aside, what is told of them, and until when they count."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.capture.output.encode import Unreadable
from penstock.capture.output.oversized_rows import SCHEMA, OversizedRows
from penstock.capture.output.page_records import PageRecords, records
from penstock.capture.reconcile.index_file import IndexFile
from penstock.capture.source.base import SourcePage
from penstock.kafka.limits import SizeLimit
from penstock.model.capture import parse
from tests.support.captures import polled, until
from tests.support.captures_in_memory import QUICK, poller_of

CAPTURE = parse("CAPTURE INTO out FROM sqlite x KEY id CURSOR c AS SELECT * FROM t", Path("shop.sql"))
NOISE = random.Random(7).randbytes(10_000)
LARGE, OTHER, SMALL = NOISE, NOISE[::-1], b"small"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[IndexFile]:
    with closing(IndexFile(tmp_path / "index.db", SCHEMA)) as made:
        yield made


def opened(db: IndexFile, largest: int = 5_000) -> OversizedRows:
    return OversizedRows(db, CAPTURE, SizeLimit("out", largest))


def given(**values: bytes | None) -> PageRecords:
    return PageRecords([key.encode() for key in values], list(values.values()))


def test_what_is_too_large_becomes_a_tombstone_and_a_letter(db: IndexFile) -> None:
    aside = opened(db)
    assert aside.filter(given(a=SMALL, b=LARGE, c=None), 1) == given(a=SMALL, b=None, c=None)
    [letter] = aside.dead_letters
    said = dict(letter.headers)
    assert (letter.topic, letter.key, said["penstock.stream"], said["penstock.output"]) == (
        "penstock.dead-letters", b"b", b"shop", b"out",
    )  # fmt: skip
    assert said["penstock.reason"] == b"its record is larger than its topic takes: 10,001 bytes"


def test_what_is_compressed_enough_is_no_large_row(db: IndexFile) -> None:
    aside = opened(db)
    assert aside.filter(given(a=b"x" * 10_000), 1) == given(a=b"x" * 10_000)
    assert aside.dead_letters == []


def test_each_version_of_a_row_is_told_once_also_by_the_next_process(db: IndexFile) -> None:
    aside = opened(db)
    aside.filter(given(a=LARGE), 1)
    assert len(aside) == 0, "nothing is committed yet"
    aside.mark_committed()
    assert (len(aside), aside.first) == (1, b"a")
    for again in (aside, opened(db)):
        assert again.filter(given(a=LARGE), 1) == given(a=None)
        assert (again.dead_letters, len(again)) == ([], 1)
    aside.filter(given(a=OTHER), 1)
    assert len(aside.dead_letters) == 1


def test_what_is_not_told_yet_is_kept_until_it_is_or_fits(db: IndexFile) -> None:
    aside = opened(db)
    aside.filter(given(a=LARGE), 1)
    aside.filter(given(b=LARGE, c=SMALL), 1)
    assert [letter.key for letter in aside.dead_letters] == [b"a", b"b"]
    aside.filter(given(a=SMALL), 1)
    assert [letter.key for letter in aside.dead_letters] == [b"b"]


@pytest.mark.parametrize("value", [SMALL, None], ids=["small", "deleted"])
def test_a_row_that_fits_again_is_no_longer_aside(db: IndexFile, value: bytes | None) -> None:
    aside = opened(db)
    aside.filter(given(a=LARGE, b=LARGE), 1)
    aside.mark_committed()
    assert aside.filter(given(a=value), 1) == given(a=value)
    assert (len(aside), opened(db).first) == (1, b"b")


def test_rows_that_a_comparison_did_not_meet_are_gone(db: IndexFile) -> None:
    aside = opened(db)
    aside.filter(given(a=LARGE, b=LARGE), 1)
    aside.mark_committed()
    aside.filter(given(b=LARGE), 2)
    opened(db).forget_unmet(2)
    assert (len(opened(db)), opened(db).first) == (1, b"b")


def test_a_topic_that_takes_more_is_worth_a_look(db: IndexFile) -> None:
    aside = opened(db)
    aside.filter(given(a=LARGE), 1)
    aside.mark_committed()
    assert not opened(db).may_fit_now
    raised = opened(db, 6_000)
    assert raised.may_fit_now
    raised.filter(given(a=LARGE), 1)
    assert not raised.may_fit_now, "it is still too large"


def test_a_letter_of_a_long_row_is_cut(db: IndexFile) -> None:
    aside = opened(db)
    aside.filter(given(a=LARGE * 10), 1)
    [letter] = aside.dead_letters
    assert letter.size <= 64 * 1024
    assert dict(letter.headers)["penstock.cut"] == b"value"


def test_a_text_that_is_no_utf_8_stops_no_other_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.db"
    with closing(sqlite3.connect(file)) as c, c:
        c.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, c INT, name TEXT)")
        c.execute("INSERT INTO t VALUES (1, 1, 'one'), (2, 1, CAST(x'61ff' AS TEXT)), (3, 1, 'three')")
    monkeypatch.setenv("AIRFLOW_CONN_X", f"sqlite:///{file}")
    monkeypatch.setattr("penstock.capture.session.ensure_topics", lambda *_: None)
    monkeypatch.setattr("penstock.capture.polling.cursors.LEAST_OVERLAP", timedelta(0))
    poller = poller_of(f"CAPTURE INTO t FROM sqlite x KEY (id) CURSOR c {QUICK} AS SELECT * FROM t", tmp_path)
    until(poller, lambda: poller.metrics.polls > 1, "polls")
    kept: Any = poller.session.output
    assert kept.rows == {b'{"id":1}': b'{"id":1,"c":1,"name":"one"}', b'{"id":3}': b'{"id":3,"c":1,"name":"three"}'}
    assert (kept.letters, len(poller.session.oversized), poller.metrics.dead_letters) == ([b'{"id":2}'], 1, 1)
    with closing(sqlite3.connect(file)) as c, c:
        c.execute("UPDATE t SET c = 2, name = 'two' WHERE id = 2")
    polled(poller)
    assert kept.rows[b'{"id":2}'] == b'{"id":2,"c":2,"name":"two"}'
    assert len(poller.session.oversized) == 0
    poller.close()


def test_a_text_that_is_no_utf_8_says_its_column_and_what_to_do() -> None:
    page = SourcePage((("id", ""), ("name", "")), [(1, "a"), (2, Unreadable(b"a\xff"))])
    made = records(parse("CAPTURE INTO t FROM sqlite x KEY (id) CURSOR id AS SELECT * FROM t", Path("t.sql")), page)
    assert made.values == [b'{"id":1,"name":"a"}', b'{"id":2,"name":"a\\\\xff"}']
    assert list(made.unreadable) == [b'{"id":2}']
    assert "column name is text with bytes that are invalid in its encoding: a\\xff; " in made.unreadable[b'{"id":2}']
