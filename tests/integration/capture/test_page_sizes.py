"""Tables of large rows on real servers: a page stays within its limit, and no row is left out or comes twice."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from penstock.capture.polling.keyset_queries import PageQueries
from penstock.capture.polling.page_size import PageSize
from penstock.capture.source.base import SourceDatabase, SourcePage
from penstock.capture.source.engines import ENGINES
from penstock.model.capture import parse
from tests.support.captures import Source, polled, until, url_of

# Bytes of a heavy row, at most.
ROW = 256 * 1024
# The heavy rows among light ones, the first and the last of all too.
HEAVY = {1, *range(400, 440), 800}

Opened = Callable[[], SourceDatabase]


@pytest.fixture(scope="module", params=["mysql", "postgres", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Opens the database that has the table."""
    url = make_url(url_of(request, tmp_path_factory.mktemp("sizes") / "sizes.db"))

    def one() -> SourceDatabase:
        return ENGINES[request.param](url, timedelta(seconds=5))

    made = one()
    with made._connected() as c:
        c.exec_driver_sql("DROP TABLE IF EXISTS sizes")
        text = "LONGTEXT" if request.param == "mysql" else "TEXT"
        c.exec_driver_sql(f"CREATE TABLE sizes (id INT PRIMARY KEY, c INT, body {text})")
        for number in range(1, 801):
            body = f"{number}%" * (ROW // 4) if number in HEAVY else "light"
            c.exec_driver_sql(f"INSERT INTO sizes VALUES ({number}, {number // 3}, '{body.replace('%', '.')}')")
    yield one
    with made._connected() as c:
        c.exec_driver_sql("DROP TABLE sizes")
    made.close()


@pytest.fixture
def database(opened: Opened) -> Iterator[SourceDatabase]:
    with closing(opened()) as made:
        yield made


def of(database: SourceDatabase, select: str) -> PageQueries:
    dialect = next(name for name, kind in ENGINES.items() if isinstance(database, kind))
    return PageQueries(parse(f"CAPTURE INTO t FROM {dialect} x KEY (id) CURSOR c AS {select}", Path("t.sql")))


def paged(database: SourceDatabase, size: PageSize, by: str) -> Iterator[tuple[SourcePage, list[int]]]:
    """Pages of the whole table, each with its keys."""
    pages = of(database, "SELECT * FROM sizes WHERE body NOT LIKE '%:b%'")
    behind: tuple[Any, ...] | None = None
    while True:
        query = pages.by_key(behind, size.rows) if by == "key" else pages.since(None, behind, size.rows)
        page = size.read(database, query)
        yield page, [row[0] for row in page.rows]
        if not page.more:
            return
        last = page.rows[-1]
        behind = (last[0],) if by == "key" else (last[1], last[0])


@pytest.mark.parametrize("by", ["key", "cursor"])
def test_no_page_is_larger_than_its_limit(database: SourceDatabase, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setattr(PageSize, "BYTES", 4 * ROW)
    size, keys, rows = PageSize(500), list[int](), list[int]()
    tracemalloc.start()
    try:
        for page, of_page in paged(database, size, by):
            weight = sum(len(row[2]) for row in page.rows)
            # MariaDB's is what it sends.
            assert weight <= page.weight <= weight + 30 * len(page.rows)
            assert len(page.rows) == 1 or page.weight <= 4 * ROW
            keys += of_page
            rows.append(len(of_page))
            del page
        # One page is held while the next is read, and drivers copy what they read.
        assert tracemalloc.get_traced_memory()[1] < 28 * ROW
    finally:
        tracemalloc.stop()
    assert keys == list(range(1, 801))
    # Behind the heavy rows pages grow again.
    assert max(rows[:2]) >= 256
    assert min(rows) <= 4
    assert rows[-1] > 4 or rows[-2] > 4


def test_a_row_larger_than_the_limit_is_a_page_alone(database: SourceDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageSize, "BYTES", ROW // 2)
    size = PageSize(500)
    assert sorted(key for _, keys in paged(database, size, "key") for key in keys) == list(range(1, 801))


def test_an_empty_page_has_the_columns_of_its_query(database: SourceDatabase) -> None:
    pages = of(database, "SELECT sizes.*, 1 AS one FROM sizes WHERE id < 0")
    page = PageSize(500).read(database, pages.by_key(None, 500))
    assert (page.names, page.rows, page.more) == (["id", "c", "body", "one"], [], False)
    for select, names in [("SELECT * FROM sizes", ["id", "c", "body"]), ("SELECT c, id FROM sizes", ["c", "id"])]:
        none, rows = (PageSize(500).read(database, of(database, select).since(low, None, 500)) for low in (9999, 266))
        assert (rows.names, none.names) == (names, names)
        assert (len(rows.rows), none.rows, none.about, none.columns) == (3, [], rows.about, rows.columns)


def test_large_rows_are_captured_in_pages_through_kills(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageSize, "BYTES", 100_000)
    body = "CONCAT(seq, REPEAT('x', IF(seq % 7, 30000, 5)))"
    source.sql(
        f"ALTER TABLE {source.name} ADD COLUMN body LONGTEXT",
        f"INSERT INTO {source.name} (id, body) SELECT seq, {body} FROM seq_1_to_20",
        f"INSERT INTO {source.name} (id, body, changed) SELECT seq, {body}, NULL FROM seq_21_to_24",
    )
    poller = source.poller()
    until(poller, lambda: poller.metrics.rows > 3, "the snapshot has begun")
    assert poller.position.snapshot
    source.close(poller)
    poller = source.poller()
    until(poller, lambda: poller.position.snapshot is None and poller.metrics.polls > 1, "it ends")
    assert source.same()
    source.sql(f"UPDATE {source.name} SET body = CONCAT('new', body) WHERE id <= 15")
    killed: list[Any] = []

    def once(step: str) -> None:
        if step == "before commit" and len(killed) < 3:
            killed.append(poller.position.catch_up)
            if len(killed) == 3:
                raise OSError("killed")

    poller.session.hook = once
    with pytest.raises(OSError, match="killed"):
        polled(poller, 3)
    # It was in the middle of a poll, whose pages are smaller than they might be.
    assert killed[-1]
    source.close(poller)
    poller = source.poller()
    polled(poller, 2)
    assert source.same()
    # What is looked for by its key may be too heavy for one page.
    assert poller._comparison._present_keys([(number,) for number in range(1, 30)]) == set(source.table())
    source.send({b'{"id":%d}' % number: b'{"id":%d,"gone":0}' % number for number in range(12, 30)})
    source.sql(f"DELETE FROM {source.name} WHERE id = 3")
    poller.compare("test")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert source.same()
