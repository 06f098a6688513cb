"""MariaDB and MySQL, as captures read them."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any, ClassVar
from uuid import uuid4

import pymysql
from pymysql.constants import ER, FIELD_TYPE, FLAG
from pymysql.converters import conversions
from pymysql.cursors import SSCursor
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlglot import exp

from penstock.capture.checks.column_types import BINARY, TEXTS, MySQLColumn, Ordering, mysql_ordering
from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.source.base import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    ZONED,
    SourceDatabase,
    SourceError,
    SourcePage,
    group_by_index,
)
from penstock.capture.source.mysql_rows import read_rows, result_fields
from penstock.capture.source.open_transactions import ServerSession, TransactionSnapshot

log = logging.getLogger(__name__)
# 2000-01-01, 2030-01-01, and the first again, to recognise rows that changed in the meantime.
OTHER_TIMES = (946684800, 1893456000, 946684800)
# Seconds after which InnoDB refreshes its list of transactions, and number of retries.
STALE, RETRIES = 0.15, 3
# From here on InnoDB's transaction ids are memory addresses of transactions without an id, which are reused.
NUMBERS = 1 << 48
# Errors about a value: collations that do not mix, and values out of the range of a type or character set.
REFUSED = {
    ER.CANT_AGGREGATE_2COLLATIONS,
    ER.CANT_AGGREGATE_3COLLATIONS,
    ER.CANT_AGGREGATE_NCOLLATIONS,
    ER.TRUNCATED_WRONG_VALUE,
    ER.TRUNCATED_WRONG_VALUE_FOR_FIELD,
    ER.WARN_DATA_OUT_OF_RANGE,
    ER.DATA_TOO_LONG,
    ER.INVALID_CHARACTER_STRING,
    # MySQL: a parameter that has no equivalent in the column's character set.
    3854,
    3988,
}
# Types whose values the driver converts. Others would be read as text, whatever they are.
KNOWN_TYPES = {number for number in vars(FIELD_TYPE).values() if isinstance(number, int)}
# A type of MySQL 9.
VECTOR = 242
# Collations by code point that do not pad values with spaces.
CODE_POINT = {"binary", "utf8mb4_0900_bin", *(f"{s}_nopad_bin" for s in ("utf8mb4", "utf8mb3", "utf8", "ascii"))}
# Character sets that are lossless in UTF-8. Others have bytes without a character, which become `?`, or two characters
# that are one in Unicode.
LOSSLESS_CHARSETS = {
    "utf8mb4",
    "utf8mb3",
    "utf8",
    "utf16",
    "utf16le",
    "utf32",
    "ucs2",
    "latin1",
    "latin2",
    "latin5",
    "latin7",
}
LOSSLESS_CHARSETS |= {"binary", "cp850", "cp852", "cp866", "keybcs2", "koi8r", "koi8u", "macce", "macroman"}


def _datetime(text: str) -> datetime | str:
    """Like PyMySQL's converter, but five times faster; invalid times such as `0000-00-00 00:00:00` stay text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


