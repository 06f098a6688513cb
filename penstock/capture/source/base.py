"""The database side of a capture: pages, the database's own clock, and which transactions are open.

Every query is a statement of its own, committed at once and read to its end: nothing a capture does holds a lock or a
snapshot in the database between two queries.
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

from sqlalchemy import URL, Connection, Dialect, TextClause, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlglot import exp

from penstock.capture.checks.column_types import Ordering
from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.source.open_transactions import ServerSession, TransactionSnapshot, TransactionTracker
from penstock.errors import PenstockError

# A page is read within this time, or the capture says that it fails: a server that hangs must not look like one idle.
READ_TIMEOUT = 120
CONNECT_TIMEOUT = 10
# Characters of what a driver says that are told.
LONGEST_MESSAGE = 1000


class SourceError(PenstockError):
    """A capture's database refused or did not answer. refused: a value of the question, so others may be answered."""

    refused = False


# Seconds for which one look at a server's transactions serves all captures of it: InnoDB's list goes stale for those
# who read it more often than ten times a second, all together.
SNAPSHOT_MAX_AGE = 0.25
_TRACKERS: dict[tuple[str, float], TransactionTracker] = defaultdict(TransactionTracker)
# How the type of a time begins that is one moment everywhere; MariaDB's is read in UTC, and comes without a zone.
ZONED = "TIMESTAMP"


@dataclass(frozen=True)
class SourcePage:
    """Rows as the driver gives them.

    columns: (name, type as the engine numbers or names it); about: what else the engine tells of each, see `order`;
    more: whether there may be rows behind them; cut: because they were heavy; weight: bytes, if it was limited.
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
    # A refused value may be long, and stands in the statement too.
    message = str(cause)
    return message if len(message) < LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."


def duplicate_columns_error(names: str) -> SourceError:
    return SourceError(
        "a capture selects two columns of one name",
        got=names,
        hint="name the columns one by one instead of `*`, each by a name of its own",
    )


def _renamed(name: str, names: list[str]) -> bool:
    """Whether SQLite gave a second column of one name another, `id:1`."""
    first, colon, number = name.rpartition(":")
    return bool(colon) and number.isdigit() and first.lower() in map(str.lower, names)


@lru_cache(maxsize=1000)
def _compiled(clause: TextClause, dialect: Dialect) -> SQLCompiler:
    compiled = clause.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    return compiled


def first(rows: Iterable[tuple[Any, int]], limit: int) -> tuple[list[Any], int, bool]:
    """The first rows that weigh so many bytes, and one at least; what they weigh; whether there are others."""
    result, weight_sum = list[Any](), 0
    for row, weight in rows:
        if result and weight_sum + weight > limit:
            return result, weight_sum, True
        result.append(row)
        weight_sum += weight
    return result, weight_sum, False


def weighed(rows: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Rows and how many bytes each weighs."""
    for row in rows:
        yield row, _weight(row)


def _weight(row: Iterable[Any]) -> int:
    # Of what may be long; it is done for each row, and this is a third of the time of what is shorter.
    weight = 0
    for value in row:
        kind = value.__class__
        if kind is str or kind is bytes:
            weight += len(value)
        elif kind is list:
            weight += _weight(value)
    return weight


