"""The queries of a capture: on a real SQLite, page by page they give every row once."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from penstock.capture.polling.keyset_queries import DELETED, PageQueries, SourceQuery
from penstock.capture.snapshot.parallel_readers import split_key_ranges
from penstock.capture.source.base import SourceError
from penstock.capture.source.sqlite import SQLite
from penstock.model.capture import Capture, parse


def declared(select: str, more: str = "", key: str = "a, b", dialect: str = "sqlite") -> Capture:
    return parse(f"CAPTURE INTO t FROM {dialect} x KEY ({key}) CURSOR c {more} AS {select}", Path("t.sql"))


@pytest.fixture
def table(tmp_path: Path) -> SQLite:
    """1,000 rows; ten of each cursor, and a hundred without one."""
    chance = random.Random(1)
    database = SQLite(make_url(f"sqlite:///{tmp_path / 'x.db'}"), timedelta(seconds=5))
    with database._connected() as c:
        c.exec_driver_sql("CREATE TABLE t (a INT, b TEXT, c INT, note TEXT, PRIMARY KEY (a, b))")
        rows = [(i // 7, f"k{i % 7}", None if i % 10 == 0 else i // 10, ":colon \\ %") for i in range(1000)]
        chance.shuffle(rows)
        # One transaction, not one per row.
        c.exec_driver_sql("BEGIN")
        c.exec_driver_sql("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
        c.exec_driver_sql("COMMIT")
    return database


def through(
    database: SQLite, query: Callable[[tuple[Any, ...] | None], SourceQuery], names: list[str]
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    behind: tuple[Any, ...] | None = None
    while (page := database.page(query(behind))).rows:
        found += page.rows
        behind = tuple(page.rows[-1][page.names.index(name)] for name in names)
    return found


@pytest.mark.parametrize("size", [1, 7, 10, 333, 2000])
def test_every_row_comes_once(table: SQLite, size: int) -> None:
    pages = PageQueries(declared("SELECT a, b, c, note FROM t"))
    by_key = through(table, lambda behind: pages.by_key(behind, size), ["a", "b"])
    assert len(by_key) == len(set(by_key)) == 1000
    assert by_key == sorted(by_key, key=lambda row: row[:2])
    since = through(table, lambda behind: pages.since(50, behind, size), ["c", "a", "b"])
    assert len(since) == len(set(since)) == 450
    assert {row[2] for row in since} == set(range(50, 100))
    assert len(through(table, lambda behind: pages.since(None, behind, size), ["c", "a", "b"])) == 900
    without = through(table, lambda behind: pages.without_cursor(behind, size), ["a", "b"])
    assert len(without) == 100
    assert set(since) & set(without) == set()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_ranges_of_keys_hold_every_row_once(table: SQLite, count: int) -> None:
    pages = PageQueries(declared("SELECT a, b, c, note FROM t"))
    ranges = split_key_ranges(table, pages, 1000, count)
    assert len(ranges) == count
    found = []
    for r in ranges:
        part = through(table, lambda row, r=r: pages.by_key(row or r.behind, 10, upto=r.upto), ["a", "b"])  # type: ignore[misc]
        assert abs(len(part) - 1000 / count) <= 1
        found += part
    assert found == through(table, lambda row: pages.by_key(row, 10), ["a", "b"])


def test_a_table_that_has_shrunk_is_divided_into_fewer_ranges(table: SQLite) -> None:
    pages = PageQueries(declared("SELECT a, b, c, note FROM t"))
    ranges = split_key_ranges(table, pages, 4000, 4)
    assert [r.upto is None for r in ranges] == [True]


def test_single_values(table: SQLite) -> None:
    pages = PageQueries(declared("SELECT a, b, c FROM t WHERE a < 100"))
    assert table.value(pages.highest()) == 69
    assert table.value(pages.count()) == 700
    found = table.page(pages.rows_with_keys([(1, "k2"), (99, "k6"), (100, "k0"), (5, "none")]))
    assert [row[:2] for row in found.rows] == [(1, "k2"), (99, "k6")]


def test_renamed_and_computed_columns_are_paged_by_what_they_stand_for(table: SQLite) -> None:
    capture = declared(
        "SELECT x.a + 1 AS a, x.b AS b, x.c AS c, x.note = ':p0' AS odd FROM t AS x", "DELETED WHEN (odd OR a > 140)"
    )
    pages = PageQueries(capture)
    rows = through(table, lambda behind: pages.by_key(behind, 11), ["a", "b"])
    assert len(set(rows)) == 1000
    assert {bool(row[-1]) for row in rows if row[0] > 140} == {True}
    assert {bool(row[-1]) for row in rows if row[0] <= 140} == {False}
    assert table.page(pages.by_key(None, 1)).names[-1] == DELETED


@pytest.mark.parametrize("flag", ["'0'", "NULL", "0.0"])
def test_what_is_deleted_the_database_says(table: SQLite, flag: str) -> None:
    """A text of 0 is false to it, and true to Python."""
    pages = PageQueries(declared(f"SELECT a, b, c, {flag} AS flag FROM t", "DELETED WHEN (flag)"))
    assert {row[-1] for row in table.page(pages.by_key(None, 9)).rows} == {0}


def test_the_index_that_serves_is_named(table: SQLite) -> None:
    with table._connected() as c:
        c.exec_driver_sql("CREATE INDEX cursor ON t (c, a, b)")
    pages = PageQueries(declared("SELECT a, b, c FROM t"))
    assert table.plan(pages.since(5, (5, 1, "x"), 10)) == [("t", "cursor")]
    assert table.plan(pages.without_cursor(None, 10)) == [("t", "cursor")]
    assert table.plan(PageQueries(declared("SELECT a, b, note AS c FROM t")).since("x", None, 10)) == [("t", "")]


def test_what_is_shown_has_parameters_by_name() -> None:
    queries = PageQueries(declared("SELECT a, b, c FROM t WHERE b <> ':x'", dialect="mysql"))
    shown = queries.since(1, (1, 2, 3), 10).display_sql
    assert ":low" in shown
    assert ":p2" in shown
    assert "':x'" in shown
    assert "penstock" not in shown


@pytest.mark.parametrize("size", [10, 333])
def test_an_alias_may_have_the_name_of_another_column(table: SQLite, size: int) -> None:
    """WHERE would mean the column, ORDER BY the alias: rows would be passed over."""
    with table._connected() as c:
        c.exec_driver_sql("CREATE TABLE u (id INTEGER PRIMARY KEY, code INT, changed INT, made INT)")
        c.exec_driver_sql("INSERT INTO u SELECT rowid, 5000 - rowid, (rowid * 7) % 501, rowid % 3 FROM t")
    select = "SELECT id AS old_id, code AS id, changed AS made, made AS changed FROM u"
    pages = PageQueries(parse(f"CAPTURE INTO t FROM sqlite x KEY (id) CURSOR made AS {select}", Path("t.sql")))
    by_key = through(table, lambda behind: pages.by_key(behind, size), ["id"])
    assert sorted(row[0] for row in by_key) == list(range(1, 1001))
    assert [row[1] for row in by_key] == sorted(row[1] for row in by_key)
    since = through(table, lambda behind: pages.since(100, behind, size), ["made", "id"])
    assert sorted(row[0] for row in since) == [i for i in range(1, 1001) if (i * 7) % 501 >= 100]
    assert table.value(pages.highest(99)) == 99
    assert [row[:2] for row in table.page(pages.rows_with_keys([(4999,), (1,)])).rows] == [(1, 4999)]
    assert table.value(pages.key_at(0)) == 4000


def test_a_column_may_be_called_as_a_keyword_or_hold_a_quote(table: SQLite) -> None:
    with table._connected() as c:
        c.exec_driver_sql('CREATE TABLE v ("order" INTEGER PRIMARY KEY, "we""i:rd %s?" INT, "UPPER" INT)')
        c.exec_driver_sql("INSERT INTO v VALUES (1, 2, 3), (2, 4, 6)")
    pages = PageQueries(
        parse(
            'CAPTURE INTO t FROM sqlite x KEY ("order") CURSOR "we""i:rd %s?" DELETED WHEN ("UPPER" = 6)'
            ' AS SELECT "order", "we""i:rd %s?", "UPPER" FROM v -- : ? % end',
            Path("t.sql"),
        )
    )
    assert through(table, lambda row: pages.since(2, row, 1), ['we"i:rd %s?', "order"]) == [(1, 2, 3, 0), (2, 4, 6, 1)]


def test_two_columns_of_one_name_are_refused(table: SQLite) -> None:
    with pytest.raises(SourceError, match="two columns of one name; got: a:1"):
        table.page(
            PageQueries(declared("SELECT x.a, y.* FROM t AS x JOIN t AS y USING (a, b)", key="b")).by_key(None, 1)
        )
    with pytest.raises(SourceError, match="two columns of one name; got: B:1"):
        table.page(PageQueries(declared("SELECT t.*, a AS B FROM t", key="b")).by_key(None, 1))
