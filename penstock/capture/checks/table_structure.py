"""The structure of the tables that a capture reads, and foreign keys that change rows without their cursor."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from sqlglot import exp

from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.source.base import SourceDatabase
from penstock.capture.source.statement_sql import POSTGRES_TABLE, folded_name
from penstock.model.capture import Capture

# All that identifies the structure of a table: number, name and type of columns, labels of enums, and the creation
# time or storage, which changes if the table is truncated or exchanged.
TABLE_STRUCTURES = {
    "mysql": (
        "SELECT c.ORDINAL_POSITION, c.COLUMN_NAME, c.COLUMN_TYPE, c.COLLATION_NAME, c.GENERATION_EXPRESSION,"
        " t.TABLE_TYPE, t.CREATE_TIME, v.VIEW_DEFINITION FROM information_schema.COLUMNS c"
        " JOIN information_schema.TABLES t ON t.TABLE_SCHEMA = {schema} AND t.TABLE_NAME = {table}"
        " LEFT JOIN information_schema.VIEWS v ON v.TABLE_SCHEMA = {schema} AND v.TABLE_NAME = {table}"
        " WHERE c.TABLE_SCHEMA = {schema} AND c.TABLE_NAME = {table} ORDER BY 1"
    ),
    "postgres": (
        "SELECT a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation, a.attrelid, c.relfilenode,"
        " (SELECT string_agg(enumlabel, ' ' ORDER BY enumsortorder) FROM pg_type AS y"
        " JOIN pg_enum ON enumtypid IN (y.oid, y.typelem, y.typbasetype) WHERE y.oid = a.atttypid) AS labels,"
        " CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END,"
        " (WITH RECURSIVE heir AS (SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid UNION SELECT i.inhrelid"
        " FROM pg_inherits AS i JOIN heir ON i.inhparent = heir.inhrelid) SELECT string_agg(inhrelid || ' ' ||"
        " k.relfilenode, ' ' ORDER BY inhrelid) FROM heir JOIN pg_class AS k ON k.oid = inhrelid) AS heirs"
        " FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " WHERE a.attrelid = {found} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1"
    ),
    "sqlite": (
        # Two tables of the same columns that swap their names differ by where they are kept.
        "SELECT sql, rowid, rootpage FROM {main}sqlite_master WHERE type IN ('table', 'view')"
        " AND lower(name) = lower({table})"
    ),
}
# Foreign keys of a table: name, referenced table, ON UPDATE, ON DELETE.
FOREIGN_KEYS = {
    "mysql": (
        "SELECT CONSTRAINT_NAME, REFERENCED_TABLE_NAME, UPDATE_RULE, DELETE_RULE"
        " FROM information_schema.REFERENTIAL_CONSTRAINTS"
        " WHERE CONSTRAINT_SCHEMA = {schema} AND TABLE_NAME = {table} ORDER BY 1"
    ),
    "postgres": (
        "SELECT conname, confrelid::regclass::text,"
        " CASE confupdtype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'd' THEN 'SET DEFAULT' END AS updated,"
        " CASE confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'd' THEN 'SET DEFAULT' END AS deleted"
        " FROM pg_constraint WHERE contype = 'f' AND conrelid = {found} ORDER BY 1"
    ),
    "sqlite": (
        'SELECT \'from \' || "from", "table", on_update, on_delete FROM pragma_foreign_key_list({table}{argument})'
        " ORDER BY 1"
    ),
}
CHANGING_ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT")


def table_fingerprint(database: SourceDatabase, capture: Capture, tables: Iterable[exp.Table]) -> str:
    """A digest of the structure of tables, which changes when they are altered or exchanged."""
    rows = [
        (_catalog_rows(database, TABLE_STRUCTURES, capture, table), database.storage_ids(table.db, table.name))
        for table in _sorted(capture, tables)
    ]
    return hashlib.blake2b(repr(rows).encode(), digest_size=8).hexdigest()


def foreign_key_caveats(database: SourceDatabase, capture: Capture, tables: Iterable[exp.Table]) -> Iterator[str]:
    """Yields a sentence for each foreign key that changes or deletes rows without a change of their cursor."""
    # Whether changes by foreign keys run triggers, which may set the cursor.
    runs_triggers = capture.dialect != "mysql"
    for table in _sorted(capture, tables):
        for name, referenced, on_update, on_delete in _catalog_rows(database, FOREIGN_KEYS, capture, table):
            what = f"{table.name}: foreign key {name} to {referenced}"
            if on_delete == "CASCADE":
                yield (
                    f"{what} deletes rows (ON DELETE CASCADE), which no poll sees: they stay in the topic until the "
                    "next reconcile"
                )
            changes = [
                f"ON {verb} {rule}"
                for verb, rule in (("UPDATE", on_update), ("DELETE", on_delete))
                if rule in CHANGING_ACTIONS and (verb, rule) != ("DELETE", "CASCADE")
            ]
            if changes:
                limitation = (
                    "unless a trigger of the table sets it" if runs_triggers else "not even by ON UPDATE or a trigger"
                )
                yield (
                    f"{what} changes rows ({', '.join(changes)}) and does not touch the cursor {capture.cursor}, "
                    f"{limitation}: no poll sees it, the next reconcile does"
                )


def _sorted(capture: Capture, tables: Iterable[exp.Table]) -> list[exp.Table]:
    by_sql = {table.sql(capture.dialect): table for table in tables if table.name}
    return [by_sql[name] for name in sorted(by_sql)]


def _catalog_rows(
    database: SourceDatabase, queries: dict[str, str], capture: Capture, table: exp.Table
) -> list[tuple[Any, ...]]:
    def literal(text: str) -> str:
        return exp.Literal.string(text).sql(capture.dialect)

    identifiers = [identifier for identifier in table.parts if isinstance(identifier, exp.Identifier)]
    # As written: the engine folds names without quotes.
    written = [identifier.sql(capture.dialect) for identifier in identifiers]
    name, schema = (folded_name(identifier, capture.dialect) for identifier in (table.this, table.args.get("db")))
    literals = {
        "schema": literal(schema) if schema else "NULL",
        "name": literal(name or ""),
        "written": literal(".".join(written)),
    }
    sql = queries[capture.dialect].format(
        table=literal(table.name),
        schema=literal(table.db) if table.db else "DATABASE()",
        found=re.sub(r"\{m\}(\w+)", lambda found: literals[found[1]], POSTGRES_TABLE),
        main=f"{written[-2]}." if table.db else "",
        argument=f", {literal(table.db)}" if table.db else "",
    )
    return [tuple(row) for row in database.page(SourceQuery(sql, {})).rows]
