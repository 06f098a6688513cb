"""The SQLite file of a digest index. It is a cache: a damaged one is deleted, and begun anew when it is opened next."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.sqlite_file import delete_database, is_corrupt


class IndexFile:
    """An open file. Damage shows when its page is read, since a check of all pages takes seconds for millions of keys.

    Args:
        path: The file.
        schema: Creates the tables that do not exist.

    Raises:
        PenstockError: The file cannot be used, also by each of the methods.
    """

    def __init__(self, path: Path, schema: str) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._translated_errors():
            try:
                self._db = self._connected(schema)
            except sqlite3.DatabaseError as e:
                if not is_corrupt(e):
                    raise
                delete_database(path)
                self._db = self._connected(schema)

    def _connected(self, schema: str) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            db.executescript(schema)
            # Without fsync of the journal: a crash of the machine may lose the last writes, never the consistency.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.DatabaseError:
            db.close()
            raise
        return db

    def execute(self, sql: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; returns its rows."""
        with self._translated_errors():
            return self._db.execute(sql, tuple(parameters)).fetchall()

    def executemany(self, sql: str, parameters: Iterable[Iterable[Any]]) -> None:
        """Run a statement with each of some parameters."""
        with self._translated_errors():
            self._db.executemany(sql, map(tuple, parameters))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction; rolled back if the block raises."""
        self.execute("BEGIN")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            # It may be rolled back, or the file closed, by what has failed.
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def deleted(self, e: BaseException) -> PenstockError:
        """Delete the file, whose content is damaged; returns the error to raise."""
        self.close()
        delete_database(self._path)
        return PenstockError(
            "the index of a topic is damaged", got=f"{self._path}: {e}", hint="nothing: it is made anew from its topic"
        )

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as e:
            if is_corrupt(e):
                raise self.deleted(e) from e
            if isinstance(e, sqlite3.OperationalError):
                raise PenstockError(f"{self._path} cannot be used", got=e, hint="check its folder and the disk") from e
            raise
