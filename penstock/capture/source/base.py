"""The database of a capture: pages, the database's clock, and its open transactions.

Every query is a transaction of its own and is read to its end, so a capture holds no lock and no snapshot in the
database between two queries.
"""

from __future__ import annotations

import math
import re
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, ClassVar, Self

from sqlalchemy import URL, Connection, Dialect, TextClause, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlglot import exp

from penstock.capture.checks.column_types import Ordering
from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.source.open_transactions import ServerSession, TransactionSnapshot, TransactionTracker
from penstock.errors import PenstockError
from penstock.settings.database_engine import create_engine

# Seconds to read a page; then the server ends the query, and the capture fails.
READ_TIMEOUT = 120
CONNECT_TIMEOUT = 10
# Characters of a driver's message in errors.
LONGEST_MESSAGE = 1000
CONNECTION_HINT = "check host, port, login, password and schema of its connection; the capture retries"
QUERY_HINT = "check the database and the capture's SELECT; the capture retries"


class SourceError(PenstockError):
    """A capture's database refused or did not answer.

    Attributes:
        refused: Only a value of the query was refused.
        timed_out: The server ended the query after READ_TIMEOUT.
    """

    refused = False
    timed_out = False


# Seconds for which a query of a server's transactions is shared by all captures. InnoDB's list becomes stale if it is
# read more than ten times a second in total.
SNAPSHOT_MAX_AGE = 0.25
_TRACKERS: dict[tuple[str, float], TransactionTracker] = defaultdict(TransactionTracker)
# Prefix of the type names of times with a zone; MariaDB's are read in UTC, without a zone.
ZONED = "TIMESTAMP"


@dataclass(frozen=True)
class SourcePage:
    """Rows as the driver returns them.

    Attributes:
        columns: Name and type of each column; the type is a number or name of the engine.
        rows: The rows.
        about: Metadata of each column, see `SourceDatabase.order`.
        more: Whether there may be rows after them.
        cut: Whether rows are missing because of their size.
        weight: Bytes, if they were limited.
    """

    columns: tuple[tuple[str, str], ...]
    rows: list[Any]
    about: tuple[Hashable, ...] = ()
    more: bool = False
    cut: bool = False
    weight: int = 0

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]


# MariaDB and MySQL refuse two columns of one name in a derived table, PostgreSQL to name one of them.
DUPLICATE_COLUMN = re.compile(
    r"Duplicate column name '([^']*)'|column reference \"([^\"]*)\" is ambiguous\nLINE \d+:.*\bq\.\""
)


def _shown(cause: BaseException) -> str:
    # A refused value may be long, and is also in the statement.
    message = str(cause)
    return message if len(message) < LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."


def duplicate_columns_error(names: str) -> SourceError:
    return SourceError(
        "a capture selects two columns of one name",
        got=names,
        hint="list the columns instead of `*`, each with its own name",
    )


def _renamed(name: str, names: list[str]) -> bool:
    """Whether SQLite renamed a second column of the same name, e.g. to `id:1`."""
    first, colon, number = name.rpartition(":")
    return bool(colon) and number.isdigit() and first.lower() in map(str.lower, names)


@lru_cache(maxsize=1000)
def _compiled(clause: TextClause, dialect: Dialect) -> SQLCompiler:
    compiled = clause.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    return compiled


def first(rows: Iterable[tuple[Any, int]], limit: int) -> tuple[list[Any], int, bool]:
    """The first rows of at most `limit` bytes, at least one; their bytes; and whether there are more."""
    result, weight_sum = list[Any](), 0
    for row, weight in rows:
        if result and weight_sum + weight > limit:
            return result, weight_sum, True
        result.append(row)
        weight_sum += weight
    return result, weight_sum, False


