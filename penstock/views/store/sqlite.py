"""A view on disk: its rows in SQLite, with the next offsets in the same transaction.

One thread writes; readers have connections of their own and see whole transactions. What a store was made of (topic,
schema, query fields) is in it: a store that does not fit, or is damaged, is removed and created again from the topic.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.host.sqlite_file import delete_database, is_corrupt
from penstock.tables.table_store import DELETED
from penstock.views.store.columns import VERSION, ViewLayout

# Pages of 4 kB that the write-ahead log may have before they are brought into the file.
CHECKPOINT_PAGES = 8000
# kB of the file that a connection holds, and bytes of it that are mapped into memory.
CACHE_KB, MAPPED_BYTES = 32_768, 1 << 31
# How many instructions of SQLite's pass between two looks at the clock.
INSTRUCTIONS_PER_CHECK = 20_000
CRITERIA = "criteria"
NOT_NOW = (
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM,
)  # fmt: skip


class StoreDamaged(PenstockError):
    """The file is no store, or not whole."""


class StoreNotWritable(PenstockError):
    """The disk does not take it."""


class QueryTimeout(PenstockError):
    """A query did not end in time."""


class StoreClosed(PenstockError):
    """There is no store to be read now."""


@dataclass(frozen=True)
class StoreMeta:
    """What a store was made of. topic: the broker's id of it, and its partitions; at: epoch ms, when an end was asked
    for that it was read to, as a committed reader comes to it; whole: whether nothing was read since; fresh: epoch ms,
    as `at`, but of ends of the log, which an open transaction may hide; loaded: whether it ever was read to an end;
    dead: records that are none, and why the last one is none."""

    version: int
    schema: str
    by: tuple[str, ...]
    topic: str
    count: int
    at: int = 0
    whole: bool = False
    fresh: int = 0
    loaded: bool = False
    dead: int = 0
    reason: str = ""


class QueryResult(list[tuple[Any, ...]]):
    """cut: whether there were more bytes than were asked for, and so more rows."""

    cut = False


class ViewStore:
    """The store of a view in one instance."""

    def __init__(self, layout: ViewLayout, path: Path) -> None:
        self.layout, self.path = layout, path
        self.meta = self._new_meta("", 0)
        self.next: dict[int, int] = {}
        # Raised whenever the file is another one.
        self.generation = 0
        # The generation that a query found damaged, and how.
        self._corruption = (0, "")
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._columns = [column.name for column in layout.columns]

    # Writing

    def open(self) -> None:
        """Open the existing store; StoreDamaged if it is damaged or has another schema."""
        self.close()
        if not self.path.exists():
            raise StoreDamaged("there is no store yet")
        try:
            with self._translate_errors():
                self._writer = self._connect()
                self._load(self._writer)
        except PenstockError:
            self.close()
            raise
        self._begin_generation()

    def _load(self, c: sqlite3.Connection) -> None:
        (problem,) = c.execute("PRAGMA quick_check(1)").fetchone()
        if problem != "ok":
            raise StoreDamaged("the store is damaged", got=problem)
        try:
            (text,) = c.execute("SELECT meta FROM meta").fetchone()
            fields = orjson.loads(text)
            meta = StoreMeta(**{**fields, "by": tuple(fields["by"])})
        except (sqlite3.OperationalError, TypeError, ValueError, KeyError) as e:
            raise StoreDamaged("the store has another version or is no store", got=e) from e
        expected = self._new_meta("", 0)
        if (meta.version, meta.schema, meta.by) != (expected.version, expected.schema, expected.by):
            raise StoreDamaged("the store has another schema or other query fields")
        self.meta, self.next = meta, dict(c.execute("SELECT partition, next FROM offsets"))

    def begin(self, topic: str, count: int, at: int, starts: Mapping[int, int]) -> None:
        """Create an empty store."""
        self.close()
        with self._translate_errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            delete_database(self.path)
            self._writer = self._connect()
            columns = "".join(f", {c.name} {c.affinity}" for c in self.layout.columns)
            with self._transaction() as c:
                c.execute("CREATE TABLE meta (meta TEXT)")
                c.execute("CREATE TABLE offsets (partition INTEGER PRIMARY KEY, next INTEGER)")
                c.execute(f"CREATE TABLE rows (key TEXT UNIQUE NOT NULL, partition INTEGER, value TEXT{columns})")
                # Records in another partition than the one their key belongs to.
                c.execute("CREATE TABLE misplaced (key TEXT, partition INTEGER, PRIMARY KEY (key, partition))")
                self.meta = replace(self._new_meta(topic, count), at=at)
                self._write_offsets(c, starts)
        self._begin_generation()

    def apply(
        self,
        rows: Mapping[int, pa.Table],
        following: Mapping[int, int],
        dead: int = 0,
        reason: str = "",
        misplaced: Mapping[int, pa.Table] = MappingProxyType({}),
    ) -> None:
        """Write the newest rows of some partitions, each key once, and the next offsets.

        misplaced: those whose keys belong to other partitions; they answer nothing, and are remembered until their
        tombstones come.
        """
        with self._translate_errors(), self._transaction() as c:
            for partition, table in misplaced.items():
                for key, deleted in zip(table["key"].to_pylist(), table[DELETED].to_pylist(), strict=True):
                    forget = "DELETE FROM misplaced WHERE key = ? AND partition = ?"
                    sql = forget if deleted else "INSERT OR IGNORE INTO misplaced VALUES (?, ?)"
                    if not c.execute(sql, (key, partition)).rowcount and deleted:
                        dead, reason = dead + 1, f"a tombstone of a key that partition {partition} cannot have"
            for partition, table in rows.items():
                deleted = table.filter(table[DELETED])["key"].to_pylist()
                c.executemany("DELETE FROM rows WHERE key = ?", ((key,) for key in deleted))
                c.executemany(self._upsert(partition), self.layout.rows(table))
            if dead:
                self.meta = replace(self.meta, dead=self.meta.dead + dead, reason=reason)
            self.meta = replace(self.meta, whole=False)
            self._write_offsets(c, following)

    def reached(self, at: int, fresh: int = 0) -> None:
        """Note that it was read to the end that was asked for then; the first time it is made ready for queries.

        at, fresh: as of `StoreMeta`.
        """
        with self._translate_errors(), self._transaction() as c:
            loaded, self.meta = self.meta.loaded, replace(self.meta, at=at, whole=True, fresh=fresh, loaded=True)
            if not loaded and self._columns:
                named = ", ".join([*self._columns, "partition", "key"])
                c.execute(f"CREATE INDEX IF NOT EXISTS {CRITERIA} ON rows ({named})")
            self._write_offsets(c, {})

    def add(self, starts: Mapping[int, int]) -> None:
        """Begin partitions that were never read: until all were read to an end, `fresh` says nothing."""
        with self._translate_errors(), self._transaction() as c:
            self.meta = replace(self.meta, whole=False, fresh=0)
            self._write_offsets(c, starts)

    def without(self, partitions: Iterable[int]) -> None:
        """Delete partitions that other instances have now."""
        with self._translate_errors(), self._transaction() as c:
            for partition in partitions:
                c.execute("DELETE FROM rows WHERE partition = ?", (partition,))
                c.execute("DELETE FROM offsets WHERE partition = ?", (partition,))
                c.execute("DELETE FROM misplaced WHERE partition = ?", (partition,))
                self.next = {p: at for p, at in self.next.items() if p != partition}

    def close(self) -> None:
        writer, self._writer = self._writer, None
        self._begin_generation()
        if writer is not None:
            with suppress(sqlite3.Error):
                # Readers may keep the log open for as long as they like.
                writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            writer.close()

    @property
    def corruption(self) -> str:
        """How a query found the present file damaged; empty if none did."""
        generation, text = self._corruption
        return text if generation == self.generation else ""

    @property
    def bytes(self) -> int:
        return sum(p.stat().st_size for p in (self.path, Path(f"{self.path}-wal")) if p.exists())

    def _new_meta(self, topic: str, count: int) -> StoreMeta:
        return StoreMeta(VERSION, self.layout.view.schema, tuple(self.layout.view.query_fields), topic, count)

    def _upsert(self, partition: int) -> str:
        columns_written = ["value", *self._columns]
        placeholders = ", ".join(["?"] * (len(columns_written) + 1))
        changed = ", ".join(f"{name} = excluded.{name}" for name in ("partition", *columns_written))
        columns = ", ".join(["key", *columns_written])
        return (
            f"INSERT INTO rows (partition, {columns}) VALUES ({partition:d}, {placeholders}) "
            f"ON CONFLICT (key) DO UPDATE SET {changed}"
        )

    def _write_offsets(self, c: sqlite3.Connection, following: Mapping[int, int]) -> None:
        c.executemany("INSERT OR REPLACE INTO offsets VALUES (?, ?)", following.items())
        c.execute("DELETE FROM meta")
        c.execute("INSERT INTO meta VALUES (?)", (orjson.dumps(self.meta).decode(),))
        self.next = {**self.next, **following}

    def _connect(self, *, reads: bool = False) -> sqlite3.Connection:
        c = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=30.0)
        try:
            c.execute(f"PRAGMA cache_size = -{CACHE_KB}")
            c.execute(f"PRAGMA mmap_size = {MAPPED_BYTES}")
            if reads:
                c.execute("PRAGMA query_only = ON")
                return c
            c.execute("PRAGMA journal_mode = WAL")
            # The broker has what a loss of power takes of the last transactions, and the offsets go with them.
            c.execute("PRAGMA synchronous = NORMAL")
            c.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            c.execute(f"PRAGMA journal_size_limit = {CHECKPOINT_PAGES * 4096}")
        except sqlite3.Error:
            c.close()
            raise
        return c

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._writer is None:
            raise StoreClosed("the store is closed")
        offsets, meta = self.next, self.meta
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield self._writer
            self._writer.execute("COMMIT")
        except BaseException:
            self.next, self.meta = offsets, meta
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as e:
            raise self._to_penstock_error(e) from e

    def _to_penstock_error(self, e: sqlite3.Error | OSError) -> PenstockError:
        if is_corrupt(e):
            hint = "nothing: it is created again from its topic"
            return StoreDamaged("the store is damaged", got=f"{self.path}: {e}", hint=hint)
        if isinstance(e, OSError) or getattr(e, "sqlite_errorcode", 0) & 0xFF in NOT_NOW:
            return StoreNotWritable(
                "the store of a view cannot be written",
                got=f"{self.path}: {e}",
                hint="check permissions and free space of its folder; it is tried again",
            )
        return StoreDamaged("the store of a view cannot be used", got=f"{self.path}: {e}")

    # Reading

    def read(
        self, sql: str, parameters: Iterable[Any] = (), deadline: float | None = None, max_bytes: int = 0
    ) -> QueryResult:
        """The rows of a query, read in one transaction.

        Args:
            sql: The statement; with `max_bytes` its first two columns are the key and the value.
            parameters: Parameters of the statement.
            deadline: Monotonic seconds.
            max_bytes: Bytes of keys and values after which the result is cut; 0 for no limit.

        Raises:
            QueryTimeout: The query did not end before the deadline.
        """
        generation = self.generation
        with self._reader() as c:
            if deadline is not None:
                limit = deadline
                c.set_progress_handler(lambda: time.monotonic() > limit, INSTRUCTIONS_PER_CHECK)
            try:
                cursor = c.execute(sql, tuple(parameters))
                return _bounded(cursor, max_bytes) if max_bytes else QueryResult(cursor.fetchall())
            except sqlite3.OperationalError as e:
                if e.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                    raise QueryTimeout(
                        "the query did not end in time", hint="ask for less, or give it more time"
                    ) from e
                raise self._to_penstock_error(e) from e
            except sqlite3.Error as e:
                if is_corrupt(e):
                    self._corruption = generation, str(e)
                raise self._to_penstock_error(e) from e
            finally:
                if deadline is not None:
                    c.set_progress_handler(None, 0)

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection to the present file, which no other thread uses meanwhile."""
        with self._readers_lock:
            generation = self.generation
            connection = self._readers.pop() if self._readers else None
        if connection is None:
            if self._writer is None:
                raise StoreClosed("the store is being created")
            with self._translate_errors():
                connection = self._connect(reads=True)
        try:
            yield connection
        finally:
            with self._readers_lock:
                is_present = generation == self.generation
                if is_present:
                    self._readers.append(connection)
            if not is_present:
                connection.close()

    def _begin_generation(self) -> None:
        """The file is another one now, or none: its readers are closed, and those in use when they are given back."""
        with self._readers_lock:
            self.generation += 1
            idle, self._readers = self._readers, []
        for connection in idle:
            connection.close()


def _bounded(cursor: sqlite3.Cursor, max_bytes: int) -> QueryResult:
    result, size = QueryResult(), 0
    for row in cursor:
        result.append(row)
        size += len(row[0]) + len(row[1])
        if size > max_bytes:
            result.cut = True
            cursor.close()
            break
    return result
