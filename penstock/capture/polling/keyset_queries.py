"""The queries of a capture: its SELECT as a derived table, and around it the conditions that make one page of it.

The SELECT is sent as its author wrote it; conditions and order name its columns as they come out of it. So nothing
depends on how its text is understood here, and no alias can stand for a column of the table. The engines merge such a
derived table into the query around it, so the index that would serve the plain SELECT serves each page; but not
PostgreSQL if a column calls a VOLATILE function.

Paging is by keyset (cursor and key of the last row read), never by OFFSET: rows that change between two pages neither
hide others nor come twice by themselves. Every query is ordered by what it pages on, so a row that is read once stands
before all that are read later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from sqlalchemy import TextClause, text

from penstock.model.capture import Capture

# The column of a page that says whether its row is deleted; always the last.
DELETED = "penstock_deleted"
# Words of the query that become parameters when it is text: a SELECT may hold colons, which SQLAlchemy would take.
PARAMETER = "penstock_parameter_"

# The SELECT's name in the queries around it.
DERIVED_TABLE = "q"

Kind = Literal["since", "behind", "all with cursor", "without cursor", "by key", "by key upto"]


@dataclass(frozen=True)
class SourceQuery:
    """A query of one page, with its parameters. limit: rows that it gives at most; 0: as many as there are."""

    sql: str
    values: Mapping[str, Any]
    limit: int = 0

    @property
    def clause(self) -> TextClause:
        """What SQLAlchemy executes, together with `values`."""
        return _clause(self.sql)

    @property
    def shown(self) -> str:
        """As it is sent, for people: parameters by name."""
        return self.sql.replace(PARAMETER, ":")


@lru_cache(maxsize=1000)
def _clause(sql: str) -> TextClause:
    return text(sql.replace(":", "\\:").replace(PARAMETER, ":"))


class PageQueries:
    """Makes the queries of one capture; each kind is put together once."""

    def __init__(self, capture: Capture) -> None:
        quote = "`" if capture.dialect == "mysql" else '"'
        self._key, (self._cursor,) = (
            [f"{DERIVED_TABLE}.{quote}{name.replace(quote, 2 * quote)}{quote}" for name in names]
            for names in (capture.key, (capture.cursor,))
        )
        self._from = f"FROM ({capture.sql}) AS {DERIVED_TABLE}"
        self._columns = f"{DERIVED_TABLE}.*"
        if condition := capture.deleted_sql:
            # By the database's own truth: '0' and a BIT of 0 are false to it, and true to Python.
            self._columns += f", CASE WHEN {condition} THEN 1 ELSE 0 END AS {DELETED}"
        self._sql = cache(self._build)

    def since(self, low: Any, behind: Sequence[Any] | None, limit: int, *, itself: bool = True) -> SourceQuery:
        """Rows whose cursor is `low` or more, in order of cursor and key; behind: (cursor, *key) of the last row.

        itself: rows of that very cursor too; low None: all rows that have a cursor.
        """
        if low is None:
            return self._query("all with cursor", behind, limit)
        return self._query("since" if itself else "behind", behind, limit, low=low)

    def without_cursor(self, behind: Sequence[Any] | None, limit: int) -> SourceQuery:
        """Rows whose cursor is NULL, in order of key; behind: the key of the last row."""
        return self._query("without cursor", behind, limit)

    def by_key(self, behind: Sequence[Any] | None, limit: int, *, upto: Sequence[Any] | None = None) -> SourceQuery:
        """All rows in order of key, for a snapshot and for the reconcile.

        behind: the key of the last row; upto: the last key of a range.
        """
        if upto is None:
            return self._query("by key", behind, limit)
        return self._query("by key upto", behind, limit, **{f"u{i}": value for i, value in enumerate(upto)})

    def key_at(self, number: int) -> SourceQuery:
        """The key that so many rows come before, in order of key."""
        key = ", ".join(self._key)
        return SourceQuery(f"SELECT {key} {self._from} ORDER BY {key} LIMIT 1 OFFSET {number}", {})

    def rows_with_keys(self, keys: Sequence[Sequence[Any]]) -> SourceQuery:
        """The rows of these keys, as many as there still are."""
        values: dict[str, Any] = {}
        conditions = []
        for number, key in enumerate(keys):
            names = [f"k{number}_{i}" for i in range(len(key))]
            values |= dict(zip(names, key, strict=True))
            conditions.append(" AND ".join(_is(c, "=", name) for c, name in zip(self._key, names, strict=True)))
        return SourceQuery(f"SELECT {self._columns} {self._from} WHERE ({') OR ('.join(conditions)})", values)

    def has(self, key: Sequence[Any]) -> SourceQuery:
        """How many rows have a key: no other column is looked at."""
        names = [f"k{i}" for i in range(len(key))]
        condition = " AND ".join(_is(column, "=", name) for column, name in zip(self._key, names, strict=True))
        return SourceQuery(f"SELECT COUNT(*) {self._from} WHERE {condition}", dict(zip(names, key, strict=True)))

    def highest(self, upto: Any = None) -> SourceQuery:
        """The highest cursor there is, or up to a value; NULL if there is none."""
        sql = f"SELECT MAX({self._cursor}) {self._from}"
        if upto is None:
            return SourceQuery(sql, {})
        return SourceQuery(f"{sql} WHERE {_is(self._cursor, '<=', 'upto')}", {"upto": upto})

    def count(self) -> SourceQuery:
        """How many rows there are."""
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
    """(a, b) > (x, y), written as a >= x AND (a > x OR (a = x AND b > y)): so MariaDB takes an index on (a, b)."""
    if len(columns) == 1:
        return _is(columns[0], ">", "p0")
    return f"{_is(columns[0], '>=', 'p0')} AND ({_tail(columns, 0, '>', '>', 'p')})"


def _upto(columns: Sequence[str]) -> str:
    """(a, b) <= (x, y), in the same way."""
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
