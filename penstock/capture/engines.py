"""The engines that captures can read: MariaDB and MySQL, PostgreSQL, SQLite."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import uuid4

import orjson
from pymysql.constants import FIELD_TYPE, FLAG
from pymysql.converters import conversions
from sqlalchemy import URL, Connection, text
from sqlalchemy.exc import DBAPIError
from sqlglot import exp

from penstock.capture.database import CONNECT_TIMEOUT, READ_TIMEOUT, ZONED, Database, SourceError, by_index
from penstock.capture.looks import Moment, Session
from penstock.capture.orders import BINARY, OF_SQLITE, TEXTS, MySQLColumn, Order, of_mysql, of_postgres
from penstock.capture.pages import Query

log = logging.getLogger(__name__)

# Seconds after which InnoDB makes its list of transactions anew, and how often it is asked again for it.
STALE, RETRIES = 0.15, 3
# From here on InnoDB's numbers of transactions are none yet: places in memory, used again and again.
NUMBERS = 1 << 48
# PostgreSQL's number for a time with time zone.
TIMESTAMPTZ = 1184
# How the numbers of its errors begin that speak of values.
DATA_EXCEPTION = "22"
# Collations of MySQL and MariaDB by code point, without the rule that a text is as long as it needs to be.
CODE_POINT = {"binary", "utf8mb4_0900_bin", *(f"{s}_nopad_bin" for s in ("utf8mb4", "utf8mb3", "utf8", "ascii"))}


def _datetime(text: str) -> datetime | str:
    """As PyMySQL's own, which takes five times as long; what is no time (`0000-00-00 00:00:00`) stays text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


