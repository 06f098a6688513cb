"""The engines that captures can read: MariaDB and MySQL, PostgreSQL, SQLite."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, ClassVar

import orjson
from pymysql.constants import FIELD_TYPE
from pymysql.converters import conversions
from sqlalchemy import Connection, bindparam, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlglot import exp

from penstock.capture.database import CONNECT_TIMEOUT, READ_TIMEOUT, ZONED, Database, Moment, SourceError
from penstock.capture.pages import Query
from penstock.declare.capture import Capture

log = logging.getLogger(__name__)

# Seconds after which InnoDB makes its list of transactions anew, and how often it is asked again for it.
STALE, RETRIES = 0.15, 3
# PostgreSQL's number for a time with time zone.
TIMESTAMPTZ = 1184
# MySQL's number for no character set, and its types that are text with one and bytes without.
BINARY = 63
TEXTS = {FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING, FIELD_TYPE.BLOB}


def _datetime(text: str) -> datetime | str:
    """As PyMySQL's own, which takes five times as long; what is no time (`0000-00-00 00:00:00`) stays text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


class MySQL(Database):
    """MariaDB and MySQL."""

    CLOCK = "SELECT UNIX_TIMESTAMP(SYSDATE(6))"
    OPTIONS: ClassVar = {
        "connect_args": {
            "connect_timeout": CONNECT_TIMEOUT,
            "read_timeout": READ_TIMEOUT,
            "write_timeout": READ_TIMEOUT,
            "charset": "utf8mb4",
            # Times that have a zone are read in UTC, whatever the server's own is.
            "init_command": "SET time_zone = '+00:00'",
            "conv": conversions | {FIELD_TYPE.DATETIME: _datetime, FIELD_TYPE.TIMESTAMP: _datetime},
        }
    }
    WHY_NOT: ClassVar = (
        "the login lacks the privilege PROCESS, or the server replays what others wrote (replica, Galera)"
    )
    # Begun is when the statement began that touched the first row, or later: a row's CURRENT_TIMESTAMP may be earlier,
    # so running statements count too. Both have whole seconds, rounded down. InnoDB says it in the local time of the
    # server's machine, and of an hour that comes twice a year it may be the first.
    TRANSACTIONS = (
        "SELECT trx_mysql_thread_id, IF(FROM_UNIXTIME(UNIX_TIMESTAMP(trx_started) - 3600) = trx_started,"
        " UNIX_TIMESTAMP(trx_started) - 3600, UNIX_TIMESTAMP(trx_started)), trx_mysql_thread_id = CONNECTION_ID()"
        " FROM information_schema.innodb_trx WHERE trx_is_read_only = 0 OR trx_mysql_thread_id = CONNECTION_ID()"
    )
    STATEMENTS = (
        "SELECT ID, UNIX_TIMESTAMP(SYSDATE()) - 1 - TIME FROM information_schema.processlist"
        " WHERE COMMAND IN ('Query', 'Execute') AND ID <> CONNECTION_ID()"
    )
    REPLAYS = (
        "SELECT (SELECT COUNT(*) FROM information_schema.processlist WHERE USER = 'system user'"
        " AND COMMAND LIKE 'Slave%') + (SELECT COUNT(*) FROM information_schema.global_variables"
        " WHERE VARIABLE_NAME = 'WSREP_ON' AND VARIABLE_VALUE = 'ON')"
    )

    def prepare(self) -> None:
        # InnoDB's times are local ones.
        options = {**self.OPTIONS["connect_args"], "init_command": "SET time_zone = 'SYSTEM'"}
        self._own = False
        self._watch = create_engine(
            self._engine.url, isolation_level="AUTOCOMMIT", pool_size=1, pool_recycle=1800, connect_args=options
        )

    def tells(self, c: Connection) -> bool:
        try:
            c.execute(text("SELECT COUNT(*) FROM information_schema.innodb_trx")).scalar_one()
        except DBAPIError:
            return False
        return not c.execute(text(self.REPLAYS)).scalar_one()

    def looked(self, c: Connection, now: float) -> Moment:
        """InnoDB shows what it saw at the first of reads that follow closely, so a transaction of our own proves it."""
        c.execute(text("START TRANSACTION WITH CONSISTENT SNAPSHOT"))
        try:
            found = super().looked(c, now)
            for _ in range(RETRIES):
                if self._own:
                    return found
                time.sleep(STALE)
                found = super().looked(c, now)
        finally:
            c.execute(text("COMMIT"))
        if self._own:
            return found
        log.warning("%s shows an old list of its transactions: others read it too often", self.place)
        before = self._look.moment
        return before if before.now else Moment(now, 0.0)

    def sessions(self, c: Connection) -> Iterator[tuple[str, float | None, float]]:
        now, self._own = float(c.execute(text(self.CLOCK)).scalar_one()), False
        statements = {int(who): float(began) for who, began in c.execute(text(self.STATEMENTS))}
        transactions: dict[int, float] = {}
        for who, began, own in c.execute(text(self.TRANSACTIONS)):
            if own:
                self._own = float(began) >= int(now) - 1
            else:
                transactions[int(who)] = float(began)
        for who in statements.keys() | transactions.keys():
            began = min(statements.get(who, now), transactions.get(who, now))
            # A statement that waited before it touched a row: the transaction it leaves open counts from it.
            if who in transactions and (earlier := self._look.statements.get(who)) is not None:
                began = min(began, earlier)
            # By its transaction: a session that goes on from one to the next is not as old as its first.
            yield f"{who}/{transactions.get(who, statements.get(who))}", began, began
        self._look.statements = {who: began for who, began in statements.items() if who not in transactions}

    def server(self) -> str:
        with self._connected() as c:
            return str(c.execute(text("SELECT CONCAT(@@hostname, ':', @@port, ' ', @@server_id)")).scalar_one())

    def check(self, capture: Capture) -> None:
        """ENUM and SET are put in order by number and compared as text: paging by them would leave rows out."""
        tables = {table.name for table in capture.select.find_all(exp.Table)}
        query = text(
            "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE FROM information_schema.columns"
            " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN :tables AND DATA_TYPE IN ('enum', 'set')"
        ).bindparams(bindparam("tables", expanding=True))
        with self._connected() as c:
            kinds = {str(column).lower(): kind for _, column, kind in c.execute(query, {"tables": sorted(tables)})}
        sources = {e.alias_or_name: e.unalias().name for e in capture.select.expressions if not e.is_star}
        for name in (*capture.key, capture.cursor):
            if kind := kinds.get(sources.get(name, name).lower()):
                raise SourceError(
                    f"capture {capture.name} cannot be paged by a column of type {kind.upper()}",
                    got=name,
                    fix=f"select CAST({name} AS CHAR) AS {name}",
                )

    def plan(self, query: Query) -> list[tuple[str, str]]:
        with self._connected() as c:
            rows = c.execute(text(f"EXPLAIN {query.clause.text}"), dict(query.values)).mappings()
            # Without a table nothing is read: the condition cannot be met.
            return [(str(row["table"]), str(row["key"] or "")) for row in rows if row["table"]]

    def columns(self, cursor: Any) -> Iterator[tuple[str, str]]:
        for described, about in zip(cursor.description, cursor._result.fields, strict=True):
            name, kind = str(described[0]), described[1]
            if kind == FIELD_TYPE.FLOAT:
                raise SourceError(
                    "the server shows a column of type FLOAT with six digits, so its value would be lost",
                    got=name,
                    fix=f"select CAST({name} AS DOUBLE) AS {name}",
                )
            binary = " binary" if about.charsetnr == BINARY and kind in TEXTS else ""
            yield name, f"{ZONED if kind == FIELD_TYPE.TIMESTAMP else kind}.{described[5]}{binary}"