def weighed(rows: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Rows and their sizes in bytes."""
    for row in rows:
        yield row, _weight(row)


def _weight(row: Iterable[Any]) -> int:
    # Only types that may be long; a generator expression would take three times as long.
    weight = 0
    for value in row:
        kind = value.__class__
        if kind is str or kind is bytes:
            weight += len(value)
        elif kind is list:
            weight += _weight(value)
    return weight


class SourceDatabase(ABC):
    """One connection to a capture's database.

    Args:
        url: SQLAlchemy URL.
        delay: The assumed maximum age of transactions if they are not visible.

    Attributes:
        display_url: The URL without its password.
    """

    CLOCK: ClassVar[str]
    # Statements for each new connection, whatever the defaults of server and login.
    SESSION: ClassVar[tuple[str, ...]] = ()
    OPTIONS: ClassVar[dict[str, Any]]
    WHY_NOT_VISIBLE: ClassVar[str]
    # Hint: how a text column is ordered by code point.
    CODE_POINT: ClassVar[str]

    def __init__(self, url: URL, delay: timedelta) -> None:
        self.display_url, self._url = url.render_as_string(hide_password=True), url
        self._delay = delay.total_seconds()
        self._engine = create_engine(
            url, isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=1, pool_recycle=1800, **self.OPTIONS
        )
        self._look = _TRACKERS[url.render_as_string(hide_password=False), self._delay]
        event.listen(self._engine, "connect", self.connected)

    def connector(self) -> Callable[[], Self]:
        """Returns a picklable function that opens another connection to the same database."""
        return partial(type(self), self._url, timedelta(seconds=self._delay))

    def connected(self, connection: Any, _: Any) -> None:
        """Initialise a new connection."""
        cursor = connection.cursor()
        for statement in self.SESSION:
            cursor.execute(statement)
        cursor.close()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        what, hint = "the database of a capture cannot be connected to", CONNECTION_HINT
        try:
            with self._engine.connect() as c:
                what, hint = "a query of a capture failed", QUERY_HINT
                yield c
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error, OverflowError, UnicodeError) as e:
            # The pool would return the same broken connection.
            self.close()
            cause = getattr(e, "orig", None) or e
            error = SourceError(
                what,
                got=f"{type(cause).__name__}: {_shown(cause)} at {self.display_url}",
                hint=self.hint_for(cause) or hint,
            )
            error.refused = isinstance(cause, OverflowError | UnicodeError) or self.rejects_value(cause)
            error.timed_out = self.is_timeout(cause)
            raise error from e

    def page(self, query: SourceQuery, most: int | None = None) -> SourcePage:
        """Run a query.

        Args:
            query: The query.
            most: Maximum bytes of the rows; at least one row is returned. None for no limit.

        Raises:
            SourceError: The query failed, or two columns have the same name.
        """
        with self._connected() as c:
            try:
                if most is None:
                    cursor = c.execute(query.clause, dict(query.values)).cursor
                    assert cursor is not None
                    rows, weight, cut = list(cursor.fetchall()), 0, False
                    columns, about = tuple(self.columns(cursor)), tuple(self.about(cursor))
                else:
                    with self.streamed(c, query) as (cursor, coming):
                        rows, weight, cut = first(coming, most)
                        columns, about = self.described(cursor, query)
            except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as e:
                if (duplicate := DUPLICATE_COLUMN.search(str(e))) is None:
                    raise
                raise duplicate_columns_error(duplicate[1] or duplicate[2]) from e
            names = [name for name, _ in columns]
            if duplicates := sorted({name for name in names if names.count(name) > 1 or _renamed(name, names)}):
                raise duplicate_columns_error(", ".join(duplicates))
            return SourcePage(columns, rows, about, cut or 0 < query.limit == len(rows), cut, weight)

    @contextmanager
    def streamed(self, c: Connection, query: SourceQuery, /) -> Iterator[tuple[Any, Iterator[tuple[Any, int]]]]:
        """The driver's cursor, and an iterator of its rows as `weighed`, without buffering all rows."""
        cursor = c.connection.cursor()
        try:
            cursor.execute(*self.sent(query))
            yield cursor, weighed(iter(cursor.fetchone, None))
        finally:
            cursor.close()

    def sent(self, query: SourceQuery) -> tuple[str, Any]:
        """A query and its parameters for the driver."""
        compiled = _compiled(query.clause, self._engine.dialect)
        values = compiled.construct_params(dict(query.values))
        return str(compiled), tuple(
            values[name] for name in compiled.positiontup or ()
        ) if compiled.positional else values

    def described(self, cursor: Any, _: SourceQuery, /) -> tuple[tuple[tuple[str, str], ...], tuple[Hashable, ...]]:
        """`columns` and `about` of a result after its rows were read."""
        return tuple(self.columns(cursor)), tuple(self.about(cursor))

    def value(self, query: SourceQuery) -> Any:
        """The first column of the first row, None if there is none."""
        rows = self.page(query).rows
        return rows[0][0] if rows else None

    def clock(self) -> float:
        with self._connected() as c:
            return float(c.execute(text(self.CLOCK)).scalar_one())

    def transactions(self, behind: float = -math.inf) -> TransactionSnapshot:
        """The clock, and the start of the oldest open transaction; `delay` ago if that is unknown.

        The result may be a quarter of a second old, but not from before `behind`, since all captures of a server in
        this process share it. An older result delays a capture but loses nothing.
        """
        look = self._look
        with look.lock:
            if time.monotonic() - look.at >= SNAPSHOT_MAX_AGE or look.moment.now < behind:
                with self._connected() as c:
                    look.moment = self.read_transactions(c)
                look.at = time.monotonic()
            return look.moment

    def read_transactions(self, c: Connection, /) -> TransactionSnapshot:
        """Query the server's transactions."""
        now = float(c.execute(text(self.CLOCK)).scalar_one())
        return self.summarize(now, self.sessions(c), complete=self.sees_all(c))

    def summarize(self, now: float, sessions: Collection[ServerSession], *, complete: bool) -> TransactionSnapshot:
        """The snapshot of a query that returned these sessions; `complete`: whether all sessions were visible."""
        snapshot = self._look.taken(now, sessions)
        if complete:
            return snapshot
        guess = now - self._delay
        return TransactionSnapshot(
            now, guess if snapshot.oldest is None else min(guess, snapshot.oldest), complete=False
        )

    @property
    def visibility_problem(self) -> str:
        """Why this login does not see all open transactions; empty if it does."""
        with self._connected() as c:
            return "" if self.sees_all(c) else self.WHY_NOT_VISIBLE

    @abstractmethod
    def sees_all(self, c: Connection, /) -> bool:
        """Whether `sessions` returns the transactions of all sessions."""

    @abstractmethod
    def sessions(self, c: Connection, /) -> Collection[ServerSession]:
        """The sessions that may write now."""

    @abstractmethod
    def server(self) -> str:
        """The identity of the server; another one may have other rows."""

    def about(self, cursor: Any, /) -> Iterator[Hashable]:
        """Metadata of a result's columns for `order`."""
        for _ in cursor.description:
            yield None

    @abstractmethod
    def order(self, about: Any, /) -> Ordering:
        """The ordering of a column with this metadata."""

    @abstractmethod
    def rejects_value(self, error: BaseException, /) -> bool:
        """Whether an error of the driver is about a value of the query."""

    def is_timeout(self, _: BaseException, /) -> bool:
        """Whether an error of the driver says that the server ended a query that took too long."""
        return False

    def hint_for(self, _: BaseException, /) -> str:
        """The hint for an error of the driver; empty for the default."""
        return ""

    def can_send(self, value: Any, /) -> bool:  # noqa: ARG002
        """Whether a value can be a parameter."""
        return True

    @abstractmethod
    def orders_by_code_point(self, rows: str, column: str, /) -> bool:
        """Whether a text column of a derived table is ordered by code point."""

    def at_other_dates(self, query: SourceQuery, most: int, /) -> list[SourcePage]:  # noqa: ARG002
        """The page at two other dates, and at the first of them again; empty if the engine cannot set its date.

        Args:
            query: The query.
            most: Maximum bytes of each page.
        """
        return []

    def lossy_text(self, rows: str, column: str, /) -> tuple[str, str] | None:  # noqa: ARG002
        """The character set of a text column, and the condition of values that change in UTF-8; None if lossless."""
        return None

    @abstractmethod
    def unique_keys(self, table: exp.Table, /) -> list[set[str]]:
        """The columns of each unique index of a table, if all are NOT NULL; names as in `single_table`."""

    def storage_ids(self, schema: str, table: str, /) -> list[int]:  # noqa: ARG002
        """Ids of a table's storage, if nothing else shows that a table was exchanged; `schema` may be empty."""
        return []

    @abstractmethod
    def plan(self, query: SourceQuery) -> list[tuple[str, str]]:
        """(table, index) pairs of the plan; the index is empty for a full scan."""

    def columns(self, cursor: Any) -> Iterator[tuple[str, str]]:
        """(name, type) of a result's columns."""
        for described in cursor.description:
            yield str(described[0]), str(described[1])

    def close(self) -> None:
        self._engine.dispose()


def group_by_index(rows: Iterable[Any]) -> list[set[str]]:
    """The columns of each index of which all columns are usable; `rows` are (index, column, whether it is usable)."""
    columns_by_index: dict[Any, set[str]] = defaultdict(set)
    unusable = set()
    for index, column, serves in rows:
        columns_by_index[index].add(str(column))
        if not serves:
            unusable.add(index)
    return [columns for index, columns in columns_by_index.items() if index not in unusable]