class MySQL(Database):
    """MariaDB and MySQL."""

    CLOCK = "SELECT UNIX_TIMESTAMP(SYSDATE(6))"
    CODE_POINT = "give it the collation utf8mb4_nopad_bin, or utf8mb4_0900_bin in MySQL; a time or a number is better"
    OPTIONS: ClassVar = {
        "connect_args": {
            "connect_timeout": CONNECT_TIMEOUT,
            "read_timeout": READ_TIMEOUT,
            "write_timeout": READ_TIMEOUT,
            "charset": "utf8mb4",
            "conv": conversions | {FIELD_TYPE.DATETIME: _datetime, FIELD_TYPE.TIMESTAMP: _datetime},
        }
    }
    # A snapshot for each query, as all are transactions of their own; times that have a zone in UTC. The rest decides
    # what a SELECT means, how many rows it gives, and that no key is put in order by its first thousand bytes alone.
    SESSION: ClassVar = (
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SET time_zone = '+00:00', sql_mode = '', lc_time_names = 'en_US', default_week_format = 0",
        "SET sql_select_limit = 18446744073709551615, sql_big_selects = 1, div_precision_increment = 4",
        "SET group_concat_max_len = 4294967295, max_sort_length = 32768",
    )
    WHY_NOT: ClassVar = (
        "the login lacks the privilege PROCESS, the server replays what others wrote (replica, Galera), or it has "
        "another engine with transactions than InnoDB"
    )
    # Begun is when the statement began that touched the first row, or later: a row's CURRENT_TIMESTAMP may be earlier,
    # so running statements count too. Both have whole seconds, rounded down. InnoDB says it in the local time of the
    # server's machine, and of an hour that comes twice a year it may be the first. Our own query proves that the list
    # is not one made earlier.
    TRANSACTIONS = (
        "SELECT COALESCE(trx_query LIKE :mark, 0), own, id, thread, UNIX_TIMESTAMP(IF("
        "CONVERT_TZ(utc - INTERVAL 1 HOUR, '+00:00', 'SYSTEM') = trx_started, utc - INTERVAL 1 HOUR, utc))"
        " FROM (SELECT trx_query, trx_started, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00') AS utc, trx_id AS id,"
        " trx_mysql_thread_id AS thread, trx_mysql_thread_id = CONNECTION_ID() AS own, trx_is_read_only AS ro"
        " FROM information_schema.innodb_trx) t WHERE own OR NOT ro"
    )
    # Whatever is not known to write nothing counts, e.g. `Connect`, which events of the scheduler are, `Bulk_execute`.
    STATEMENTS = (
        "SELECT ID, UNIX_TIMESTAMP(SYSDATE()) - 1 - COALESCE(TIME, 0), USER = 'system user'"
        " FROM information_schema.processlist WHERE ID <> CONNECTION_ID()"
        " AND COMMAND NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID')"
    )
    GALERA = "SHOW GLOBAL VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'"
    OTHERS = (
        "SELECT ENGINE FROM information_schema.engines WHERE TRANSACTIONS = 'YES' AND SUPPORT IN ('YES', 'DEFAULT')"
        " AND ENGINE NOT IN ('InnoDB', 'SEQUENCE')"
    )

    def tells(self, c: Connection) -> bool:
        return self._shows(c) and not any(replays for *_, replays in c.execute(text(self.STATEMENTS)))

    def _shows(self, c: Connection) -> bool:
        """Whether this login may see all transactions: asked once for each connection."""
        if "shows" not in c.info:
            try:
                c.execute(text("SELECT COUNT(*) FROM information_schema.innodb_trx")).scalar_one()
            except DBAPIError:
                c.info["shows"] = False
            else:
                c.info["shows"] = not any(c.execute(text(query)).all() for query in (self.GALERA, self.OTHERS))
        return bool(c.info["shows"])

    def looked(self, c: Connection) -> Moment:
        """InnoDB shows what it saw at the first of reads that follow closely, so a transaction of our own proves it."""
        if not self._shows(c):
            return self.counted(float(c.execute(text(self.CLOCK)).scalar_one()), (), tells=False)
        c.execute(text("START TRANSACTION WITH CONSISTENT SNAPSHOT"))
        try:
            for attempt in range(RETRIES + 1):
                time.sleep(STALE if attempt else 0.0)
                now = float(c.execute(text(self.CLOCK)).scalar_one())
                sessions = self.sessions(c)
                if self._fresh:
                    return self.counted(now, sessions, tells=not self._replays)
        finally:
            c.execute(text("COMMIT"))
        log.warning("%s shows an old list of its transactions: others read it too often", self.place)
        before = self._look.moment
        return before if before.now else Moment(now, 0.0)

    def sessions(self, c: Connection) -> list[Session]:
        found, statements, mark = [], dict[int, float](), uuid4().hex
        self._fresh = self._replays = False
        for who, began, replays in c.execute(text(self.STATEMENTS)):
            if replays:
                self._replays = True
            else:
                statements[int(who)] = float(began)
        for ours, own, number, thread, shown in c.execute(text(self.TRANSACTIONS), {"mark": f"%{mark}%"}):
            if own:
                self._fresh = bool(ours)
                continue
            began = min(float(shown), statements.pop(int(thread), math.inf))
            name = str(number) if 0 < int(number) < NUMBERS else ""
            found.append(Session(began, str(thread) if thread else "", float(shown), name))
        return found + [Session(began, str(who)) for who, began in statements.items()]

    def server(self) -> str:
        with self._connected() as c:
            return str(c.execute(text("SELECT CONCAT(@@hostname, ':', @@port, ' ', @@server_id)")).scalar_one())

    def about(self, cursor: Any) -> Iterator[MySQLColumn]:
        for field in cursor._result.fields:
            yield field.type_code, field.flags & (FLAG.ENUM | FLAG.SET), field.charsetnr

    def order(self, about: MySQLColumn) -> Order:
        return of_mysql(about)

    def by_code_point(self, rows: str, column: str) -> bool:
        with self._connected() as c:
            query = f"SELECT COLLATION((SELECT q.{column} FROM {rows} AS q LIMIT 1))"
            collation = str(c.execute(Query(query, {}).clause).scalar_one())
        return collation in CODE_POINT

    def unique(self, table: exp.Table) -> list[set[str]]:
        query = text(
            "SELECT INDEX_NAME, LOWER(COLUMN_NAME), NON_UNIQUE = 0 AND SUB_PART IS NULL AND NULLABLE = ''"
            " FROM information_schema.statistics"
            " WHERE TABLE_SCHEMA = COALESCE(NULLIF(:schema, ''), DATABASE()) AND TABLE_NAME = :name"
        )
        with self._connected() as c:
            return by_index(c.execute(query, {"schema": table.db, "name": table.name}))

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
    CODE_POINT = 'give it the collation "C"; a time or a number is better'
    OPTIONS: ClassVar = {
        "connect_args": {
            "connect_timeout": CONNECT_TIMEOUT,
            # A connection that broke without a word must not look like a query that takes long.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
            "client_encoding": "utf8",
        }
    }
    # What decides how values are written as text, and how literals are read, whatever the server, the database and the
    # login have for it.
    SETTINGS: ClassVar = {
        "timezone": "UTC",
        "statement_timeout": str(READ_TIMEOUT * 1000),
        "default_transaction_isolation": "read committed",
        "default_transaction_deferrable": "off",
        "datestyle": "ISO",
        "intervalstyle": "postgres",
        "extra_float_digits": "3",
        "bytea_output": "hex",
        "standard_conforming_strings": "on",
        "transform_null_equals": "off",
    }
    SESSION: ClassVar = ("SELECT " + ", ".join(f"set_config('{k}', '{v}', false)" for k, v in SETTINGS.items()),)
    WHY_NOT: ClassVar = (
        "the login has no rights of pg_read_all_stats, the server is a standby or a subscriber, or a session has "
        "track_activities off"
    )
    TELLS = (
        "SELECT EXTRACT(EPOCH FROM clock_timestamp()), pg_has_role('pg_read_all_stats', 'USAGE')"
        " AND NOT pg_is_in_recovery() AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'disabled' OR"
        " (datname = current_database() AND backend_type LIKE 'logical replication%worker'))"
    )
    # A prepared transaction does not say when it began, only when it was prepared. A standby's sessions only read.
    SESSIONS = (
        "SELECT EXTRACT(EPOCH FROM xact_start), pid::text, COALESCE(backend_xid::text, '') FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datid IS NOT NULL AND xact_start IS NOT NULL"
        " AND backend_type <> 'autovacuum worker' AND NOT pg_is_in_recovery()"
        " UNION ALL SELECT EXTRACT(EPOCH FROM prepared), '', transaction::text FROM pg_prepared_xacts"
    )
    # What psycopg would turn into an object that says less: an interval's months become thirty days, JSON's numbers
    # floats, and an address a class of its own.
    AS_TEXT = ("json", "jsonb", "interval", "inet", "cidr")

    def __init__(self, url: URL, delay: timedelta) -> None:
        super().__init__(url, delay)
        self._kinds: dict[int, Order] = {}

    def connected(self, connection: Any, about: Any) -> None:
        from psycopg.types.string import TextLoader

        from penstock.capture import calendars

        super().connected(connection, about)
        for name in self.AS_TEXT:
            connection.adapters.register_loader(name, TextLoader)
        calendars.register(connection)

    def advice(self, said: str) -> str:
        if "year" in said and ("too large" in said or "too small" in said):
            return "select NULLIF(column, 'infinity') AS column, or give such rows a time between the years 1 and 9999"
        return super().advice(said)

    def tells(self, c: Connection) -> bool:
        return bool(c.execute(text(self.TELLS)).one()[1])

    def looked(self, c: Connection) -> Moment:
        now, tells = c.execute(text(self.TELLS)).one()
        return self.counted(float(now), self.sessions(c), tells=bool(tells))

    def sessions(self, c: Connection) -> list[Session]:
        found = [(float(shown), who, number) for shown, who, number in c.execute(text(self.SESSIONS))]
        return [Session(shown, who, shown, number) for shown, who, number in found]

    def server(self) -> str:
        with self._connected() as c:
            return str(c.execute(text("SELECT system_identifier FROM pg_control_system()")).scalar_one())

    def columns(self, cursor: Any) -> Iterator[tuple[str, str]]:
        for d in cursor.description:
            kind = ZONED if d.type_code == TIMESTAMPTZ else d.type_code
            yield str(d.name), f"{kind} {d.precision or ''} {d.scale or ''}".strip()

    def about(self, cursor: Any) -> Iterator[int]:
        for d in cursor.description:
            yield d.type_code

    def order(self, about: int) -> Order:
        if about not in self._kinds:
            with self._connected() as c:
                found = c.execute(text("SELECT oid, typname, typtype, format_type(oid, NULL) FROM pg_type")).all()
                self._kinds = {int(oid): of_postgres(*map(str, about)) for oid, *about in found}
        return self._kinds[about]

    def is_value(self, order: Order, value: Any) -> bool:
        if not order.named:
            return True
        try:
            self.value(Query(f"SELECT CAST({exp.Literal.string(value).sql('postgres')} AS {order.named})", {}))
        except SourceError as e:
            # Whatever else went wrong says nothing of the value.
            if str(getattr(getattr(e.__cause__, "orig", None), "sqlstate", None))[:2] == DATA_EXCEPTION:
                return False
            raise
        return True

    def by_code_point(self, rows: str, column: str) -> bool:
        # As JSON: older servers lack some of a database's columns.
        query = (
            "SELECT CASE c.collname WHEN 'default' THEN (SELECT to_jsonb(d) ->> 'datlocprovider' = 'b' OR (datcollate"
            " IN ('C', 'POSIX', 'C.UTF-8', 'C.utf8') AND COALESCE(to_jsonb(d) ->> 'datlocprovider', 'c') = 'c')"
            " FROM pg_database AS d WHERE datname = current_database())"
            " ELSE c.collname IN ('C', 'POSIX', 'ucs_basic', 'C.utf8', 'C.UTF-8', 'pg_c_utf8') END FROM pg_collation"
            f" AS c WHERE c.oid = pg_collation_for((SELECT q.{column} FROM {rows} AS q LIMIT 0))::regcollation"
        )
        with self._connected() as c:
            return bool(c.execute(Query(query, {}).clause).scalar())

    def unique(self, table: exp.Table) -> list[set[str]]:
        # The rows of a table's heirs are not in its indexes, those of its partitions are.
        query = text(
            "SELECT indexrelid, attname, attnotnull AND attcollation = indcollation[n] FROM pg_index AS i"
            " JOIN pg_class AS t ON t.oid = indrelid CROSS JOIN generate_series(0, indnkeyatts - 1) AS n"
            " JOIN pg_attribute AS a ON attrelid = indrelid AND attnum = indkey[n]"
            " WHERE t.oid = to_regclass(:name) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL"
            " AND (t.relkind = 'p' OR NOT t.relhassubclass)"
        )
        plain = exp.Table(this=table.this, db=table.args.get("db"), catalog=table.args.get("catalog"))
        with self._connected() as c:
            return by_index(c.execute(query, {"name": plain.sql("postgres")}))

    def plan(self, query: Query) -> list[tuple[str, str]]:
        with self._connected() as c:
            [found] = c.execute(text(f"EXPLAIN (FORMAT JSON) {query.clause.text}"), dict(query.values)).scalars()
        # As text: see AS_TEXT.
        return list(_scans(orjson.loads(found)[0]["Plan"]))


