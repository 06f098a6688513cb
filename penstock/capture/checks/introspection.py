"""Inspects a capture's statement in the database: its tables, views, generated columns and functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.capture.checks.catalog_query import catalog_rows
from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.source.base import SourceDatabase, SourceError
from penstock.capture.source.statement_sql import folded_name
from penstock.model.capture import Capture
from penstock.model.checks.capture_checks import LEAVE_OUT, MOMENT, check_query
from penstock.model.sql.parser import parse_one
from penstock.model.sql.volatile_functions import NAMES, called, momentary

# (kind, text of a view) of a table.
_TABLES = {
    "mysql": "SELECT t.TABLE_TYPE, v.VIEW_DEFINITION FROM information_schema.tables t"
    " LEFT JOIN information_schema.views v ON v.TABLE_SCHEMA = t.TABLE_SCHEMA AND v.TABLE_NAME = t.TABLE_NAME"
    " WHERE t.TABLE_NAME = {m}name AND t.TABLE_SCHEMA = COALESCE({m}schema, DATABASE())",
    "postgres": "SELECT CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'f' THEN"
    " 'FOREIGN TABLE' ELSE 'TABLE' END AS kind,"
    " CASE WHEN relkind IN ('v', 'm') THEN pg_get_viewdef(oid) END AS text"
    " FROM pg_class WHERE oid = {found}",
    "sqlite": "SELECT UPPER(type) AS kind, CASE type WHEN 'view' THEN sql END AS text FROM sqlite_master"
    " WHERE name = {m}name COLLATE NOCASE AND type IN ('table', 'view')",
}
# The generated columns of a table, and their expressions if the database shows them.
_GENERATED = {
    "mysql": "SELECT COLUMN_NAME, GENERATION_EXPRESSION FROM information_schema.columns WHERE TABLE_NAME = {m}name"
    " AND TABLE_SCHEMA = COALESCE({m}schema, DATABASE()) AND GENERATION_EXPRESSION <> ''",
    "postgres": "SELECT attname, NULL AS text FROM pg_attribute WHERE attrelid = {found}"
    " AND attgenerated <> '' AND NOT attisdropped",
    "sqlite": "SELECT name, NULL AS text FROM pragma_table_xinfo({m}name) WHERE hidden IN (2, 3)",
}
# Volatile functions, and whether they are built in.
_VOLATILE = {
    "mysql": "SELECT ROUTINE_NAME, 0 AS built FROM information_schema.routines WHERE ROUTINE_SCHEMA = DATABASE()"
    " AND ROUTINE_TYPE = 'FUNCTION' AND IS_DETERMINISTIC = 'NO' AND ROUTINE_NAME IN ({names})",
    "postgres": "SELECT p.proname, n.nspname = 'pg_catalog' AS built FROM pg_proc p"
    " JOIN pg_namespace n ON n.oid = pronamespace"
    " WHERE p.proname IN ({names}) GROUP BY p.proname, n.nspname HAVING bool_and(p.provolatile = 'v')",
    "sqlite": "SELECT name, builtin FROM pragma_function_list WHERE name IN ({names})"
    " GROUP BY name, builtin HAVING MAX(flags & 2048) = 0 AND MAX(type) = 's'",
}


# A row's number in SQLite, where no column has the name.
ROW_IDS = frozenset({"rowid", "oid", "_rowid_"})


@dataclass
class StatementInfo:
    """What the database tells of a statement; each name as it is written.

    Attributes:
        tables: All tables that the SELECT reads, those of its views too.
        views: Views, with their kinds.
        generated: Generated columns.
        functions: Functions that may return another value at each call.
        elsewhere: Foreign tables.
        unknown: Views whose text cannot be parsed.
    """

    tables: list[exp.Table] = field(default_factory=list)
    views: dict[str, str] = field(default_factory=dict)
    generated: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def inspect_statement(capture: Capture, database: SourceDatabase) -> StatementInfo:
    """Inspect a statement.

    Raises:
        SourceError: Pages of the capture would not be rows of its tables.
    """
    info, dialect = StatementInfo(), capture.dialect
    _functions(capture, database, f"{capture.sql} {capture.deleted_sql}", info)
    # Each with the view of the statement that contains it.
    tables = [(table, "") for table in capture.select.find_all(exp.Table)]
    visited, used = set[str](), {column.name for column in capture.select.find_all(exp.Column)}
    while tables:
        table, view = tables.pop(0)
        written = ".".join(part.sql(dialect) for part in table.parts)
        if not table.name or written in visited:
            continue
        visited.add(written)
        info.tables.append(table)
        name, schema = (folded_name(part, dialect) for part in (table.this, table.args.get("db")))
        values = {"name": name, "schema": schema, "written": written}
        for kind, text in catalog_rows(database, _TABLES[dialect], values):
            if kind == "FOREIGN TABLE":
                info.elsewhere.append(written)
            if "VIEW" in kind:
                info.views[written] = kind
                inner = _view(
                    capture, database, f"'{written}'" + (f" of '{view}'" if view else ""), str(text or ""), info
                )
                tables += [(inner_table, view or written) for inner_table in inner]
        for column, text in catalog_rows(database, _GENERATED[dialect], values):
            if not (view or capture.columns is None or column in used):
                continue
            info.generated.append(f"{written}.{column}")
            _moments(capture, f"the generated column '{written}.{column}'", str(text or ""))
    if dialect == "sqlite":
        _quoted(capture, database, info.tables)
    return info


def _quoted(capture: Capture, database: SourceDatabase, tables: Iterable[exp.Table]) -> None:
    """Refuse a quoted name that no column has, since SQLite takes it for a string, also after a column was dropped."""
    if not all(table.name for table in capture.select.find_all(exp.Table)):
        return  # the columns of a function's rows are not known
    known = {alias.alias.lower() for alias in capture.select.find_all(exp.Alias)} | ROW_IDS
    for table in tables:
        argument = f", {exp.Literal.string(table.db).sql()}" if table.db else ""
        query = SourceQuery(
            f"SELECT name FROM pragma_table_xinfo({exp.Literal.string(table.name).sql()}{argument})", {}
        )
        known |= {str(name).lower() for (name,) in database.page(query).rows}
    selected = set(database.page(SourceQuery(f"SELECT * FROM ({capture.sql}) AS q LIMIT 0", {})).names)
    for tree, names in ((capture.select, known), (capture.deleted, {name.lower() for name in selected})):
        for column in tree.find_all(exp.Column) if tree else ():
            if column.this.args.get("quoted") and not column.table and column.name.lower() not in names:
                raise SourceError(
                    f"capture {capture.name}: no column has this name, so SQLite takes it for a text",
                    got=column.sql("sqlite"),
                    hint="name a column as it is called there; a text stands in single quotes",
                )


def _view(capture: Capture, database: SourceDatabase, name: str, text: str, info: StatementInfo) -> list[exp.Table]:
    """The tables of a view. SourceError if its rows cannot be paged."""

    def refuse(what: str, node: exp.Expr, hint: str, word: str = "") -> SourceError:
        got = f"{word or node.sql(capture.dialect)} in the view {name}"
        return SourceError(f"capture {capture.name}: {what}", got=got, hint=f"{hint}; or select from the view's tables")

    try:
        tree = parse_one(text, capture.dialect)
    except SqlglotError:
        info.unknown.append(name)
        return []
    query = tree if isinstance(tree, exp.Query) else tree.expression
    if not isinstance(query, exp.Query):
        info.unknown.append(name)
        return []
    check_query(query, capture.dialect, refuse)
    _moments(capture, f"the view {name}", text)
    _functions(capture, database, text, info)
    return list(query.find_all(exp.Table))


def _moments(capture: Capture, place: str, text: str) -> None:
    for _, call in momentary(sqlglot.tokenize(text, capture.dialect), capture.dialect):
        raise SourceError(f"capture {capture.name}: {MOMENT}", got=f"{call} in {place}", hint=LEAVE_OUT)


def _functions(capture: Capture, database: SourceDatabase, text: str, info: StatementInfo) -> None:
    tokens = sqlglot.tokenize(text, capture.dialect)
    names = {name if capture.dialect == "mysql" else name.lower() for name in called(tokens)}
    names -= {name for name in names if name.upper() in NAMES[capture.dialect]}
    values = {f"n{i}": name for i, name in enumerate(sorted(names))}
    marks = ", ".join(f"{{m}}{mark}" for mark in values)
    for name, is_builtin in (
        catalog_rows(database, _VOLATILE[capture.dialect].replace("{names}", marks), values) if names else ()
    ):
        if is_builtin:
            raise SourceError(f"capture {capture.name}: {MOMENT}", got=f"{name}(...)", hint=LEAVE_OUT)
        if str(name) not in info.functions:
            info.functions.append(str(name))
