"""Connections to the databases of the histories, and what differs between them for those who write."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql

ERRORS = (pymysql.Error, psycopg.Error, sqlite3.Error, OSError)
ISOLATIONS = ("READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@dataclass(frozen=True)
class Server:
    """One database. engine: of `tables.DIALECTS`; url: for captures; open: makes a connection that commits at once."""

    engine: str
    url: str
    open: Callable[[], Any]

    def run(self, *statements: str) -> None:
        """Statements in a connection of their own."""
        connection = self.open()
        try:
            for statement in statements:
                execute(connection, statement)
        finally:
            connection.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = self.open()
        try:
            cursor = connection.cursor()
            cursor.execute(query)
            return [tuple(row) for row in cursor.fetchall()]
        finally:
            connection.close()


def execute(connection: Any, statement: str) -> int:
    """Run one statement; how many rows it changed."""
    cursor = connection.cursor()
    try:
        # Without parameters no driver looks for places to put them in.
        cursor.execute(statement)
        return int(cursor.rowcount or 0)
    finally:
        cursor.close()


def mysql(engine: str, port: int) -> Server:
    """MariaDB or MySQL. What is read comes as the text that the server sends."""

    def opened() -> Any:
        return pymysql.connect(
            host="127.0.0.1", port=port, user="penstock", password="penstock", database="demo", charset="utf8mb4",
            autocommit=True, connect_timeout=5, read_timeout=20, write_timeout=20, conv={},
            init_command="SET time_zone = '+00:00', innodb_lock_wait_timeout = 1, lock_wait_timeout = 1",
        )  # fmt: skip

    return Server(engine, f"mysql://penstock:penstock@127.0.0.1:{port}/demo", opened)


def postgres(url: str) -> Server:
    def opened() -> Any:
        return psycopg.connect(
            url, autocommit=True, connect_timeout=5,
            options="-c timezone=UTC -c lock_timeout=1000 -c statement_timeout=20000 -c extra_float_digits=1",
        )  # fmt: skip

    return Server("postgres", url, opened)


def sqlite(file: Path) -> Server:
    def opened() -> Any:
        connection = sqlite3.connect(file, timeout=5, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    with suppress(sqlite3.Error), closing(opened()) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return Server("sqlite", f"sqlite:///{file}", opened)


def begin(server: Server, connection: Any, isolation: str) -> None:
    if server.engine == "sqlite":
        execute(connection, "BEGIN IMMEDIATE")
    elif server.engine == "postgres":
        execute(connection, f"BEGIN ISOLATION LEVEL {isolation}")
    else:
        execute(connection, f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        execute(connection, "BEGIN")


def settle(server: Server) -> None:
    """Commit what was prepared in two phases and left."""
    if server.engine == "postgres":
        for (name,) in server.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            server.run(f"COMMIT PREPARED '{name}'")
    if server.engine == "mariadb":
        for row in server.rows("XA RECOVER"):
            server.run(f"XA COMMIT '{_text(row[3])}'")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