def _scans(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if node["Node Type"] == "Bitmap Heap Scan":
        # Its index, or one of them, is told below it.
        yield node["Relation Name"], next((index for child in node["Plans"] for _, index in _scans(child)), "")
        return
    if "Scan" in node["Node Type"] and "Relation Name" in node:
        yield node["Relation Name"], node.get("Index Name", "")
    elif "Index Name" in node:
        yield "", node["Index Name"]
    for child in node.get("Plans", []):
        yield from _scans(child)


class SQLite(Database):
    CLOCK = "SELECT (julianday('now') - 2440587.5) * 86400.0"
    CODE_POINT = "declare the column without a collation"
    OPTIONS: ClassVar = {"connect_args": {"timeout": CONNECT_TIMEOUT, "check_same_thread": False}}
    WHY_NOT = "SQLite does not tell"

    def tells(self, _: Connection) -> bool:
        return False

    def sessions(self, _: Connection) -> list[Session]:
        return []

    def server(self) -> str:
        return self.place

    def order(self, _: None) -> Order:
        return OF_SQLITE

    def by_code_point(self, rows: str, column: str) -> bool:
        """SQLite does not tell a column's collation: what else is the same to it does."""
        with self._connected() as c:
            top = c.execute(Query(f"SELECT MAX(q.{column}) FROM {rows} AS q", {}).clause).scalar()
            for other in {str(top).swapcase(), f"{top} "} - {top}:
                same, literal = f"SELECT COUNT(*) FROM {rows} AS q WHERE q.{column} = ", exp.Literal.string(other)
                found = c.execute(Query(f"{same}{literal.sql('sqlite')}", {}).clause).scalar_one()
                plain = f"{same}{literal.sql('sqlite')} COLLATE BINARY"
                if found != c.execute(Query(plain, {}).clause).scalar_one():
                    return False
        return True

    def unique(self, table: exp.Table) -> list[set[str]]:
        names = {"name": table.name, "schema": table.db or "main"}
        # An index may have another collation than its column, if it was not made with the table.
        query = text(
            'SELECT l.name, lower(x.name), l."unique" AND NOT l.partial AND l.origin <> \'c\' AND t."notnull"'
            " FROM pragma_index_list(:name, :schema) AS l JOIN pragma_index_xinfo(l.name, :schema) AS x"
            " LEFT JOIN pragma_table_info(:name, :schema) AS t ON t.name = x.name WHERE x.key"
        )
        key = text("SELECT lower(name), upper(type) FROM pragma_table_info(:name, :schema) WHERE pk")
        with self._connected() as c:
            found, primary = by_index(c.execute(query, names)), c.execute(key, names).all()
        return [*found, {primary[0][0]}] if len(primary) == 1 and primary[0][1] == "INTEGER" else found

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
