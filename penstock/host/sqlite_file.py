"""Files of SQLite that hold only what can be read again elsewhere."""

from __future__ import annotations

import sqlite3
from pathlib import Path

CORRUPTION_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_corrupt(e: BaseException) -> bool:
    """Whether an error says that a file is damaged, or is none of SQLite's."""
    return getattr(e, "sqlite_errorcode", 0) & 0xFF in CORRUPTION_CODES


def delete_database(path: Path) -> None:
    """Delete a file and its write-ahead log, if they exist."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
