"""The database side of a capture: pages, the database's own clock, and which transactions are open.

Every query is a statement of its own, committed at once and read to its end: nothing a capture does holds a lock or a
snapshot in the database between two queries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from pymysql.constants import FIELD_TYPE
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from penstock.capture.pages import Query
from penstock.errors import PenstockError

# A page is read within this time, or the capture says that it fails: a server that hangs must not look like one idle.
READ_TIMEOUT = 120
CONNECT_TIMEOUT = 10


class SourceError(PenstockError):
    """A capture's database refused or did not answer."""


@dataclass(frozen=True)
class Moment:
    """now: the database's clock; oldest: when the oldest transaction now open began, None if there is none.

    Both are seconds since the epoch.
    """

    now: float
    oldest: float | None


@dataclass(frozen=True)
class Page:
    """Rows as the driver gives them. columns: (name, type as the engine numbers or names it)."""

    columns: tuple[tuple[str, str], ...]
    rows: list[Any]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]


class Database(ABC):
    """One connection to a capture's database. delay: how long a transaction may be open where nobody can tell."""

    CLOCK: ClassVar[str]
    OPTIONS: ClassVar[dict[str, Any]]
    WHY_NOT: ClassVar[str]

    def __init__(self, url: URL, delay: timedelta) -> None:
        self.place = url.render_as_string(hide_password=True)
        self._delay = delay.total_seconds()
        self._tells: bool | None = None
        self._engine = create_engine(
            url, isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=1, pool_recycle=1800, **self.OPTIONS
        )
        # What is asked for the clock and the open transactions.
        self._watch = self._engine
        self.prepare()

    def prepare(self) -> None:
        """Set what each new connection begins with."""
        return

    @contextmanager
    def _connected(self, engine: Engine | None = None) -> Iterator[Connection]:
        try:
            with (engine or self._engine).connect() as c:
                yield c
        except SQLAlchemyError as e:
            # The pool would give the same broken connection out again.
            self.close()
            cause = getattr(e, "orig", None) or e
            raise SourceError(
                "the database did not do what a capture asked",
                got=f"{type(cause).__name__}: {cause} at {self.place}",
                fix="see that it runs and that the capture's SELECT does; the capture asks again by itself",
            ) from e

    def page(self, query: Query) -> Page:
        """All rows of a query."""
        with self._connected() as c:
            found = c.execute(query.clause, dict(query.values))
            described = found.cursor.description if found.cursor else []
            columns = tuple((str(d[0]), self.kind(d)) for d in described)
            return Page(columns, list(found.cursor.fetchall()) if found.cursor else [])

    def value(self, query: Query) -> Any:
        """The first column of the first row, None if there is none."""
        rows = self.page(query).rows
        return rows[0][0] if rows else None

    def clock(self) -> float:
        with self._connected() as c:
            return float(c.execute(text(self.CLOCK)).scalar_one())

    def moment(self) -> Moment:
        """The clock, and since when the oldest transaction is open; where that is unknown, `delay` ago."""
        with self._connected(self._watch) as c:
            if self._tells is None:
                self._tells = self.tells(c)
            now = float(c.execute(text(self.CLOCK)).scalar_one())
            return Moment(now, self.oldest(c) if self._tells else now - self._delay)

    @property
    def can_tell(self) -> str:
        """Empty if this login sees when every open transaction began, else why it does not."""
        with self._connected(self._watch) as c:
            self._tells = self.tells(c)
        return "" if self._tells else self.WHY_NOT

    @abstractmethod
    def tells(self, c: Connection, /) -> bool:
        """Whether `oldest` sees the transactions of all sessions."""

    @abstractmethod
    def oldest(self, c: Connection, /) -> float | None:
        """When the oldest transaction of another session began, epoch seconds."""

    @abstractmethod
    def plan(self, query: Query) -> list[tuple[str, str]]:
        """(table, index) the engine would take, index empty for a full scan."""

    def kind(self, described: Any) -> str:
        return str(described[1])

    def close(self) -> None:
        self._engine.dispose()
        self._watch.dispose()


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
        }
    }
    WHY_NOT = "the login lacks the privilege PROCESS"
    # Begun is when the statement began that touched the first row, or later: a row's CURRENT_TIMESTAMP may be earlier,
    # so running statements count too. Both have whole seconds, rounded down. InnoDB says it in the local time of the
    # server's machine, and of an hour that comes twice a year it may be the first.
    OLDEST = (
        "SELECT LEAST(COALESCE(t.began, s.began), COALESCE(s.began, t.began)) FROM"
        " (SELECT MIN(IF(FROM_UNIXTIME(UNIX_TIMESTAMP(trx_started) - 3600) = trx_started,"
        " UNIX_TIMESTAMP(trx_started) - 3600, UNIX_TIMESTAMP(trx_started))) began FROM information_schema.innodb_trx"
        " WHERE trx_mysql_thread_id <> CONNECTION_ID() AND trx_is_read_only = 0) t,"
        " (SELECT MIN(UNIX_TIMESTAMP(SYSDATE()) - 1 - TIME) began FROM information_schema.processlist"
        " WHERE COMMAND IN ('Query', 'Execute') AND ID <> CONNECTION_ID()) s"
    )

    def prepare(self) -> None:
        options = {k: v for k, v in self.OPTIONS["connect_args"].items() if k != "init_command"}
        options["init_command"] = "SET time_zone = 'SYSTEM'"
        self._watch = create_engine(
            self._engine.url, isolation_level="AUTOCOMMIT", pool_size=1, pool_recycle=1800, connect_args=options
        )

    def tells(self, c: Connection) -> bool:
        try:
            c.execute(text("SELECT COUNT(*) FROM information_schema.innodb_trx")).scalar_one()
        except DBAPIError:
            return False
        return True

    def oldest(self, c: Connection) -> float | None:
        found = c.execute(text(self.OLDEST)).scalar_one()
        return None if found is None else float(found)

    def plan(self, query: Query) -> list[tuple[str, str]]:
        with self._connected() as c:
            rows = c.execute(text(f"EXPLAIN {query.clause.text}"), dict(query.values)).mappings()
            return [(str(row["table"]), str(row["key"] or "")) for row in rows]

    def kind(self, described: Any) -> str:
        if described[1] == FIELD_TYPE.FLOAT:
            raise SourceError(
                "the server shows a column of type FLOAT with six digits, so its value would be lost",
                got=described[0],
                fix=f"select CAST({described[0]} AS DOUBLE) AS {described[0]}",
            )
        return str(described[1])


