"""Verifies in the database that a capture can be paged: that key and cursor are ordered and compared as expected.

Verified are the types of the SELECT's result columns; that sample rows are found by their own values, one after the
other; and that KEY is unique. It runs at `capture check`, when a capture is opened, and when the types of a page's
columns change. A capture that cannot be verified is refused.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

from penstock.capture.checks.column_types import Ordering
from penstock.capture.checks.paging_checks import (
    check_values,
    ordering_of_values,
    orderings,
    refuse,
    zone_changed,
)
from penstock.capture.output.encode import encode
from penstock.capture.output.page_records import require
from penstock.capture.output.position import Position, SnapshotProgress, read, write
from penstock.capture.polling.keyset_queries import PageQueries, SourceQuery
from penstock.capture.polling.page_size import PageSize
from penstock.capture.source.base import SourceDatabase, SourceError, SourcePage
from penstock.capture.source.statement_sql import columns, quoted, rows, single_table
from penstock.model.capture import Capture

# Characters that a conversion to UTF-8 may have replaced, or made equal.
DOUBTFUL = re.compile(r"[^0-9A-Za-z _.:/@,;#=+-]")
# Keys of one query.
MANY = 500
# Rows read at other dates, at most.
SAMPLE = 50
# Attempts at a check while rows change, and attempts that must show the fault while none does.
TRIES, SURE = 5, 2
# Consecutive queries that all differ if a value is volatile.
QUERIES = 20
# Rows of each sample that are looked up by their own values.
FEW = 3


class PagingVerifier:
    """Verifies that one capture can be paged by key and cursor. `notes`: what holds for the present rows only."""

    def __init__(self, capture: Capture, database: SourceDatabase) -> None:
        self._capture, self._database, self._pages = capture, database, PageQueries(capture)
        self._names = list(dict.fromkeys((*capture.key, capture.cursor)))
        self._orders: dict[str, Ordering] = {}
        self._descriptions: dict[str, Hashable] = {}
        # Types of the SELECT's columns.
        self._columns: dict[str, str] = {}
        # Key columns whose character set is not lossless in UTF-8, with its name.
        self._sets: dict[str, str] = {}
        # Whether there were rows to try it with.
        self._tried = False
        self.notes: list[str] = []

    @property
    def types(self) -> dict[str, type]:
        """Types of the key's values; a column without a type of its own is left out while it has no values."""
        types_of_key = {name: self._orders[name].types for name in self._capture.key}
        return {name: types[0] for name, types in types_of_key.items() if types}

    def verify(self, *, ask_rows: bool = True) -> None:
        """Verify everything.

        Args:
            ask_rows: Whether all rows are checked for unique keys if no index guarantees it.

        Raises:
            PagingError: The capture cannot be paged.
        """
        page = self._database.page(self._pages.by_key(None, FEW))
        found_orderings = orderings(self._capture, self._database.order, page)
        self._descriptions, self._columns = self._described(page), dict(page.columns)
        self._orders = {
            name: order if order.types else self._ordering_of_values(name) for name, order in found_orderings.items()
        }
        self._check_cursor_collation()
        self.notes = [*self._uniqueness_notes(ask_rows=ask_rows), *self._lossy_text_notes(ask_rows=ask_rows)]
        self._check_date_independence()
        self._check_paging()

    def check_page(self, page: SourcePage) -> bool:
        """Check the types of a page, and verify again if they changed; returns whether they changed."""
        require(self._capture, page)
        previous, unchanged = self._orders, self._described(page) == self._descriptions
        if not unchanged or (page.rows and not self._tried) or not self._fits(page):
            self.verify(ask_rows=False)
            check_values(self._capture, page, self._orders)
        self._check_doubtful_keys(page)
        return bool(previous) and (not unchanged or previous != self._orders)

    def matches_type(self, name: str, value: Any) -> bool:
        """Whether a stored value of a column has the column's present type."""
        order = self._orders[name]
        zoned = getattr(value, "tzinfo", None) is not None
        return value is None or not order.types or (type(value) in order.types and zoned == order.zoned)

    def can_be_key(self, key: tuple[Any, ...]) -> bool:
        """Whether a key can be sent to the database, and a row may have it."""
        longest = [self._orders[name].longest for name in self._capture.key]
        return all(
            self._database.can_send(value) and not (limit and len(value) > limit)
            for value, limit in zip(key, longest, strict=True)
        )

    def drop_mistyped(self, position: Position) -> Position:
        """A position without the values of columns whose type changed."""
        cursor, row = self._capture.cursor, (self._capture.cursor, *self._capture.key)
        # MariaDB's times are read without a zone, whether the column has one or not.
        same_zone = not zone_changed(cursor, dict(position.columns), self._columns)
        low = position.low if same_zone and self.matches_type(cursor, position.low) else None
        catch_up, skipped, snapshot = position.catch_up, position.skipped, position.snapshot
        if catch_up and not (
            same_zone
            and all(map(self.matches_type, (*row, cursor, cursor), (*catch_up.behind, catch_up.low, catch_up.high)))
        ):
            catch_up = None
        if skipped and not (same_zone and self.matches_type(cursor, skipped.low)):
            skipped = replace(skipped, low=None)
        if snapshot and not all(
            self.key_matches_types(r.behind) and self.key_matches_types(r.upto) for r in snapshot.ranges
        ):
            snapshot = SnapshotProgress()
        return replace(position, low=low, catch_up=catch_up, skipped=skipped, snapshot=snapshot)

    def key_matches_types(self, key: tuple[Any, ...] | None) -> bool:
        return key is None or all(map(self.matches_type, self._capture.key, key))

    def _described(self, page: SourcePage) -> dict[str, Hashable]:
        descriptions = dict(zip(page.names, page.about, strict=True))
        return {name: descriptions[name] for name in self._names}

    def _fits(self, page: SourcePage) -> bool:
        try:
            check_values(self._capture, page, self._orders)
        except SourceError:
            return False
        return True

    def _ordering_of_values(self, name: str) -> Ordering:
        """The ordering of a column without a type, by its least and greatest value: numbers < text < blobs."""
        column, source = quoted(self._capture, name), rows(self._capture)
        ends = [self._value(f"SELECT {end}(q.{column}) FROM {source} AS q") for end in ("MIN", "MAX")]
        return ordering_of_values(self._capture, name, [value for value in ends if value is not None])

    def _check_cursor_collation(self) -> None:
        """Refuse a text cursor that the database does not order by code point, as Python does."""
        name, source = self._capture.cursor, rows(self._capture)
        order = self._orders[name]
        if order.collated and not self._database.orders_by_code_point(source, quoted(self._capture, name)):
            got, hint = f"{name}: its collation has another order than code points", self._database.CODE_POINT
            refuse(self._capture, [name], f"cannot compare a cursor of type {order.kind}", got, hint)

    def _value(self, sql: str) -> Any:
        return self._database.value(SourceQuery(sql, {}))

    def _check_paging(self) -> None:
        """Check that sample rows are found by their own key and cursor, each after the one before it.

        Rows of a busy table change while they are looked up. So a fault is refused if the sample was the same
        afterwards, twice, or if it differs in each query. Otherwise the next page is verified again.
        """
        self._tried, confirmed = False, 0
        for _ in range(TRIES):
            by_key, by_cursor = self._sample_by_key(), self._samples_by_cursor()
            for page in (by_key, *by_cursor):
                check_values(self._capture, page, self._orders)
            fault = next(self._paging_faults(by_key, by_cursor), "")
            if not fault:
                self._tried = bool(by_key.rows)
                return
            before, after = (by_key, *by_cursor), (self._sample_by_key(), *self._samples_by_cursor())
            confirmed += self._keys_and_cursors(before) == self._keys_and_cursors(after)
            if confirmed == SURE:
                break
        if confirmed == SURE or self._is_volatile():
            hint = "declare another KEY or CURSOR"
            refuse(self._capture, self._names, "cannot be paged as it is declared", fault, hint)

    def _sample_by_key(self) -> SourcePage:
        return self._database.page(self._pages.by_key(None, FEW))

    def _samples_by_cursor(self) -> list[SourcePage]:
        """The rows of the lowest cursors, and those of the highest."""
        top = self._database.value(self._pages.highest())
        lows = [None] if top is None else [None, top]
        return [self._database.page(self._pages.since(low, None, FEW)) for low in lows]

    def _keys_and_cursors(self, pages: Iterable[SourcePage]) -> list[list[bytes]]:
        return [encode(self._names, columns(page, self._names)) if page.rows else [] for page in pages]

    def _is_volatile(self) -> bool:
        """Whether key or cursor differs in each query, e.g. RAND()."""
        samples = [self._keys_and_cursors([self._sample_by_key()]) for _ in range(QUERIES)]
        return all(before != after for before, after in pairwise(samples))

    def _paging_faults(self, by_key: SourcePage, by_cursor: Sequence[SourcePage]) -> Iterator[str]:
        capture, pages = self._capture, self._pages
        key, cursor = capture.key, [capture.cursor, *capture.key]
        rows_by_key = {encode(key, [row])[0]: row for page in (by_key, *by_cursor) for row in columns(page, key)}
        if rows_by_key and set(self._keys(pages.rows_with_keys(list(rows_by_key.values())))) != set(rows_by_key):
            yield f"rows are not found by their own {', '.join(key)}"
        for row in (row for page in by_cursor for row in columns(page, cursor)):
            if encode(cursor, [read(write(row))]) != encode(cursor, [row]):
                yield f"{row!r} is another row after it was stored"
        for previous, row in pairwise(columns(by_key, key)):
            if self._keys(pages.by_key(previous, 2, upto=row)) != encode(key, [row]):
                yield f"by {', '.join(key)} the row behind {previous!r} is not {row!r}"
        for page in by_cursor:
            for previous, row in pairwise(columns(page, cursor)):
                following = columns(self._database.page(pages.since(previous[0], previous, 1)), cursor)
                if not following or encode(cursor, following) != encode(cursor, [row]):
                    yield f"by {', '.join(cursor)} the row behind {previous!r} is not {row!r}"

    def _keys(self, query: SourceQuery) -> list[bytes]:
        keys = columns(self._database.page(query), self._capture.key)
        return encode(self._capture.key, keys) if keys else []

    def _lossy_text_notes(self, *, ask_rows: bool) -> Iterator[str]:
        """Check for keys that change in UTF-8: their rows would be read twice, or hide others."""
        capture, self._sets = self._capture, {}
        for name in capture.key:
            column, source = quoted(capture, name), rows(capture)
            if not self._orders[name].collated or not (lossy := self._database.lossy_text(source, column)):
                continue
            self._sets[name], condition = lossy
            if ask_rows and self._value(f"SELECT 1 FROM {source} AS q WHERE {condition} LIMIT 1"):
                self._refuse_lossy_text(name)
            yield f"not all text of {lossy[0]} is the same in UTF-8: see that no two of {name} become one there"

    def _check_doubtful_keys(self, page: SourcePage) -> None:
        """Check that rows whose key may have changed in UTF-8 are found by it."""
        capture, indexes = self._capture, [page.names.index(name) for name in self._sets]
        if not any(row[i] and DOUBTFUL.search(row[i]) for row in page.rows for i in indexes):
            return
        keys = columns(page, capture.key)
        doubtful = [key for key in keys if any(isinstance(value, str) and DOUBTFUL.search(value) for value in key)]
        for start in range(0, len(doubtful), MANY):
            chunk = doubtful[start : start + MANY]
            # Rows may also be missing since they were deleted, so the reason is checked.
            missing = set(encode(capture.key, chunk)) - set(self._keys(self._pages.rows_with_keys(chunk)))
            if missing and self._value(f"SELECT 1 FROM {rows(capture)} AS q WHERE {self._lossy_condition()} LIMIT 1"):
                self._refuse_lossy_text(next(iter(self._sets)))

    def _lossy_condition(self) -> str:
        source = rows(self._capture)
        lossy = (self._database.lossy_text(source, quoted(self._capture, name)) for name in self._sets)
        return " OR ".join(condition for _, condition in filter(None, lossy))

    def _refuse_lossy_text(self, name: str) -> NoReturn:
        hint = (
            "mend such rows or give the column the character set utf8mb4; or select "
            f"HEX({name}) AS {name}, but no index serves that"
        )
        got = f"{name}: text of {self._sets[name]} that is another when it comes back from UTF-8"
        refuse(self._capture, [name], "met a key that the database cannot be asked for", got, hint)

    def _check_date_independence(self) -> None:
        """Refuse rows that depend on the date: MariaDB and MySQL add today's date to a TIME if they need one."""
        sample, differences = self._pages.by_key(None, SAMPLE), 0
        for _ in range(TRIES):
            pages = self._database.at_other_dates(sample, PageSize.BYTES)
            if not pages:
                return
            first, second, third = (page.rows for page in pages)
            if first == second:
                return
            # Otherwise rows were changed in the meantime.
            differences += first == third
            if differences == SURE:
                differing = {at for a, b in zip(first, second, strict=False) for at in range(len(a)) if a[at] != b[at]}
                names = [pages[0].names[at] for at in sorted(differing)] if len(first) == len(second) else []
                hint = "say of which day it is, as TIMESTAMP(day, time); or select the TIME as it is"
                what = "says another thing each day: a TIME gets the date of today"
                refuse(self._capture, names, what, ", ".join(names) or "which rows there are", hint)

    def _uniqueness_notes(self, *, ask_rows: bool) -> Iterator[str]:
        capture = self._capture
        if (table := single_table(capture)) is not None:
            of_table, key = table
            if any(unique_keys <= key for unique_keys in self._database.unique_keys(of_table)):
                return
        names = ", ".join(capture.key)
        yield f"no index that is unique and NOT NULL proves that KEY ({names}) tells rows apart: see that it does"
        if not ask_rows:
            return
        of_key = [f"q.{quoted(capture, name)}" for name in capture.key]
        source, group = rows(capture), ", ".join(of_key)
        try:
            duplicates = self._value(f"SELECT COUNT(*) FROM {source} AS q GROUP BY {group} HAVING COUNT(*) > 1 LIMIT 1")
            condition = " OR ".join(f"{column} IS NULL" for column in of_key)
            null = self._value(f"SELECT 1 FROM {source} AS q WHERE {condition} LIMIT 1")
        except SourceError as e:
            yield f"the rows could not be asked whether KEY ({names}) tells them apart: {e.got}"
            return
        if null:
            hint = "declare as KEY columns that are NOT NULL, or leave such rows out by WHERE"
            refuse(capture, capture.key, "met a row without a key", f"NULL in {names}", hint)
        if duplicates:
            got, hint = (
                f"{duplicates} rows of one {names}",
                "declare as KEY what tells rows apart, e.g. the primary key",
            )
            refuse(capture, capture.key, "has a KEY that is not unique", got, hint)
