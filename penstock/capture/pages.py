"""The queries of a capture: its SELECT, with the conditions that make one page of it.

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
from sqlglot import exp

from penstock.declare.capture import Capture

# The column of a page that says whether its row is deleted; always the last.
DELETED = "penstock_deleted"
# Words of the query that become parameters when it is text: a SELECT may hold colons, which SQLAlchemy would take.
_MARK = "penstock_parameter_"

Kind = Literal["since", "behind", "all with cursor", "without cursor", "by key", "by key upto"]


@dataclass(frozen=True)
class Query:
    """A query of one page, with its parameters."""

    sql: str
    values: Mapping[str, Any]

    @property
    def clause(self) -> TextClause:
        """What SQLAlchemy executes, together with `values`."""
        return _clause(self.sql)

    @property
    def shown(self) -> str:
        """As it is sent, for people: parameters by name."""
        return self.sql.replace(_MARK, ":")


@lru_cache(maxsize=1000)
def _clause(sql: str) -> TextClause:
    return text(sql.replace(":", "\\:").replace(_MARK, ":"))


class Pages:
    """Makes the queries of one capture; each kind is put together once."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        sources = {e.alias_or_name: e.unalias() for e in capture.select.expressions if not e.is_star}
        self._key = [_source(sources, name) for name in capture.key]
        self._cursor = _source(sources, capture.cursor)
        self._select = capture.select.copy()
        if capture.deleted is not None:
            deleted = capture.deleted.transform(
                lambda node: _source(sources, node.name).copy() if isinstance(node, exp.Column) else node
            )
            # By the database's own truth: '0' and a BIT of 0 are false to it, and true to Python.
            said = exp.Case().when(deleted, "1").else_("0")
            self._select.select(exp.alias_(said, DELETED), copy=False)
        self._sql = cache(self._made)

    def since(self, low: Any, behind: Sequence[Any] | None, limit: int, *, itself: bool = True) -> Query:
        """Rows whose cursor is `low` or more, in order of cursor and key; behind: (cursor, *key) of the last row.

        itself: rows of that very cursor too; low None: all rows that have a cursor.
        """
        if low is None:
            return self._query("all with cursor", behind, limit)
        return self._query("since" if itself else "behind", behind, limit, low=low)

    def without_cursor(self, behind: Sequence[Any] | None, limit: int) -> Query:
        """Rows whose cursor is NULL, in order of key; behind: the key of the last row."""
        return self._query("without cursor", behind, limit)

    def by_key(self, behind: Sequence[Any] | None, limit: int, *, upto: Sequence[Any] | None = None) -> Query:
        """All rows in order of key, for a snapshot and for the reconcile.

        behind: the key of the last row; upto: the last key of a range.
        """
        if upto is None:
            return self._query("by key", behind, limit)
        return self._query("by key upto", behind, limit, **{f"u{i}": value for i, value in enumerate(upto)})

    def key_at(self, number: int) -> Query:
        """The key that so many rows come before, in order of key."""
        made = self._capture.select.copy()
        made.set("expressions", [c.copy() for c in self._key])
        made = made.order_by(*(c.copy() for c in self._key), copy=False).limit(1, copy=False)
        return Query(made.offset(number, copy=False).sql(self._capture.dialect), {})

    def exactly(self, keys: Sequence[Sequence[Any]]) -> Query:
        """The rows of these keys, as many as there still are."""
        values: dict[str, Any] = {}
        each = []
        for number, key in enumerate(keys):
            names = [f"k{number}_{i}" for i in range(len(key))]
            values |= dict(zip(names, key, strict=True))
            each.append(exp.and_(*(_is(exp.EQ, c, name) for c, name in zip(self._key, names, strict=True))))
        made = self._select.copy().where(exp.Paren(this=exp.or_(*each)), copy=False)
        return Query(made.sql(self._capture.dialect), values)

    def highest(self, upto: Any = None) -> Query:
        """The highest cursor there is, or up to a value; NULL if there is none."""
        made = self._capture.select.copy()
        made.set("expressions", [exp.Max(this=self._cursor.copy())])
        if upto is None:
            return Query(made.sql(self._capture.dialect), {})
        made = made.where(_is(exp.LTE, self._cursor, "upto"), copy=False)
        return Query(made.sql(self._capture.dialect), {"upto": upto})

    def count(self) -> Query:
        """How many rows there are."""
        made = self._capture.select.copy()
        made.set("expressions", [exp.Count(this=exp.Star())])
        return Query(made.sql(self._capture.dialect), {})

    def _query(self, kind: Kind, behind: Sequence[Any] | None, limit: int, **values: Any) -> Query:
        if behind is not None:
            values |= {f"p{i}": value for i, value in enumerate(behind)}
        return Query(self._sql(kind, behind is not None, limit), values)

    def _made(self, kind: Kind, behind: bool, limit: int) -> str:
        null = exp.Is(this=self._cursor.copy(), expression=exp.Null())
        where: dict[Kind, list[exp.Expr]] = {
            "since": [_is(exp.GTE, self._cursor, "low")],
            "behind": [_is(exp.GT, self._cursor, "low")],
            "all with cursor": [exp.Not(this=null)],
            "without cursor": [null],
            "by key": [],
            "by key upto": [_upto(self._key)],
        }
        order = [self._cursor, *self._key] if kind in ("since", "behind", "all with cursor") else self._key
        made = self._select.copy()
        for condition in where[kind] + ([_behind(order)] if behind else []):
            made = made.where(condition, copy=False)
        made = made.order_by(*(e.copy() for e in order), copy=False).limit(limit, copy=False)
        return made.sql(self._capture.dialect)


def _behind(columns: Sequence[exp.Expr]) -> exp.Expr:
    """(a, b) > (x, y), written as a >= x AND (a > x OR (a = x AND b > y)): so MariaDB takes an index on (a, b)."""
    if len(columns) == 1:
        return _is(exp.GT, columns[0], "p0")
    return exp.and_(_is(exp.GTE, columns[0], "p0"), _tail(columns, 0, exp.GT, exp.GT, "p"))


def _upto(columns: Sequence[exp.Expr]) -> exp.Expr:
    """(a, b) <= (x, y), in the same way."""
    if len(columns) == 1:
        return _is(exp.LTE, columns[0], "u0")
    return exp.and_(_is(exp.LTE, columns[0], "u0"), _tail(columns, 0, exp.LT, exp.LTE, "u"))


def _tail(columns: Sequence[exp.Expr], at: int, each: type[exp.Binary], last: type[exp.Binary], mark: str) -> exp.Expr:
    if at == len(columns) - 1:
        return _is(last, columns[at], f"{mark}{at}")
    same = exp.and_(_is(exp.EQ, columns[at], f"{mark}{at}"), _tail(columns, at + 1, each, last, mark))
    return exp.or_(_is(each, columns[at], f"{mark}{at}"), same)


def _is(comparison: type[exp.Binary], column: exp.Expr, name: str) -> exp.Expr:
    return comparison(this=column.copy(), expression=exp.Var(this=f"{_MARK}{name}"))


def _source(sources: Mapping[str, exp.Expr], name: str) -> exp.Expr:
    # Quoted: `user` alone is a function in PostgreSQL.
    found = sources.get(name) or exp.column(exp.to_identifier(name, quoted=True))
    return found if isinstance(found, exp.Column) else exp.Paren(this=found)