class PostgreSQL(Database):
    CLOCK = "SELECT EXTRACT(EPOCH FROM clock_timestamp())"
    OPTIONS: ClassVar = {
        "connect_args": {
            "connect_timeout": CONNECT_TIMEOUT,
            "options": f"-c timezone=UTC -c statement_timeout={READ_TIMEOUT * 1000}",
        }
    }
    WHY_NOT = "the login is no member of pg_read_all_stats"
    # A prepared transaction does not say when it began, only when it was prepared: `delay` before that.
    OLDEST = (
        "SELECT EXTRACT(EPOCH FROM LEAST("
        " (SELECT MIN(xact_start) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datid IS NOT NULL),"
        " (SELECT MIN(prepared) - make_interval(secs => :delay) FROM pg_prepared_xacts)))"
    )
    # What psycopg would turn into an object that says less: an interval's months become thirty days, JSON's numbers
    # floats, and an address a class of its own.
    AS_TEXT = ("json", "jsonb", "interval", "inet", "cidr")

    def prepare(self) -> None:
        from psycopg.types.string import TextLoader

        @event.listens_for(self._engine, "connect")
        def connected(connection: Any, _: Any) -> None:
            for name in self.AS_TEXT:
                connection.adapters.register_loader(name, TextLoader)

    def tells(self, c: Connection) -> bool:
        return bool(c.execute(text("SELECT pg_has_role('pg_read_all_stats', 'MEMBER')")).scalar_one())

    def oldest(self, c: Connection) -> float | None:
        found = c.execute(text(self.OLDEST), {"delay": self._delay}).scalar_one()
        return None if found is None else float(found)

    def plan(self, query: Query) -> list[tuple[str, str]]:
        with self._connected() as c:
            [found] = c.execute(text(f"EXPLAIN (FORMAT JSON) {query.clause.text}"), dict(query.values)).scalars()
        return list(_scans(found[0]["Plan"] if isinstance(found, list) else _loaded(found)))


def _loaded(found: str) -> dict[str, Any]:
    import orjson

    plan: dict[str, Any] = orjson.loads(found)[0]["Plan"]
    return plan


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

    def oldest(self, _: Connection) -> float | None:
        return None

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