class SourceDatabase(ABC):
    """One connection to a capture's database. delay: how long a transaction may be open where nobody can tell."""

    CLOCK: ClassVar[str]
    # What each new connection begins with, whatever the server and the login have for it.
    SESSION: ClassVar[tuple[str, ...]] = ()
    OPTIONS: ClassVar[dict[str, Any]]
    WHY_NOT_VISIBLE: ClassVar[str]
    # What makes a column of text one that is ordered by code point.
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
        """Makes another connection to the same database, in another process too."""
        return partial(type(self), self._url, timedelta(seconds=self._delay))

    def connected(self, connection: Any, _: Any) -> None:
        """Make a new connection ready."""
        cursor = connection.cursor()
        for statement in self.SESSION:
            cursor.execute(statement)
        cursor.close()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as c:
                yield c
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error, OverflowError, UnicodeError) as e:
            # The pool would give the same broken connection out again.
            self.close()
            cause = getattr(e, "orig", None) or e
            error = SourceError(
                "the database did not do what a capture asked",
                got=f"{type(cause).__name__}: {_shown(cause)} at {self.display_url}",
                hint=self.hint_for(cause)
                or "see that it runs and that the capture's SELECT does; the capture asks again by itself",
            )
            error.refused = isinstance(cause, OverflowError | UnicodeError) or self.rejects_value(cause)
            raise error from e

    def page(self, query: SourceQuery, most: int | None = None) -> SourcePage:
        """All rows of a query, or the first of them that weigh `most` bytes at most, and one at least.

        SourceError if two columns have one name.
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
        """The driver's cursor and its rows, `weighed`, one by one: those that are not taken need no memory."""
        cursor = c.connection.cursor()
        try:
            cursor.execute(*self.sent(query))
            yield cursor, weighed(iter(cursor.fetchone, None))
        finally:
            cursor.close()

    def sent(self, query: SourceQuery) -> tuple[str, Any]:
        """A query and its parameters as the driver takes them."""
        compiled = _compiled(query.clause, self._engine.dialect)
        values = compiled.construct_params(dict(query.values))
        return str(compiled), tuple(
            values[name] for name in compiled.positiontup or ()
        ) if compiled.positional else values

    def described(self, cursor: Any, _: SourceQuery, /) -> tuple[tuple[tuple[str, str], ...], tuple[Hashable, ...]]:
        """`columns` and `about` of a result whose rows were read."""
        return tuple(self.columns(cursor)), tuple(self.about(cursor))

    def value(self, query: SourceQuery) -> Any:
        """The first column of the first row, None if there is none."""
        rows = self.page(query).rows
        return rows[0][0] if rows else None

    def clock(self) -> float:
        with self._connected() as c:
            return float(c.execute(text(self.CLOCK)).scalar_one())

    def transactions(self, behind: float = -math.inf) -> TransactionSnapshot:
        """The clock, and since when the oldest transaction is open; where that is unknown, `delay` ago.

        It may be a quarter of a second old, but not from before `behind`: all captures of a server in this process look
        together. An older moment holds a capture back and never makes it lose anything.
        """
        look = self._look
        with look.lock:
            if time.monotonic() - look.at >= SNAPSHOT_MAX_AGE or look.moment.now < behind:
                with self._connected() as c:
                    look.moment = self.read_transactions(c)
                look.at = time.monotonic()
            return look.moment

    def read_transactions(self, c: Connection, /) -> TransactionSnapshot:
        """The moment as a look at the server gives it."""
        now = float(c.execute(text(self.CLOCK)).scalar_one())
        return self.summarize(now, self.sessions(c), complete=self.sees_all(c))

    def summarize(self, now: float, sessions: Collection[ServerSession], *, complete: bool) -> TransactionSnapshot:
        """The moment of a look that found these sessions; complete: and that it found all there are."""
        snapshot = self._look.taken(now, sessions)
        if complete:
            return snapshot
        guess = now - self._delay
        return TransactionSnapshot(
            now, guess if snapshot.oldest is None else min(guess, snapshot.oldest), complete=False
        )

    @property
    def visibility_problem(self) -> str:
        """Empty if this login sees when every open transaction began, else why it does not."""
        with self._connected() as c:
            return "" if self.sees_all(c) else self.WHY_NOT_VISIBLE

    @abstractmethod
    def sees_all(self, c: Connection, /) -> bool:
        """Whether `sessions` sees the transactions of all sessions."""

    @abstractmethod
    def sessions(self, c: Connection, /) -> Collection[ServerSession]:
        """Who may write now."""

    @abstractmethod
    def server(self) -> str:
        """Which server this is: another one may hold other rows."""

    def about(self, cursor: Any, /) -> Iterator[Hashable]:
        """What tells the order of a result's columns."""
        for _ in cursor.description:
            yield None

    @abstractmethod
    def order(self, about: Any, /) -> Ordering:
        """The order of a column of which this is told."""

    @abstractmethod
    def rejects_value(self, error: BaseException, /) -> bool:
        """Whether an error of the driver is about a value that the engine does not take."""

    def hint_for(self, _: BaseException, /) -> str:
        """What mends an error of the driver, empty if nothing special does."""
        return ""

    def can_send(self, value: Any, /) -> bool:  # noqa: ARG002
        """Whether the engine can be sent a value at all."""
        return True

    @abstractmethod
    def orders_by_code_point(self, rows: str, column: str, /) -> bool:
        """Whether a column of text of a derived table is ordered by code point."""

    def at_other_dates(self, query: SourceQuery, /) -> list[SourcePage]:  # noqa: ARG002
        """What a query says at two other times than now, and at the first of them again; nothing where the engine
        cannot be told that it is another."""
        return []

    def lossy_text(self, rows: str, column: str, /) -> tuple[str, str] | None:  # noqa: ARG002
        """Of a column of text of a derived table: its character set, and the condition of values that come back from
        UTF-8 as other ones; None if there are none in that."""
        return None

    @abstractmethod
    def unique_keys(self, table: exp.Table, /) -> list[set[str]]:
        """The columns of each unique index of a table, if all are NOT NULL; names as `only_table` gives them."""

    def storage_ids(self, schema: str, table: str, /) -> list[int]:  # noqa: ARG002
        """Numbers of what a table's rows are kept in, where nothing else shows another in its place; schema may be
        empty."""
        return []

    @abstractmethod
    def plan(self, query: SourceQuery) -> list[tuple[str, str]]:
        """(table, index) the engine would take, index empty for a full scan."""

    def columns(self, cursor: Any) -> Iterator[tuple[str, str]]:
        """(name, type) of a result's columns: a type that is another writes other bytes."""
        for described in cursor.description:
            yield str(described[0]), str(described[1])

    def close(self) -> None:
        self._engine.dispose()


def group_by_index(rows: Iterable[Any]) -> list[set[str]]:
    """The columns of the indexes all of whose columns serve. rows: (index, column, whether it serves)."""
    columns_by_index: dict[Any, set[str]] = defaultdict(set)
    unusable = set()
    for index, column, serves in rows:
        columns_by_index[index].add(str(column))
        if not serves:
            unusable.add(index)
    return [columns for index, columns in columns_by_index.items() if index not in unusable]