class PostgreSQL(Database):
    CLOCK = "SELECT EXTRACT(EPOCH FROM clock_timestamp())"
    OPTIONS: ClassVar = {
        "connect_args": {
            "connect_timeout": CONNECT_TIMEOUT,
            # A connection that broke without a word must not look like a query that takes long.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
            "options": f"-c timezone=UTC -c statement_timeout={READ_TIMEOUT * 1000}",
        }
    }
    WHY_NOT: ClassVar = "the login has no rights of pg_read_all_stats, or the server is a standby"
    TELLS = (
        "SELECT pg_has_role('pg_read_all_stats', 'USAGE') AND NOT pg_is_in_recovery() AND NOT EXISTS"
        " (SELECT FROM pg_stat_activity WHERE state = 'disabled')"
    )
    # A prepared transaction does not say when it began, only when it was prepared.
    SESSIONS = (
        "SELECT COALESCE(backend_xid::text, 'pid ' || pid), EXTRACT(EPOCH FROM xact_start), NULL FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datid IS NOT NULL AND xact_start IS NOT NULL"
        " UNION ALL SELECT transaction::text, NULL, EXTRACT(EPOCH FROM prepared) FROM pg_prepared_xacts"
    )
    # What psycopg would turn into an object that says less: an interval's months become thirty days, JSON's numbers
    # floats, and an address a class of its own.
    AS_TEXT = ("json", "jsonb", "interval", "inet", "cidr")

    def prepare(self) -> None:
        from psycopg.types.string import TextLoader

        from penstock.capture import calendars

        @event.listens_for(self._engine, "connect")
        def connected(connection: Any, _: Any) -> None:
            for name in self.AS_TEXT:
                connection.adapters.register_loader(name, TextLoader)
            calendars.register(connection)

    def tells(self, c: Connection) -> bool:
        return bool(c.execute(text(self.TELLS)).scalar_one())

    def sessions(self, c: Connection) -> Iterator[tuple[str, float | None, float]]:
        for who, began, prepared in c.execute(text(self.SESSIONS)):
            yield str(who), None if began is None else float(began), float(prepared or 0) - self._delay

    def server(self) -> str:
        with self._connected() as c:
            return str(c.execute(text("SELECT system_identifier FROM pg_control_system()")).scalar_one())

    def columns(self, cursor: Any) -> Iterator[tuple[str, str]]:
        for d in cursor.description:
            kind = ZONED if d.type_code == TIMESTAMPTZ else d.type_code
            yield str(d.name), f"{kind} {d.precision or ''} {d.scale or ''}".strip()

    def plan(self, query: Query) -> list[tuple[str, str]]:
        with self._connected() as c:
            [found] = c.execute(text(f"EXPLAIN (FORMAT JSON) {query.clause.text}"), dict(query.values)).scalars()
        # As text: see AS_TEXT.
        return list(_scans(orjson.loads(found)[0]["Plan"]))


