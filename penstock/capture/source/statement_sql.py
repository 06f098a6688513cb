"""SQL of a capture's statement for queries other than pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlglot import exp

from penstock.capture.source.base import SourcePage
from penstock.model.capture import Capture

# The oid of a table of PostgreSQL, by the parameters `schema`, `name` and `written`; a table of a view may be in a
# schema that this login cannot use.
POSTGRES_TABLE = (
    "CASE WHEN CAST({m}schema AS text) IS NULL THEN to_regclass({m}written) ELSE (SELECT k.oid FROM pg_class AS k"
    " JOIN pg_namespace AS s ON s.oid = k.relnamespace WHERE k.relname = {m}name AND s.nspname = {m}schema) END"
)


def rows(capture: Capture) -> str:
    """The capture's SELECT as a derived table."""
    return f"({capture.sql})"


def quoted(capture: Capture, name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql(capture.dialect)


def folded_name(name: exp.Expr | None, dialect: str) -> str | None:
    """A name of a table or schema as the engine stores it; None if there is none."""
    if name is None:
        return None
    return name.name.lower() if dialect == "postgres" and not name.args.get("quoted") else name.name


def columns(page: SourcePage, names: Iterable[str]) -> list[tuple[Any, ...]]:
    """The values of columns, for each row of a page."""
    at = [page.names.index(name) for name in names]
    return [tuple(row[i] for i in at) for row in page.rows]


def single_table(capture: Capture) -> tuple[exp.Table, set[str]] | None:
    """The table of a SELECT from one table, and its columns of the key; None for any other SELECT.

    Names are in lower case unless the engine distinguishes case.
    """
    select, key = capture.select, set()
    source = select.args.get("from_") or select.args.get("from")
    table = source and source.this
    if not isinstance(table, exp.Table) or select.args.get("joins") or select.args.get("laterals"):
        return None
    written = {e.alias_or_name: e.unalias() for e in select.expressions if not e.is_star}
    for name in capture.key:
        column = written.get(name) or exp.column(exp.to_identifier(name, quoted=True))
        if not isinstance(column, exp.Column):
            return None
        quotes = capture.dialect == "postgres" and column.this.args.get("quoted")
        key.add(column.name if quotes else column.name.lower())
    return table, key
