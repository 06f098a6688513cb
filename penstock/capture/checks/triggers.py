"""Finds out whether triggers or columns set a capture's cursor when a row changes, and which triggers do not.

The text of a trigger is searched, without the functions that it calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from penstock.capture.checks.catalog_query import catalog_rows
from penstock.capture.checks.caveats import DELIVERY, REMOVAL, UNTIL
from penstock.capture.source.base import SourceDatabase
from penstock.capture.source.statement_sql import folded_name
from penstock.model.capture import Capture
from penstock.model.sql.lexer import excerpt
from penstock.model.sql.volatile_functions import BARE, NAMES

# Whether the column has ON UPDATE; no row if the table has no such column, or is a view.
_COLUMN = {
    "mysql": "SELECT EXTRA LIKE '%on update%' FROM information_schema.COLUMNS JOIN information_schema.TABLES t"
    " USING (TABLE_SCHEMA, TABLE_NAME) WHERE TABLE_TYPE NOT LIKE '%VIEW' AND TABLE_NAME = {m}name"
    " AND TABLE_SCHEMA = COALESCE({m}schema, DATABASE()) AND COLUMN_NAME = {m}column",
    "postgres": "SELECT false AS itself FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid"
    " WHERE attrelid = {found} AND c.relkind IN ('r', 'p') AND attname = {m}column AND NOT attisdropped",
    "sqlite": "SELECT 0 AS itself FROM pragma_table_info({m}name) JOIN sqlite_master AS m ON m.name = {m}name COLLATE"
    " NOCASE AND m.type = 'table' WHERE pragma_table_info.name = {m}column COLLATE NOCASE",
}
# (name, its table, whether that is the one asked for, at which changes, whether it is disabled, whether it has a
# condition, text) of the triggers of a table, and of all others whose text may name it.
_TRIGGERS = {
    "mysql": "SELECT TRIGGER_NAME, EVENT_OBJECT_TABLE, EVENT_OBJECT_TABLE = {m}name AS here, EVENT_MANIPULATION,"
    " 0 AS off, 0 AS partly, ACTION_STATEMENT FROM information_schema.TRIGGERS"
    " WHERE EVENT_OBJECT_SCHEMA = COALESCE({m}schema, DATABASE())",
    "postgres": "SELECT tgname, c.relname, tgrelid = {found} AS here,"
    " CASE WHEN tgtype & 16 > 0 THEN 'UPDATE' END AS event, tgenabled IN ('D', 'R') AS off,"
    " tgqual IS NOT NULL OR tgattr <> '' AS partly,"
    " p.prosrc || ' ' || split_part(pg_get_triggerdef(t.oid), 'EXECUTE', 2) AS text"
    " FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = tgrelid JOIN pg_proc AS p ON p.oid = tgfoid"
    " WHERE NOT tgisinternal AND (tgrelid = {found} OR strpos(lower(p.prosrc), lower({m}name)) > 0)",
    "sqlite": "SELECT name, tbl_name, lower(tbl_name) = lower({m}name) AS here, '' AS event, 0 AS off, 0 AS partly, sql"
    " FROM sqlite_master WHERE type = 'trigger'",
}
_HEAD = re.compile(
    r"\bTRIGGER\b.*?\b(DELETE|INSERT|UPDATE)(\s+OF\b.*?)?\s+ON\b(.*?)\bBEGIN\b",
    re.I | re.S,
)


@dataclass(frozen=True)
class Trigger:
    """A trigger.

    Attributes:
        here: Whether it is one of the table in question.
        of_updates: Whether it runs at an UPDATE.
        off: Whether it is disabled.
        partly: Whether it runs for some changes only.
    """

    name: str
    table: str
    here: bool
    of_updates: bool
    off: bool
    partly: bool
    text: str

    def changes(self, table: str) -> list[str]:
        """The SET clauses of its UPDATE statements of a table."""
        alias, end = r"(?:(?:AS\s+)?(?!SET\b)\w+\s+)?", r"(?:\bWHERE\b|;|\bEND\b|$)"
        return self._found(rf"\bUPDATE\s+(?:OR\s+\w+\s+|ONLY\s+)?{_written(table)}\s+{alias}SET\b(.*?){end}")

    def deletes(self, table: str) -> bool:
        return bool(self._found(rf"\bDELETE\s+FROM\s+(?:ONLY\s+)?{_written(table)}(?!\w)"))

    def assigned(self, column: str) -> list[str]:
        """The values that it assigns to a column of the changed row."""
        if not self.here or not self.of_updates:
            return []
        new = rf"\bNEW\s*\.\s*[`\"]?{re.escape(column)}[`\"]?\s*"
        # A comparison stands before THEN.
        compared = self._found(rf"{new}=\s*([^;]+?)(?=\bTHEN\b)")
        return [text for text in self._found(rf"{new}:?=\s*([^;]+?)(?=;|\bEND\b|\bTHEN\b|$)") if text not in compared]

    def keeps(self, table: str, column: str) -> bool:
        """Whether it sets a column when a row of its table changes."""
        if not self.here or not self.of_updates or self.off:
            return False
        # A function of C has it as its argument.
        argument = self._found(rf"\(\s*'?\"?{re.escape(column)}\"?'?\s*\)\s*$")
        return bool(self.assigned(column) or argument or any(_names(column, change) for change in self.changes(table)))

    def _found(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.text, re.IGNORECASE | re.DOTALL)


def _written(table: str) -> str:
    return rf"(?:[\w`\"\[\]]+\.)?[`\"\[]?{re.escape(table)}[`\"\]]?"


def trigger_caveats(database: SourceDatabase, capture: Capture, tables: Iterable[exp.Table]) -> Iterator[str]:
    """Yields a sentence for each way in which triggers change or delete rows without a change of the cursor."""
    columns = _cursor(capture)
    for table in tables:
        name, schema = (folded_name(part, capture.dialect) or None for part in (table.this, table.args.get("db")))
        written = ".".join(part.sql(capture.dialect) for part in table.parts)
        values = {"name": name, "schema": schema, "written": written}
        column_rows = [
            row
            for column in columns
            for row in catalog_rows(database, _COLUMN[capture.dialect], {**values, "column": column})
        ]
        if column_rows:
            triggers = [
                _trigger(row, capture.dialect) for row in catalog_rows(database, _TRIGGERS[capture.dialect], values)
            ]
            yield from _caveats_of_table(
                capture, table.name, columns, triggers, by_column=any(itself for (itself,) in column_rows)
            )


def _caveats_of_table(
    capture: Capture, table: str, columns: list[str], triggers: list[Trigger], *, by_column: bool
) -> Iterator[str]:
    """The sentences of one table that has the cursor's columns; `by_column`: whether they have ON UPDATE."""
    cursor = ", ".join(columns)
    keepers = [trigger for trigger in triggers if any(trigger.keeps(table, column) for column in columns)]
    unconditional = [trigger for trigger in keepers if not trigger.partly]
    for trigger in triggers:
        if trigger.here and trigger.off and any(_names(column, trigger.text) for column in columns):
            yield f"{DELIVERY}: trigger {trigger.name} of {table} is disabled, and sets {cursor} of no change"
    if not by_column and not keepers:
        what = "neither ON UPDATE nor a trigger" if capture.dialect == "mysql" else "no trigger"
        yield (
            f"{DELIVERY}: {what} sets {cursor} when a row of {table} changes; a change without it is not seen, {UNTIL}"
        )
    if not by_column and not unconditional:
        for trigger in keepers:
            yield (
                f"{DELIVERY}: trigger {trigger.name} of {table} sets {cursor} of some changes only (UPDATE OF, "
                "WHEN); others "
                f"are not seen, {UNTIL}"
            )
    for trigger in triggers:
        for value in (value for column in columns for value in trigger.assigned(column)):
            if not _grows(value, capture.dialect):
                yield (
                    f"{DELIVERY}: trigger {trigger.name} of {table} sets {cursor} to {excerpt(value.strip())}; a "
                    "change is seen "
                    "only if that grows with it"
                )
        # SQLite runs no trigger for what it does itself.
        is_kept = by_column or any(keeper is not trigger or capture.dialect != "sqlite" for keeper in unconditional)
        changes_without_cursor = [
            value for value in trigger.changes(table) if not any(_names(column, value) for column in columns)
        ]
        if changes_without_cursor and not is_kept and not trigger.off:
            yield (
                f"{DELIVERY}: trigger {trigger.name} of {trigger.table} changes rows of {table} and leaves {cursor} as "
                f"it was; that is not seen, {UNTIL}"
            )
        if trigger.deletes(table) and not trigger.off:
            yield f"{REMOVAL}: not a row of {table} that trigger {trigger.name} of {trigger.table} deletes, {UNTIL}"


def _cursor(capture: Capture) -> list[str]:
    """The columns of the cursor's expression."""
    sources = {e.alias_or_name: e for e in capture.select.expressions if not e.is_star}
    columns = (
        [column.name for column in sources[capture.cursor].find_all(exp.Column)] if capture.cursor in sources else []
    )
    return list(dict.fromkeys(columns)) or [capture.cursor]


def _names(column: str, text: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(column)}(?!\w)", text, re.IGNORECASE))


def _grows(text: str, dialect: str) -> bool:
    """Whether an expression contains the present time or a sequence."""
    names = {word.upper() for word in re.findall(r"\w+", text)}
    return bool(names & (NAMES[dialect] | BARE[dialect])) or bool(re.search(r"'now'|\bOLD\b.*\+", text, re.IGNORECASE))


def _trigger(row: tuple[Any, ...], dialect: str) -> Trigger:
    name, table, here, event, off, partly, text = row
    if dialect == "sqlite" and (head := _HEAD.search(text)):
        event, partly = head[1].upper(), bool(head[2]) or _names("WHEN", head[3])
        text = text[head.end() :]
    return Trigger(str(name), str(table), bool(here), event == "UPDATE", bool(off), bool(partly), str(text))
