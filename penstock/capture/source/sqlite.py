"""SQLite, as captures read it."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import Connection, text
from sqlglot import exp

from penstock.capture.checks.column_types import SQLITE_ORDERING, Ordering
from penstock.capture.output.encode import text_of
from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.source.base import CONNECT_TIMEOUT, SourceDatabase, group_by_index
from penstock.capture.source.open_transactions import ServerSession


class SQLite(SourceDatabase):
    CLOCK = "SELECT (julianday('now') - 2440587.5) * 86400.0"
    CODE_POINT = "declare the column without a collation"
    OPTIONS: ClassVar = {"connect_args": {"timeout": CONNECT_TIMEOUT, "check_same_thread": False}}
    WHY_NOT_VISIBLE = "SQLite does not show them"

    def connected(self, connection: Any, about: Any) -> None:
        super().connected(connection, about)
        # SQLite does not check that text is UTF-8.
        connection.text_factory = text_of

    def sees_all(self, _: Connection) -> bool:
        return False

    def sessions(self, _: Connection) -> list[ServerSession]:
        return []

    def server(self) -> str:
        return self.display_url

    def order(self, _: None) -> Ordering:
        return SQLITE_ORDERING

    def rejects_value(self, _: BaseException) -> bool:
        return False

    def orders_by_code_point(self, rows: str, column: str) -> bool:
        """SQLite does not show the collation of a column, so variants of a value are compared."""
        with self._connected() as c:
            top = c.execute(SourceQuery(f"SELECT MAX(q.{column}) FROM {rows} AS q", {}).clause).scalar()
            for variant in {str(top).swapcase(), f"{top} "} - {top}:
                same, literal = f"SELECT COUNT(*) FROM {rows} AS q WHERE q.{column} = ", exp.Literal.string(variant)
                count = c.execute(SourceQuery(f"{same}{literal.sql('sqlite')}", {}).clause).scalar_one()
                plain = f"{same}{literal.sql('sqlite')} COLLATE BINARY"
                if count != c.execute(SourceQuery(plain, {}).clause).scalar_one():
                    return False
        return True

    def unique_keys(self, table: exp.Table) -> list[set[str]]:
        names = {"name": table.name, "schema": table.db or "main"}
        # An index that was not created with the table may have another collation than its column.
        query = text(
            'SELECT l.name, lower(x.name), l."unique" AND NOT l.partial AND l.origin <> \'c\' AND t."notnull"'
            " FROM pragma_index_list(:name, :schema) AS l JOIN pragma_index_xinfo(l.name, :schema) AS x"
            " LEFT JOIN pragma_table_info(:name, :schema) AS t ON t.name = x.name WHERE x.key"
        )
        key = text("SELECT lower(name), upper(type) FROM pragma_table_info(:name, :schema) WHERE pk")
        with self._connected() as c:
            columns_of_indexes, primary = group_by_index(c.execute(query, names)), c.execute(key, names).all()
        return (
            [*columns_of_indexes, {primary[0][0]}]
            if len(primary) == 1 and primary[0][1] == "INTEGER"
            else columns_of_indexes
        )

    def plan(self, query: SourceQuery) -> list[tuple[str, str]]:
        with self._connected() as c:
            rows = c.execute(text(f"EXPLAIN QUERY PLAN {query.clause.text}"), dict(query.values)).all()
        scans = []
        for *_, detail in rows:
            words = str(detail).split()
            if words[0] in ("SCAN", "SEARCH"):
                by_key = "PRIMARY" in words and "PRIMARY KEY"
                index = next((words[i + 1] for i, w in enumerate(words[:-1]) if w == "INDEX"), "") or by_key or ""
                scans.append((words[1], index))
        return scans
