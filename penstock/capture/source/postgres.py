"""PostgreSQL, as captures read it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import orjson
from sqlalchemy import URL, Connection, text
from sqlglot import exp

from penstock.capture.checks.column_types import Ordering, postgres_ordering
from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.source.base import CONNECT_TIMEOUT, READ_TIMEOUT, ZONED, SourceDatabase, group_by_index, weighed
from penstock.capture.source.open_transactions import ServerSession, TransactionSnapshot

# The oid of timestamptz.
TIMESTAMPTZ = 1184
# Rows of one fetch of a stream.
CHUNK = 10


class PostgreSQL(SourceDatabase):
    CLOCK = "SELECT EXTRACT(EPOCH FROM clock_timestamp())"
    CODE_POINT = 'give it the collation "C"; a time or a number is better'
    OPTIONS: ClassVar = {
        "connect_args": {
            "connect_timeout": CONNECT_TIMEOUT,
            # A dead connection must not look like a slow query.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
            "client_encoding": "utf8",
        }
    }
    # Settings of the text form of values and of literals, whatever the defaults of server, database and login.
    SETTINGS: ClassVar = {
        "timezone": "UTC",
        "statement_timeout": str(READ_TIMEOUT * 1000),
        "default_transaction_isolation": "read committed",
        "default_transaction_deferrable": "off",
        # Output format, and order of day and month in input.
        "datestyle": "ISO, MDY",
        "intervalstyle": "postgres",
        "extra_float_digits": "3",
        "bytea_output": "hex",
        "standard_conforming_strings": "on",
        "transform_null_equals": "off",
        # A policy that hides rows is an error.
        "row_security": "off",
        # Other values than 0 leave out random rows.
        "gin_fuzzy_search_limit": "0",
        "timezone_abbreviations": "Default",
        "lc_numeric": "C",
        "lc_time": "C",
        "default_text_search_config": "pg_catalog.simple",
        "xmlbinary": "base64",
        "xmloption": "content",
        # It changes the text of views.
        "quote_all_identifiers": "off",
    }
    # Timeouts that would end a waiting session, or a query before `statement_timeout`; some versions lack some.
    LIMITS: ClassVar = (
        "'idle_session_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout', 'lock_timeout'"
    )
    # The default search path, unless the connection sets one (`options=-csearch_path=...`), ignoring that of the login.
    SEARCH_PATH = (
        "SELECT set_config(name, '\"$user\", public', false) FROM pg_settings"
        " WHERE name = 'search_path' AND source <> 'client'"
    )
    SESSION: ClassVar = (
        "SELECT " + ", ".join(f"set_config('{k}', '{v}', false)" for k, v in SETTINGS.items()),
        f"SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ({LIMITS})",
        SEARCH_PATH,
    )
    WHY_NOT_VISIBLE: ClassVar = (
        "the login has no rights of pg_read_all_stats, the server is a standby or has a subscription, or a session has "
        "track_activities off"
    )
    VISIBILITY = (
        "SELECT EXTRACT(EPOCH FROM clock_timestamp()), pg_has_role('pg_read_all_stats', 'USAGE')"
        " AND NOT pg_is_in_recovery()"
        # The worker of a subscription may be down, and later apply older commits.
        " AND NOT EXISTS (SELECT FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid"
        " WHERE datname = current_database())"
    )
    # A procedure that commits begins a transaction each time, and `statement_timestamp()` stays that of its CALL: so a
    # statement counts from its own start. A walsender's is as old as its replication. A prepared transaction does not
    # say when it began, only when it was prepared. A standby's sessions only read.
    SESSIONS = (
        "SELECT EXTRACT(EPOCH FROM xact_start), EXTRACT(EPOCH FROM CASE WHEN backend_type <> 'walsender'"
        " AND state IN ('active', 'fastpath function call') THEN query_start END), pid::text,"
        " COALESCE(backend_xid::text, ''), state = 'disabled' OR query = '<insufficient privilege>'"
        " FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datid IS NOT NULL"
        " AND backend_type IS DISTINCT FROM 'autovacuum worker' AND NOT pg_is_in_recovery()"
        " UNION ALL SELECT EXTRACT(EPOCH FROM prepared), NULL, '', transaction::text, false FROM pg_prepared_xacts"
    )
    # Types that psycopg would convert with loss: months of an interval become thirty days, numbers of JSON floats; a
    # time with a zone may be 24:00:00.
    AS_TEXT = ("json", "jsonb", "interval", "inet", "cidr", "timetz")

    # A promoted standby and a restored backup have another timeline, and may lack rows that were read; so may a server
    # that crashed if commits are asynchronous.
    SERVER = (
        "SELECT system_identifier || CASE timeline_id WHEN 1 THEN '' ELSE ' timeline ' || timeline_id END"
        " || CASE current_setting('synchronous_commit') WHEN 'off' THEN ' since ' || COALESCE((SELECT backend_start"
        " FROM pg_stat_activity WHERE backend_type = 'checkpointer'), pg_postmaster_start_time()) ELSE '' END"
        " FROM pg_control_system(), pg_control_checkpoint()"
    )

    def __init__(self, url: URL, delay: timedelta) -> None:
        super().__init__(url, delay)
        self._kinds: dict[int, Ordering] = {}

    def connected(self, connection: Any, about: Any) -> None:
        from psycopg.types.string import TextLoader

        from penstock.capture.source import postgres_datetimes, postgres_encodings

        super().connected(connection, about)
        for name in self.AS_TEXT:
            connection.adapters.register_loader(name, TextLoader)
        postgres_datetimes.register(connection)
        postgres_encodings.register(connection, *self.AS_TEXT)

    def sees_all(self, c: Connection) -> bool:
        sees = bool(c.execute(text(self.VISIBILITY)).one()[1])
        self.sessions(c)
        return sees and not self._hidden

    def read_transactions(self, c: Connection) -> TransactionSnapshot:
        now, sees = c.execute(text(self.VISIBILITY)).one()
        sessions = self.sessions(c)
        return self.summarize(float(now), sessions, complete=bool(sees) and not self._hidden)

    def sessions(self, c: Connection) -> list[ServerSession]:
        result = list[ServerSession]()
        # The list shows which sessions are hidden, since a privilege may be revoked between two queries.
        self._hidden = False
        for transaction_start, statement_start, pid, transaction, hidden in c.execute(text(self.SESSIONS)):
            self._hidden |= bool(hidden)
            times = [float(at) for at in (transaction_start, statement_start) if at is not None]
            if times:
                result.append(
                    ServerSession(
                        min(times), pid, None if transaction_start is None else float(transaction_start), transaction
                    )
                )
        return result

    @contextmanager
    def streamed(self, c: Connection, query: SourceQuery, /) -> Iterator[tuple[Any, Iterator[tuple[Any, int]]]]:
        cursor: Any = c.connection.cursor()
        # Closing it cancels the rest of the query.
        with closing(cursor.stream(*self.sent(query), size=CHUNK)) as rows:
            yield cursor, weighed(rows)

    def described(self, cursor: Any, query: SourceQuery) -> tuple[tuple[tuple[str, str], ...], tuple[Hashable, ...]]:
        if cursor.description is not None:
            return super().described(cursor, query)
        # The driver has no description of an empty stream. LIMIT 0 reads no row.
        with cursor.connection.cursor() as empty:
            empty.execute(*self.sent(replace(query, sql=f"SELECT * FROM ({query.sql}) AS described LIMIT 0")))
            return super().described(empty, query)

    def server(self) -> str:
        with self._connected() as c:
            return str(c.execute(text(self.SERVER)).scalar_one())

    def columns(self, cursor: Any) -> Iterator[tuple[str, str]]:
        for d in cursor.description:
            kind = ZONED if d.type_code == TIMESTAMPTZ else d.type_code
            yield str(d.name), f"{kind} {d.precision or ''} {d.scale or ''}".strip()

    def about(self, cursor: Any) -> Iterator[int]:
        for d in cursor.description:
            yield d.type_code

    def order(self, type_oid: int) -> Ordering:
        if type_oid not in self._kinds:
            with self._connected() as c:
                types = c.execute(text("SELECT oid, typname, typtype FROM pg_type")).all()
                self._kinds = {int(oid): postgres_ordering(*map(str, type_oid)) for oid, *type_oid in types}
        return self._kinds[type_oid]

    def hint_for(self, error: BaseException) -> str:
        from psycopg import errors

        if isinstance(error, errors.InsufficientPrivilege) and "row-level security" in str(error):
            return "use a login with BYPASSRLS or the table's owner, and exclude rows by WHERE"
        if isinstance(error, errors.UntranslatableCharacter | errors.CharacterNotInRepertoire):
            return (
                "correct the row with these bytes, which are invalid in the database's encoding; or select "
                "convert_to(column, getdatabaseencoding()) for the column"
            )
        return ""

    def is_timeout(self, error: BaseException) -> bool:
        from psycopg import errors

        return isinstance(error, errors.QueryCanceled)

    def rejects_value(self, error: BaseException) -> bool:
        from psycopg import DataError, errors

        # Without a number: the driver itself refuses, e.g. a NUL in a text.
        return isinstance(error, DataError | errors.ProgramLimitExceeded)

    def orders_by_code_point(self, rows: str, column: str) -> bool:
        # As JSON, since older servers lack some columns of pg_database.
        query = (
            "SELECT CASE c.collname WHEN 'default' THEN (SELECT to_jsonb(d) ->> 'datlocprovider' = 'b' OR (datcollate"
            " IN ('C', 'POSIX', 'C.UTF-8', 'C.utf8') AND COALESCE(to_jsonb(d) ->> 'datlocprovider', 'c') = 'c')"
            " FROM pg_database AS d WHERE datname = current_database())"
            " ELSE c.collname IN ('C', 'POSIX', 'ucs_basic', 'C.utf8', 'C.UTF-8', 'pg_c_utf8') END FROM pg_collation"
            f" AS c WHERE c.oid = pg_collation_for((SELECT q.{column} FROM {rows} AS q LIMIT 0))::regcollation"
        )
        with self._connected() as c:
            return bool(c.execute(SourceQuery(query, {}).clause).scalar())

    def unique_keys(self, table: exp.Table) -> list[set[str]]:
        # The rows of inheriting tables are not in a table's indexes, those of partitions are.
        query = text(
            "SELECT indexrelid, attname, attnotnull AND attcollation = indcollation[n] FROM pg_index AS i"
            " JOIN pg_class AS t ON t.oid = indrelid CROSS JOIN generate_series(0, indnkeyatts - 1) AS n"
            " JOIN pg_attribute AS a ON attrelid = indrelid AND attnum = indkey[n]"
            " WHERE t.oid = to_regclass(:name) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL"
            " AND (t.relkind = 'p' OR NOT t.relhassubclass)"
        )
        plain = exp.Table(this=table.this, db=table.args.get("db"), catalog=table.args.get("catalog"))
        with self._connected() as c:
            return group_by_index(c.execute(query, {"name": plain.sql("postgres")}))

    def plan(self, query: SourceQuery) -> list[tuple[str, str]]:
        with self._connected() as c:
            [plan] = c.execute(text(f"EXPLAIN (FORMAT JSON) {query.clause.text}"), dict(query.values)).scalars()
        # As text: see AS_TEXT.
        return list(_scans(orjson.loads(plan)[0]["Plan"]))


def _scans(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if node["Node Type"] == "Bitmap Heap Scan":
        # Its index, or one of them, is in a child node.
        yield node["Relation Name"], next((index for child in node["Plans"] for _, index in _scans(child)), "")
        return
    if "Scan" in node["Node Type"] and "Relation Name" in node:
        yield node["Relation Name"], node.get("Index Name", "")
    elif "Index Name" in node:
        yield "", node["Index Name"]
    for child in node.get("Plans", []):
        yield from _scans(child)
