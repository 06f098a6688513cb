"""A table of one type, paged in every way that a capture does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock.capture.checks.ordering import PagingVerifier
from penstock.capture.checks.paging_checks import check_cursor_order
from penstock.capture.output.encode import encode
from penstock.capture.output.position import read, write
from penstock.capture.polling.keyset_queries import PageQueries, SourceQuery
from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.capture.source.base import SourceDatabase, SourceError, SourcePage
from penstock.capture.source.mysql import MySQL
from penstock.model.capture import Capture, parse

DELAY = timedelta(seconds=5)
Row = tuple[Any, ...]


class Table:
    """A table `paged` of one engine, and what is proven of it."""

    def __init__(self, database: SourceDatabase, execute: Callable[[str], Any]) -> None:
        self.database, self.execute = database, execute
        self.dialect = "mysql" if isinstance(database, MySQL) else "postgres"

    def filled(self, columns: str, rows: list[str]) -> None:
        """rows: each the literals of one."""
        self.execute("DROP TABLE IF EXISTS paged")
        self.execute(f"CREATE TABLE paged ({columns})")
        self.execute(f"INSERT INTO paged VALUES {', '.join(f'({row})' for row in rows)}")

    def declared(self, select: str = "SELECT id, c FROM paged", key: str = "id") -> Capture:
        return parse(f"CAPTURE INTO t FROM {self.dialect} demo KEY ({key}) CURSOR c AS {select}", Path("t.sql"))

    def proven(self, select: str = "SELECT id, c FROM paged", key: str = "id") -> PagingVerifier:
        made = PagingVerifier(self.declared(select, key), self.database)
        made.verify()
        return made

    def through(self, query: Callable[[Row | None], SourceQuery], behind: Callable[[Row], Row]) -> list[Row]:
        """Every row, in pages of three; what was kept of a row goes back as it was read."""
        found: list[Row] = []
        last: Row | None = None
        for _ in range(100):
            rows = [tuple(row) for row in self.database.page(query(last)).rows]
            found += rows
            if len(rows) < 3:
                return found
            last = tuple(read(write(behind(rows[-1]))))
        raise AssertionError("paging does not end")

    def once(self, rows: int) -> None:
        """By key, by cursor and one by one each row comes once; all rows have a cursor."""
        capture, proof = self.declared(), self.proven()
        pages = PageQueries(capture)
        by_key = self.through(lambda last: pages.by_key(last, 3), lambda row: row[:1])
        by_cursor = self.through(lambda last: pages.since(None, last, 3), lambda row: (row[1], row[0]))
        keys = encode(["id"], [row[:1] for row in by_key])
        assert len(set(keys)) == len(keys) == rows
        assert sorted(encode(["id"], [row[:1] for row in by_cursor])) == sorted(keys)
        for key in keys:
            back = DigestIndex.decode_key(key, ["id"], proof.types)
            assert back is not None, key
            found = self.database.page(pages.rows_with_keys([back])).rows
            assert encode(["id"], [row[:1] for row in found]) == [key]
            # What is none of its values is not found, or refused as such.
            other = tuple(f"{part}?" if isinstance(part, str) else part for part in back)
            assert proof.can_be_key(back)
            try:
                found = self.database.page(pages.rows_with_keys([back, other])).rows
            except SourceError as e:
                if not e.refused:
                    raise
            else:
                assert encode(["id"], [row[:1] for row in found]) == [key]
        whole = self.database.page(pages.since(None, None, 100))
        check_cursor_order(capture, whole)
        for number, (row, record) in enumerate(zip(whole.rows, self.as_records(whole), strict=True)):
            low = read(write(row[1]))
            since = self.as_records(self.database.page(pages.since(low, None, 100)))
            assert since[-(len(keys) - number) :] == self.as_records(whole)[number:]
            assert record not in self.as_records(self.database.page(pages.since(low, None, 100, itself=False)))

    @staticmethod
    def as_records(page: SourcePage) -> list[bytes]:
        return encode(page.names, page.rows) if page.rows else []
