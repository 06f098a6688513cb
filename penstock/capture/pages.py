"""The queries of a capture: its SELECT, with the conditions that make one page of it.

Paging is by keyset (cursor and key of the last row read), never by OFFSET: rows that change between two pages neither
hide others nor come twice by themselves. Every query is ordered by what it pages on, so a row that is read once stands
before all that are read later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import TextClause, text
from sqlglot import exp

from penstock.capture.statement import Capture

# Words of the query that become parameters when it is text: a SELECT may hold colons, which SQLAlchemy would take.
_MARK = "penstock_parameter_{}"


@dataclass(frozen=True)
class Query:
    """A query of one page, with its parameters."""

    sql: str
    values: Mapping[str, Any]

    @property
    def clause(self) -> TextClause:
        """What SQLAlchemy executes, together with `values`."""
        made = self.sql.replace("\\", "\\\\").replace(":", "\\:")
        for name in self.values:
            made = made.replace(_MARK.format(name), f":{name}")
        return text(made)

    @property
    def shown(self) -> str:
        """As it is sent, for people: parameters by name."""
        made = self.sql
        for name in self.values:
            made = made.replace(_MARK.format(name), f":{name}")
        return made


class Pages:
    """Makes the queries of one capture."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        sources = {e.alias_or_name: e.unalias() for e in capture.select.expressions if not e.is_star}
        self._key = [self._source(sources, name) for name in capture.key]
        self._cursor = self._source(sources, capture.cursor)

    def since(self, low: Any, behind: Sequence[Any] | None, limit: int) -> Query:
        """Rows whose cursor is `low` or more, in order of cursor and key; behind: (cursor, *key) of the last row."""
        values: dict[str, Any] = {"low": low}
        where = [exp.GTE(this=self._cursor.copy(), expression=_parameter("low"))]
        if behind is not None:
            where += [self._behind([self._cursor, *self._key], behind, values)]
        return self._page(where, [self._cursor, *self._key], values, limit)

    def without_cursor(self, behind: Sequence[Any] | None, limit: int) -> Query:
        """Rows whose cursor is NULL, in order of key; behind: the key of the last row."""
        values: dict[str, Any] = {}
        where: list[exp.Expr] = [exp.Is(this=self._cursor.copy(), expression=exp.Null())]
        if behind is not None:
            where.append(self._behind(self._key, behind, values))
        return self._page(where, self._key, values, limit)

    def by_key(self, behind: Sequence[Any] | None, upto: Sequence[Any] | None, limit: int) -> Query:
        """All rows in order of key, behind one key and up to another, for a snapshot and for the reconcile."""
        values: dict[str, Any] = {}
        where: list[exp.Expr] = []
        if behind is not None:
            where.append(self._behind(self._key, behind, values))
        if upto is not None:
            where.append(exp.Not(this=exp.Paren(this=self._behind(self._key, upto, values, "u"))))
        return self._page(where, self._key, values, limit)

    def _page(self, where: list[exp.Expr], order: list[exp.Expr], values: dict[str, Any], limit: int) -> Query:
        made = self._capture.select.copy()
        for condition in where:
            made = made.where(condition, copy=False)
        made = made.order_by(*(e.copy() for e in order), copy=False).limit(limit, copy=False)
        return Query(made.sql(self._capture.dialect), values)

    def _behind(
        self, columns: Sequence[exp.Expr], last: Sequence[Any], values: dict[str, Any], prefix: str = "p"
    ) -> exp.Expr:
        """(a, b) > (x, y), written as a >= x AND (a > x OR (a = x AND b > y)): so MariaDB takes an index on (a, b)."""
        names = [f"{prefix}{i}" for i in range(len(columns))]
        values |= dict(zip(names, last, strict=True))
        (column, *more), (name, *_) = columns, names
        greater = exp.GT(this=column.copy(), expression=_parameter(name))
        if not more:
            return greater
        deeper = self._tail(list(columns), names)
        return exp.and_(exp.GTE(this=column.copy(), expression=_parameter(name)), deeper)

    def _tail(self, columns: list[exp.Expr], names: list[str]) -> exp.Expr:
        greater: exp.Expr = exp.GT(this=columns[0].copy(), expression=_parameter(names[0]))
        if len(columns) == 1:
            return greater
        same = exp.EQ(this=columns[0].copy(), expression=_parameter(names[0]))
        return exp.or_(greater, exp.and_(same, self._tail(columns[1:], names[1:])))

    def _source(self, sources: dict[str, exp.Expr], name: str) -> exp.Expr:
        found = sources.get(name) or exp.column(exp.to_identifier(name))
        return found if isinstance(found, exp.Column) else exp.Paren(this=found)


def _parameter(name: str) -> exp.Expr:
    return exp.Var(this=_MARK.format(name))