def _scans(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "Scan" in node["Node Type"] and "Relation Name" in node:
        yield node["Relation Name"], node.get("Index Name", "")
    elif "Index Name" in node:
        yield "", node["Index Name"]
    for child in node.get("Plans", []):
        yield from _scans(child)


class SQLite(Database):
    CLOCK = "SELECT (julianday('now') - 2440587.5) * 86400.0"
    OPTIONS: ClassVar = {"connect_args": {"timeout": CONNECT_TIMEOUT, "check_same_thread": False}}
    WHY_NOT = "SQLite does not tell"

    def tells(self, _: Connection) -> bool:
        return False

    def sessions(self, _: Connection) -> Iterator[tuple[str, float | None, float]]:
        return iter(())

    def server(self) -> str:
        return self.place

    def plan(self, query: Query) -> list[tuple[str, str]]:
        with self._connected() as c:
            rows = c.execute(text(f"EXPLAIN QUERY PLAN {query.clause.text}"), dict(query.values)).all()
        found = []
        for *_, detail in rows:
            words = str(detail).split()
            if words[0] in ("SCAN", "SEARCH"):
                by_key = "PRIMARY" in words and "PRIMARY KEY"
                index = next((words[i + 1] for i, w in enumerate(words[:-1]) if w == "INDEX"), "") or by_key or ""
                found.append((words[1], index))
        return found


ENGINES: dict[str, type[Database]] = {"mysql": MySQL, "postgres": PostgreSQL, "sqlite": SQLite}