class MySQL(SourceDatabase):
    """MariaDB and MySQL."""

    CLOCK = "SELECT UNIX_TIMESTAMP(SYSDATE(6))"
    CODE_POINT = "give it the collation utf8mb4_nopad_bin, or utf8mb4_0900_bin in MySQL; a time or a number is better"
    OPTIONS: ClassVar = {
        "connect_args": {
            "connect_timeout": CONNECT_TIMEOUT,
            # A server that hangs must not look idle. Any other ends the query itself before.
            "read_timeout": READ_TIMEOUT + 10,
            "write_timeout": READ_TIMEOUT,
            "charset": "utf8mb4",
            "conv": conversions | {FIELD_TYPE.DATETIME: _datetime, FIELD_TYPE.TIMESTAMP: _datetime},
        }
    }
    # A snapshot for each query, since each is a transaction. The collation of literals is the vendor's default.
    SESSION: ClassVar = (
        # A limit would truncate results. With chained transactions all later polls would read the same snapshot.
        "SET sql_select_limit = 18446744073709551615, completion_type = 0",
        "COMMIT",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SET collation_connection = /*M!100000 utf8mb4_general_ci *//*!80000 utf8mb4_0900_ai_ci */",
    )
    # Variables that change the meaning or the result of a SELECT, or that end a session between polls or a query before
    # READ_TIMEOUT. Some versions lack some of them.
    VARIABLES: ClassVar = {
        # Times with a zone are read in UTC.
        "time_zone": "'+00:00'",
        "sql_mode": "''",
        "old_mode": "'UTF8_IS_UTF8MB3'",
        "lc_time_names": "'en_US'",
        "lc_messages": "'en_US'",
        "default_week_format": "0",
        "default_regex_flags": "''",
        "div_precision_increment": "4",
        "block_encryption_mode": "'aes-128-ecb'",
        "windowing_use_high_precision": "ON",
        "explain_format": "'TRADITIONAL'",
        "sql_auto_is_null": "0",
        "sql_big_selects": "1",
        "group_concat_max_len": "4294967295",
        # With the default only the first 1024 bytes of keys are sorted.
        "max_sort_length": "32768",
        # The present rows of versioned tables.
        "system_versioning_asof": "DEFAULT",
        "wait_timeout": "28800",
        "idle_transaction_timeout": "0",
        "idle_readonly_transaction_timeout": "0",
        "idle_write_transaction_timeout": "0",
        # A query goes on at the server when its client has gone. In seconds, and MySQL's in milliseconds.
        "max_statement_time": str(READ_TIMEOUT),
        "max_execution_time": str(READ_TIMEOUT * 1000),
        "lock_wait_timeout": str(READ_TIMEOUT),
        "net_read_timeout": str(READ_TIMEOUT),
        "net_write_timeout": str(READ_TIMEOUT),
    }
    WHY_NOT_VISIBLE: ClassVar = (
        "the login lacks the privilege PROCESS, the server replays what others wrote (replica, Galera), or it has "
        "another engine with transactions than InnoDB"
    )
    # trx_started is the start of the statement that touched the first row, or later. CURRENT_TIMESTAMP of a row may be
    # earlier, so running statements count too. Both have whole seconds, rounded down. InnoDB uses local time, in which
    # an hour may occur twice; the earlier one is assumed. The list is fresh if it contains this very query.
    TRANSACTIONS = (
        "SELECT COALESCE(trx_query LIKE :mark, 0), own, id, thread, UNIX_TIMESTAMP(IF("
        "CONVERT_TZ(utc - INTERVAL 1 HOUR, '+00:00', 'SYSTEM') = trx_started, utc - INTERVAL 1 HOUR, utc))"
        " FROM (SELECT trx_query, trx_started, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00') AS utc, trx_id AS id,"
        " trx_mysql_thread_id AS thread, trx_mysql_thread_id = CONNECTION_ID() AS own, trx_is_read_only AS ro"
        " FROM information_schema.innodb_trx) t WHERE own OR NOT ro"
    )
    # All commands that may write, e.g. `Connect` for events of the scheduler, and `Bulk_execute`.
    STATEMENTS = (
        "SELECT ID, UNIX_TIMESTAMP(SYSDATE()) - 1 - COALESCE(TIME, 0), USER = 'system user'"
        " FROM information_schema.processlist WHERE ID <> CONNECTION_ID()"
        " AND COMMAND NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID')"
    )
    GALERA = "SHOW GLOBAL VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'"
    OTHER_ENGINES = (
        "SELECT ENGINE FROM information_schema.engines WHERE TRANSACTIONS = 'YES' AND SUPPORT IN ('YES', 'DEFAULT')"
        " AND ENGINE NOT IN ('InnoDB', 'SEQUENCE')"
    )

    # Ids of a table and its partitions; nothing else changes by TRUNCATE or an exchange of partitions. InnoDB encodes
    # characters of a name that are no letters as `@` and some characters.
    STORAGE_IDS = (
        "SELECT i.TABLE_ID FROM information_schema./*M!100000 INNODB_SYS_TABLES *//*!80000 INNODB_TABLES */ AS i"
        " JOIN (SELECT CONCAT(REGEXP_REPLACE(COALESCE(NULLIF(:schema, ''), DATABASE()), :odd, '@%'), '/',"
        " REGEXP_REPLACE(:name, :odd, '@%')) AS pattern) AS p"
        " WHERE i.NAME LIKE p.pattern OR i.NAME LIKE CONCAT(p.pattern, '#P#%') ORDER BY 1"
    )

    def connected(self, connection: Any, about: Any) -> None:
        super().connected(connection, about)
        with closing(connection.cursor()) as cursor:
            names = ", ".join(f"'{name}'" for name in self.VARIABLES)
            cursor.execute(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})")
            existing = [name for name, _ in cursor.fetchall()]
            cursor.execute(f"SET {', '.join(f'{name} = {self.VARIABLES[name]}' for name in existing)}")

    def sees_all(self, c: Connection) -> bool:
        self._look.replays |= any(replays for *_, replays in c.execute(text(self.STATEMENTS)))
        return self._shows(c) and not self._look.replays

    def _shows(self, c: Connection) -> bool:
        """Whether this login may see all transactions; cached for each connection."""
        if "shows" not in c.info:
            queries = (self.GALERA, self.OTHER_ENGINES)
            c.info["shows"] = self._may_look(c) and not any(c.execute(text(query)).all() for query in queries)
        return bool(c.info["shows"])

    def _may_look(self, c: Connection) -> bool:
        """Whether this login may read InnoDB's tables."""
        if "looks" not in c.info:
            try:
                c.execute(text("SELECT COUNT(*) FROM information_schema.innodb_trx")).scalar_one()
                c.info["looks"] = True
            except DBAPIError as e:
                if e.connection_invalidated:
                    raise
                c.info["looks"] = False
        return bool(c.info["looks"])

    def read_transactions(self, c: Connection) -> TransactionSnapshot:
        """Query the transactions; InnoDB may return an older list, which lacks this query's own transaction."""
        if not self._shows(c):
            return self.summarize(float(c.execute(text(self.CLOCK)).scalar_one()), (), complete=False)
        c.execute(text("START TRANSACTION WITH CONSISTENT SNAPSHOT"))
        try:
            for attempt in range(RETRIES + 1):
                time.sleep(STALE if attempt else 0.0)
                now = float(c.execute(text(self.CLOCK)).scalar_one())
                sessions = self.sessions(c)
                if self._fresh:
                    return self.summarize(now, sessions, complete=not self._look.replays)
        finally:
            c.execute(text("COMMIT"))
        log.warning("%s returns an old list of its transactions: other sessions read it too often", self.display_url)
        last_snapshot = self._look.moment
        return last_snapshot if last_snapshot.now else TransactionSnapshot(now, 0.0)

    def sessions(self, c: Connection) -> list[ServerSession]:
        result, statements, mark = [], dict[int, float](), uuid4().hex
        self._fresh = False
        for connection_id, started, replays in c.execute(text(self.STATEMENTS)):
            if replays:
                self._look.replays = True
            else:
                statements[int(connection_id)] = float(started)
        for has_mark, is_own, number, thread, shown in c.execute(text(self.TRANSACTIONS), {"mark": f"%{mark}%"}):
            if is_own:
                self._fresh = bool(has_mark)
                continue
            started = min(float(shown), statements.pop(int(thread), math.inf))
            name = str(number) if 0 < int(number) < NUMBERS else ""
            result.append(ServerSession(started, str(thread) if thread else "", float(shown), name))
        return result + [ServerSession(started, str(connection_id)) for connection_id, started in statements.items()]

    def page(self, query: SourceQuery, most: int | None = None) -> SourcePage:
        # PyMySQL's own parser breaks the connection at invalid text.
        return super().page(query, sys.maxsize if most is None else most)

    @contextmanager
    def streamed(self, c: Connection, query: SourceQuery, /) -> Iterator[tuple[Any, Iterator[tuple[Any, int]]]]:
        with closing(c.connection.cursor(SSCursor)) as cursor:
            cursor.execute(*self.sent(query))
            yield cursor, read_rows(cursor)

    def server(self) -> str:
        with self._connected() as c:
            return str(c.execute(text("SELECT CONCAT(@@hostname, ':', @@port, ' ', @@server_id)")).scalar_one())

    def about(self, cursor: Any) -> Iterator[MySQLColumn]:
        for field in result_fields(cursor):
            yield field.type_code, field.flags & (FLAG.ENUM | FLAG.SET), field.charsetnr

    def order(self, about: MySQLColumn) -> Ordering:
        return mysql_ordering(about)

    def rejects_value(self, error: BaseException) -> bool:
        return isinstance(error, pymysql.err.Error) and bool(error.args) and error.args[0] in REFUSED

    def is_timeout(self, error: BaseException) -> bool:
        codes = (ER.STATEMENT_TIMEOUT, ER.QUERY_TIMEOUT)
        return isinstance(error, pymysql.err.Error) and bool(error.args) and error.args[0] in codes

    def can_send(self, value: Any) -> bool:
        # The driver would write infinity and NaN as names.
        return not isinstance(value, float | Decimal) or isfinite(value)

    def orders_by_code_point(self, rows: str, column: str) -> bool:
        with self._connected() as c:
            query = f"SELECT COLLATION((SELECT q.{column} FROM {rows} AS q LIMIT 1))"
            collation = str(c.execute(SourceQuery(query, {}).clause).scalar_one())
        return collation in CODE_POINT

    def at_other_dates(self, query: SourceQuery, most: int) -> list[SourcePage]:
        pages = []
        try:
            for at in OTHER_TIMES:
                try:
                    self._do(f"SET timestamp = {at}")
                except SourceError:
                    return []  # `secure_timestamp` of MariaDB
                pages.append(self.page(query, most))
        finally:
            self._do("SET timestamp = DEFAULT")
        return pages

    def _do(self, statement: str) -> None:
        # The pool has one connection, which pages use too.
        with self._connected() as c:
            c.execute(text(statement))

    def lossy_text(self, rows: str, column: str) -> tuple[str, str] | None:
        with self._connected() as c:
            query = f"SELECT CHARSET((SELECT q.{column} FROM {rows} AS q LIMIT 1))"
            name = str(c.execute(SourceQuery(query, {}).clause).scalar_one())
        if name in LOSSLESS_CHARSETS:
            return None
        converted = f"CONVERT(CONVERT(q.{column} USING utf8mb4) USING {name})"
        # MySQL returns NULL for what it cannot convert.
        return name, f"NOT CAST({converted} AS BINARY) <=> CAST(q.{column} AS BINARY)"

    def unique_keys(self, table: exp.Table) -> list[set[str]]:
        query = text(
            "SELECT INDEX_NAME, LOWER(COLUMN_NAME), NON_UNIQUE = 0 AND SUB_PART IS NULL AND NULLABLE = ''"
            " FROM information_schema.statistics"
            " WHERE TABLE_SCHEMA = COALESCE(NULLIF(:schema, ''), DATABASE()) AND TABLE_NAME = :name"
        )
        with self._connected() as c:
            return group_by_index(c.execute(query, {"schema": table.db, "name": table.name}))

    def storage_ids(self, schema: str, table: str) -> list[int]:
        with self._connected() as c:
            if not self._may_look(c):
                return []
            parameters = {"schema": schema, "name": table, "odd": "[^A-Za-z0-9_]"}
            return [int(number) for number in c.execute(text(self.STORAGE_IDS), parameters).scalars()]

    def plan(self, query: SourceQuery) -> list[tuple[str, str]]:
        with self._connected() as c:
            rows = c.execute(text(f"EXPLAIN {query.clause.text}"), dict(query.values)).mappings()
            # Without a table nothing is read, since the condition is never true.
            return [(str(row["table"]), str(row["key"] or "")) for row in rows if row["table"]]

    def columns(self, cursor: Any) -> Iterator[tuple[str, str]]:
        for described, about in zip(cursor.description, result_fields(cursor), strict=True):
            name, kind = str(described[0]), described[1]
            if kind == FIELD_TYPE.FLOAT:
                raise SourceError(
                    "the server shows a column of type FLOAT with six digits, so its value would be lost",
                    got=name,
                    hint=f"select CAST({name} AS DOUBLE) AS {name}",
                )
            if kind not in KNOWN_TYPES:
                as_text = f"VECTOR_TO_STRING({name})" if kind == VECTOR else f"CAST({name} AS CHAR)"
                raise SourceError(
                    "a column has a type that cannot be captured",
                    got=f"{name}, of type {'VECTOR' if kind == VECTOR else kind}",
                    hint=f"select {as_text} AS {name}",
                )
            binary = " binary" if about.charsetnr == BINARY and kind in TEXTS else ""
            yield name, f"{ZONED if kind == FIELD_TYPE.TIMESTAMP else kind}.{described[5]}{binary}"
