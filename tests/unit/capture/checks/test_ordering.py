"""What SQLite, whose values have types of their own, is asked before a capture is paged; and keys turned back."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymysql.constants import FIELD_TYPE
from sqlalchemy import event, make_url

from penstock.capture.checks.column_types import mysql_ordering, postgres_ordering
from penstock.capture.checks.ordering import PagingVerifier
from penstock.capture.checks.paging_checks import PagingError, check_cursor_order
from penstock.capture.output import position
from penstock.capture.output.encode import encode
from penstock.capture.output.position import CatchUp, KeyRange, Position, SkippedTransactions, SnapshotProgress
from penstock.capture.polling.keyset_queries import PageQueries, SourceQuery
from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.capture.source.base import SourcePage
from penstock.capture.source.sqlite import SQLite
from penstock.model.capture import Capture, parse


@pytest.fixture
def database(tmp_path: Path) -> SQLite:
    return SQLite(make_url(f"sqlite:///{tmp_path / 'x.db'}"), timedelta(seconds=5))


def filled(database: SQLite, columns: str, rows: Sequence[Sequence[Any]] = (), more: str = "") -> None:
    with database._connected() as c:
        c.exec_driver_sql("DROP TABLE IF EXISTS t")
        c.exec_driver_sql(f"CREATE TABLE t ({columns}) {more}")
        for row in rows:
            c.exec_driver_sql(f"INSERT INTO t VALUES ({', '.join('?' * len(row))})", tuple(row))


def declared(select: str = "SELECT * FROM t", key: str = "id") -> Capture:
    return parse(f"CAPTURE INTO t FROM sqlite x KEY ({key}) CURSOR c AS {select}", Path("t.sql"))


def proven(database: SQLite, capture: Capture | None = None) -> PagingVerifier:
    made = PagingVerifier(capture or declared(), database)
    made.verify()
    return made


UNFIT = [
    ("id PRIMARY KEY, c INT", [(1, 1), ("x", 2), (b"y", 3)], r"values of several types; got: id: blob and number"),
    ("id INT UNIQUE NOT NULL, c", [(1, 1), (2, "x")], r"values of several types; got: c: number and text"),
    ("id INT UNIQUE NOT NULL, c REAL", [(1, 1.5), (2, math.inf)], r"c that has no place in its order; got: inf"),
    ("id INT PRIMARY KEY, c TEXT COLLATE NOCASE", [(1, "2026T1"), (2, "2026t2")], r"type text; got: c: its collation"),
    ("id INT PRIMARY KEY, c TEXT COLLATE RTRIM", [(1, "2026"), (2, "2027")], r"type text; got: c: its collation"),
    ("id INT, c INT", [(1, 1), (1, 2), (2, 3)], r"KEY that is not unique; got: 2 rows of one id"),
    ("id INT UNIQUE, c INT", [(1, 1), (None, 2)], r"a row without a key; got: NULL in id"),
    # Its index tells them apart, and the order by which it is paged does not.
    ("id TEXT COLLATE NOCASE, c INT", [("a", 1), ("A", 2)], r"KEY that is not unique; got: 2 rows of one id"),
]


@pytest.mark.parametrize(("columns", "rows", "message"), UNFIT)
def test_what_cannot_be_paged_is_refused(database: SQLite, columns: str, rows: list[Any], message: str) -> None:
    filled(database, columns, rows)
    with database._connected() as c:
        c.exec_driver_sql("CREATE INDEX other ON t (id COLLATE BINARY)")
    for select in ("SELECT * FROM t", "SELECT s.* FROM (SELECT * FROM t) AS s"):
        with pytest.raises(PagingError, match=f"capture t .*{message}.*hint: "):
            proven(database, declared(select))


FIT = [
    ("id INTEGER PRIMARY KEY, c TEXT", [(i, f"2026-01-0{i}") for i in range(1, 9)], int, ""),
    ("id TEXT COLLATE NOCASE PRIMARY KEY NOT NULL, c INT", [("a", 1), ("B", 2), ("c", 3)], str, ""),
    ("id TEXT COLLATE RTRIM PRIMARY KEY, c INT", [("a", 1), ("B ", 2)], str, "WITHOUT ROWID"),
    ("id NOT NULL UNIQUE, c INT", [(1, 1), (2.5, 2), (3, 3)], int, ""),
    ("id BLOB NOT NULL UNIQUE, c REAL", [(b"\x00", 1.5), (b"", 2), (b"\xff\x00", 1e300)], bytes, ""),
    ("id INT NOT NULL UNIQUE, c INT", [(1, None), (2, None)], int, ""),
]


@pytest.mark.parametrize(("columns", "rows", "kind", "more"), FIT)
def test_what_can_be_paged_is_proven_by_an_index(
    database: SQLite, columns: str, rows: list[Any], kind: type, more: str
) -> None:
    filled(database, columns, rows, more)
    found = proven(database)
    assert found.types == {"id": kind}
    assert found.notes == []


@pytest.mark.parametrize(
    ("columns", "index"),
    [
        ("id INT NOT NULL, c INT", "CREATE UNIQUE INDEX i ON t (id) WHERE id > 0"),
        ("id INT NOT NULL, c INT", "CREATE UNIQUE INDEX i ON t (id, c)"),
        ("id TEXT NOT NULL, c INT", "CREATE UNIQUE INDEX i ON t (id COLLATE NOCASE)"),
        ("id TEXT, c INT, PRIMARY KEY (id)", "CREATE INDEX i ON t (c)"),
    ],
)
def test_an_index_that_proves_nothing_is_told(database: SQLite, columns: str, index: str) -> None:
    filled(database, columns, [("1", 1), ("2", 2)])
    with database._connected() as c:
        c.exec_driver_sql(index)
    [note] = proven(database).notes
    assert "no index that is unique and NOT NULL proves that KEY (id) tells rows apart" in note


def test_a_join_is_asked_for_its_keys(database: SQLite) -> None:
    filled(database, "id INTEGER PRIMARY KEY, c INT", [(1, 1), (2, 2)])
    with database._connected() as c:
        c.exec_driver_sql("CREATE TABLE other (id INT)")
    joined = declared("SELECT t.id, t.c FROM t JOIN other ON other.id <= t.id")
    assert len(proven(database, joined).notes) == 1
    with database._connected() as c:
        c.exec_driver_sql("INSERT INTO other VALUES (1), (2)")
    with pytest.raises(PagingError, match="KEY that is not unique; got: 2 rows of one id"):
        proven(database, joined)


FROM_VIEW = declared("SELECT id, c FROM v")


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ("CREATE VIEW v AS SELECT random() AS id, c FROM t", "got: rows are not found by their own id"),
        ("CREATE VIEW v AS SELECT id, random() AS c FROM t", r"got: by c, id the row behind \(.*\) is not \("),
        # Where all that differs stands before the rest, nothing is behind anything.
        ("CREATE VIEW v AS SELECT id COLLATE lost AS id, c FROM t", r"got: by id the row behind \(.*\) is not \("),
    ],
)
def test_rows_that_the_database_does_not_find_again_are_refused(database: SQLite, view: str, message: str) -> None:
    filled(database, "id TEXT NOT NULL, c INT", [("a", 1), ("b", 2), ("c", 3)])

    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.create_collation("lost", lambda a, b: -(a != b))

    event.listen(database._engine, "connect", connected)
    database.close()
    with database._connected() as c:
        c.exec_driver_sql(view)
    with pytest.raises(PagingError, match=f"capture t cannot be paged as it is declared; {message}"):
        proven(database, FROM_VIEW)


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_change_while_they_are_looked_up_are_not_refused(
    database: SQLite, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    filled(database, "id INTEGER PRIMARY KEY, c INT", [(1, 1), (2, 2), (3, 3)])
    chance, page = random.Random(seed), database.page

    def changed(query: SourceQuery, most: int | None = None) -> SourcePage:
        if chance.random() < 0.6:
            with database._connected() as c:
                c.exec_driver_sql(f"UPDATE t SET c = (SELECT MAX(c) + 1 FROM t) WHERE id = {chance.randrange(1, 4)}")
        return page(query, most)

    with monkeypatch.context() as patched:
        patched.setattr(database, "page", changed)
        proof = proven(database)
    page_now = page(PageQueries(declared()).by_key(None, 3))
    assert not proof.check_page(page_now)
    assert proof._tried, "the next page is verified again"


def test_a_value_that_is_kept_as_another_is_refused(database: SQLite, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(database, "id BLOB NOT NULL UNIQUE, c INT", [(b"a", 1), (b"b ", 2)])
    proven(database)
    monkeypatch.setitem(position.TAGS, "bytes", (bytes, lambda b: b.decode().strip(), str.encode))
    with pytest.raises(PagingError, match=r"got: \(2, b'b '\) is another row after it was stored"):
        proven(database)


class Busy(SQLite):
    """A table that others write to: behind each of so many first pages a row comes between its first two."""

    times = 0

    def page(self, query: SourceQuery, most: int | None = None) -> SourcePage:
        found = super().page(query, most)
        if self.times and query == PageQueries(declared()).by_key(None, 3):
            self.times -= 1
            with self._connected() as c:
                c.exec_driver_sql("INSERT INTO t SELECT 1000 - 100 * COUNT(*), 1 FROM t")
        return found


@pytest.mark.parametrize("times", [2, 6, 20])
def test_rows_that_come_meanwhile_are_no_reason(database: SQLite, times: int) -> None:
    busy = Busy(database._engine.url, timedelta(seconds=5))
    filled(database, "id INTEGER PRIMARY KEY, c INT", [(10, 1), (1000, 1)])
    busy.times = times
    proven(busy)
    busy.close()


def page(*rows: tuple[Any, ...]) -> SourcePage:
    return SourcePage((("id", "None"), ("c", "None")), list(rows), (None, None))


def test_a_page_of_another_type_is_proven_anew(database: SQLite) -> None:
    filled(database, "id PRIMARY KEY NOT NULL, c INT", [(1, 1), (2, 2)])
    found = proven(database)
    assert not found.check_page(page((3, 3)))
    filled(database, "id PRIMARY KEY NOT NULL, c INT", [("1", 1), ("2", 2)])
    assert found.check_page(page(("1", 1), ("2", 2)))
    assert found.types == {"id": str}
    with pytest.raises(
        PagingError, match="a value of id that has no place in its order; got: 2 in a column of type text"
    ):
        found.check_page(page(("1", 1), (2, 2)))


def test_an_empty_table_is_proven_when_it_has_rows(database: SQLite) -> None:
    filled(database, "id PRIMARY KEY NOT NULL, c")
    found = proven(database)
    assert found.types == {}
    filled(database, "id PRIMARY KEY NOT NULL, c", [(1, 1), ("x", 2)])
    with pytest.raises(PagingError, match="several types"):
        found.check_page(page((1, 1)))


def test_what_was_kept_in_another_type_is_left_out(database: SQLite) -> None:
    filled(database, "id INTEGER PRIMARY KEY, c TEXT", [(1, "a"), (2, "b")])
    found = proven(database)
    kept = Position(
        "f",
        "t",
        low="b",
        catch_up=CatchUp("a", ("a", 1), "b"),
        skipped=SkippedTransactions("a", 1.0),
        snapshot=SnapshotProgress((KeyRange((1,), (2,)),), 1, 2),
    )
    assert found.drop_mistyped(kept) == kept
    filled(database, "id TEXT PRIMARY KEY NOT NULL, c INT", [("1", 1), ("2", 2)])
    found.verify()
    fitting = found.drop_mistyped(kept)
    assert (fitting.low, fitting.catch_up, fitting.skipped) == (None, None, SkippedTransactions(None, 1.0))
    assert fitting.snapshot == SnapshotProgress()


def test_a_time_with_a_zone_is_another_type_than_one_without() -> None:
    found = PagingVerifier.__new__(PagingVerifier)
    plain, zoned = datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)
    found._orders = {"a": postgres_ordering("timestamp", "b"), "b": postgres_ordering("timestamptz", "b")}
    assert [found.matches_type(name, at) for name in "ab" for at in (plain, zoned, date(2026, 1, 1))] == [
        True, False, False, False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(("before", "now"), [("TIMESTAMP.6", "12.6"), ("12.0", "TIMESTAMP.0")])
def test_a_cursor_of_mysql_that_gets_or_loses_its_zone_is_read_anew(before: str, now: str) -> None:
    found, at = PagingVerifier.__new__(PagingVerifier), datetime(2026, 1, 1)
    found._capture = declared()
    found._orders = {name: mysql_ordering((FIELD_TYPE.DATETIME, 0, 63)) for name in ("id", "c")}
    found._columns = {"id": "8.0", "c": now}
    kept = Position(
        "f",
        "t",
        low=at,
        columns=(("id", "8.0"), ("c", before)),
        catch_up=CatchUp(at, (at, at), at),
        skipped=SkippedTransactions(at, 1.0),
    )
    fitting = found.drop_mistyped(kept)
    assert (fitting.low, fitting.catch_up, fitting.skipped) == (None, None, SkippedTransactions(None, 1.0))
    finer = replace(kept, columns=(("id", "8.0"), ("c", now.replace("6", "3"))))
    assert found.drop_mistyped(finer) == finer


def test_a_cursor_that_is_ordered_otherwise_here_is_refused() -> None:
    check_cursor_order(declared(), page((1, "A"), (2, "B"), (3, "B"), (4, "a")))
    with pytest.raises(PagingError, match=r"another order than it has here; got: c: 'a' before 'B'"):
        check_cursor_order(declared(), page((1, "a"), (2, "B")))


@pytest.mark.parametrize(
    ("record", "kind", "key"),
    [
        (b'{"id":"1"}', str, ("1",)),
        (b'{"id":"1"}', int, None),
        (b'{"id":1}', str, None),
        (b'{"id":18446744073709551616}', int, None),
        (b'{"id":"18446744073709551616"}', int, (18446744073709551616,)),
        # Numbers of SQLite, some of them whole.
        (b'{"id":1}', float, (1,)),
        (b'{"id":2.5}', int, (2.5,)),
        (b'{"id":true}', int, None),
        (b'{"id":"0000-00-00"}', date, None),
        (b'{"id":"2026-01-01"}', datetime, None),
    ],
)
def test_a_key_is_turned_back_into_its_type(record: bytes, kind: type, key: tuple[Any, ...] | None) -> None:
    found = DigestIndex.decode_key(record, ["id"], {"id": kind})
    assert found == key
    assert found is None or encode(["id"], [found]) == [record]
