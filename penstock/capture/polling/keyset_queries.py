"""The queries of a capture: its SELECT as a derived table, with conditions for one page.

The SELECT is sent as its author wrote it; conditions and order use the names of its result columns. So nothing depends
on parsing its text, and an alias cannot be mistaken for a column of the table. The engines merge such a derived table
into the outer query, so each page uses the index of the plain SELECT, except in PostgreSQL if a column calls a VOLATILE
function.

Paging is by keyset (cursor and key of the last row), never by OFFSET: rows that change between two pages neither hide
others nor repeat them. Every query is ordered by the columns that it pages on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from sqlalchemy import TextClause, text

from penstock.model.capture import Capture

# The last column of a page: whether its row is deleted.
DELETED = "penstock_deleted"
# Prefix of parameters in the SQL. A colon would be ambiguous, since a SELECT may contain colons.
PARAMETER = "penstock_parameter_"

# The SELECT's name in the queries around it.
DERIVED_TABLE = "q"

Kind = Literal["since", "behind", "all with cursor", "without cursor", "by key", "by key upto"]


@dataclass(frozen=True)
class SourceQuery:
    """A query of one page, with its parameters. `limit` is its LIMIT; 0 if it has none."""

    sql: str
    values: Mapping[str, Any]
    limit: int = 0

    @property
    def clause(self) -> TextClause:
        """What SQLAlchemy executes, together with `values`."""
        return _clause(self.sql)

    @property
    def display_sql(self) -> str:
        """The SQL with named parameters, for people."""
        return self.sql.replace(PARAMETER, ":")


@lru_cache(maxsize=1000)
def _clause(sql: str) -> TextClause:
    return text(sql.replace(":", "\\:").replace(PARAMETER, ":"))


class PageQueries:
    """Builds the queries of one capture; the SQL of each kind is cached."""

    def __init__(self, capture: Capture) -> None:
        quote = "`" if capture.dialect == "mysql" else '"'
        self._key, (self._cursor,) = (
            [f"{DERIVED_TABLE}.{quote}{name.replace(quote, 2 * quote)}{quote}" for name in names]
            for names in (capture.key, (capture.cursor,))
        )
        self._from = f"FROM ({capture.sql}) AS {DERIVED_TABLE}"
        self._columns = f"{DERIVED_TABLE}.*"
        if condition := capture.deleted_sql:
            # The database decides what is true: '0' and a BIT of 0 are false there, and true in Python.
            self._columns += f", CASE WHEN {condition} THEN 1 ELSE 0 END AS {DELETED}"
        self._sql = cache(self._build)

    def since(self, low: Any, behind: Sequence[Any] | None, limit: int, *, itself: bool = True) -> SourceQuery:
        """Rows whose cursor is at least `low`, in order of cursor and key.

        Args:
            low: The cursor; None for all rows that have one.
            behind: Cursor and key of the last row of the page before.
            limit: Rows of the page.
            itself: Whether rows with the cursor `low` are included.
        """
        if low is None:
            return self._query("all with cursor", behind, limit)
        return self._query("since" if itself else "behind", behind, limit, low=low)

    def without_cursor(self, behind: Sequence[Any] | None, limit: int) -> SourceQuery:
        """Rows whose cursor is NULL, in order of key, after the key `behind`."""
        return self._query("without cursor", behind, limit)

    def by_key(self, behind: Sequence[Any] | None, limit: int, *, upto: Sequence[Any] | None = None) -> SourceQuery:
        """All rows in order of key, after the key `behind` and up to the key `upto`."""
        if upto is None:
            return self._query("by key", behind, limit)
        return self._query("by key upto", behind, limit, **{f"u{i}": value for i, value in enumerate(upto)})

    def key_at(self, number: int) -> SourceQuery:
        """The key with this number of rows before it, in order of key."""
        key = ", ".join(self._key)
        return SourceQuery(f"SELECT {key} {self._from} ORDER BY {key} LIMIT 1 OFFSET {number}", {})

    def rows_with_keys(self, keys: Sequence[Sequence[Any]]) -> SourceQuery:
        """The rows that have one of these keys."""
        values: dict[str, Any] = {}
        conditions = []
        for number, key in enumerate(keys):
            names = [f"k{number}_{i}" for i in range(len(key))]
            values |= dict(zip(names, key, strict=True))
            conditions.append(" AND ".join(_is(c, "=", name) for c, name in zip(self._key, names, strict=True)))
        return SourceQuery(f"SELECT {self._columns} {self._from} WHERE ({') OR ('.join(conditions)})", values)

    def has(self, key: Sequence[Any]) -> SourceQuery:
        """The number of rows with a key, without reading other columns."""
        names = [f"k{i}" for i in range(len(key))]
        condition = " AND ".join(_is(column, "=", name) for column, name in zip(self._key, names, strict=True))
        return SourceQuery(f"SELECT COUNT(*) {self._from} WHERE {condition}", dict(zip(names, key, strict=True)))

    def highest(self, upto: Any = None) -> SourceQuery:
        """The highest cursor, optionally up to a value; NULL if there is none."""
        sql = f"SELECT MAX({self._cursor}) {self._from}"
        if upto is None:
            return SourceQuery(sql, {})
        return SourceQuery(f"{sql} WHERE {_is(self._cursor, '<=', 'upto')}", {"upto": upto})

    def count(self) -> SourceQuery:
        """The number of rows."""
        return SourceQuery(f"SELECT COUNT(*) {self._from}", {})

    def _query(self, kind: Kind, behind: Sequence[Any] | None, limit: int, **values: Any) -> SourceQuery:
        if behind is not None:
            values |= {f"p{i}": value for i, value in enumerate(behind)}
        return SourceQuery(self._sql(kind, behind is not None, limit), values, limit)

    def _build(self, kind: Kind, continues: bool, limit: int) -> str:
        conditions_by_kind: dict[Kind, list[str]] = {
            "since": [_is(self._cursor, ">=", "low")],
            "behind": [_is(self._cursor, ">", "low")],
            "all with cursor": [f"{self._cursor} IS NOT NULL"],
            "without cursor": [f"{self._cursor} IS NULL"],
            "by key": [],
            "by key upto": [_upto(self._key)],
        }
        order = [self._cursor, *self._key] if kind in ("since", "behind", "all with cursor") else self._key
        conditions = conditions_by_kind[kind] + ([_after(order)] if continues else [])
        where_clause = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {self._columns} {self._from}{where_clause} ORDER BY {', '.join(order)} LIMIT {limit}"


def _after(columns: Sequence[str]) -> str:
    """(a, b) > (x, y), as a >= x AND (a > x OR (a = x AND b > y)), for which MariaDB uses an index on (a, b)."""
    if len(columns) == 1:
        return _is(columns[0], ">", "p0")
    return f"{_is(columns[0], '>=', 'p0')} AND ({_tail(columns, 0, '>', '>', 'p')})"


def _upto(columns: Sequence[str]) -> str:
    """(a, b) <= (x, y), in the same form."""
    if len(columns) == 1:
        return _is(columns[0], "<=", "u0")
    return f"{_is(columns[0], '<=', 'u0')} AND ({_tail(columns, 0, '<', '<=', 'u')})"


def _tail(columns: Sequence[str], at: int, each: str, last: str, mark: str) -> str:
    name = f"{mark}{at}"
    if at == len(columns) - 1:
        return _is(columns[at], last, name)
    rest = _tail(columns, at + 1, each, last, mark)
    return f"{_is(columns[at], each, name)} OR ({_is(columns[at], '=', name)} AND ({rest}))"


def _is(column: str, comparison: str, name: str) -> str:
    return f"{column} {comparison} {PARAMETER}{name}"
