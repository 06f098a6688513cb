"""What a session of a capture begins with, and which errors of a driver are about a value."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg
import pymysql
import pytest

from penstock.capture.source.mysql import MySQL
from penstock.capture.source.postgres import PostgreSQL


class Connection:
    """Remembers what is executed, and has the variables `sql_mode` and `time_zone` alone."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    def cursor(self) -> Connection:
        return self

    def execute(self, statement: str) -> None:
        self.executed.append(statement)

    def fetchall(self) -> list[tuple[str, str]]:
        return [("sql_mode", "ANSI"), ("time_zone", "SYSTEM")]

    def close(self) -> None:
        """Nothing is open."""


def test_what_a_server_lacks_is_not_set_and_no_limit_of_its_own_cuts_the_answer() -> None:
    connection = Connection()
    MySQL.connected(MySQL.__new__(MySQL), connection, None)
    first, second, *_, last = connection.executed
    assert first.startswith("SET sql_select_limit = 18446744073709551615")
    assert second == "COMMIT"
    assert last == "SET sql_mode = '', time_zone = '+00:00'"


@pytest.mark.parametrize(
    ("kind", "error", "refused"),
    [
        (MySQL, pymysql.err.OperationalError(1267, "Illegal mix of collations"), True),
        (MySQL, pymysql.err.OperationalError(2013, "Lost connection"), False),
        (MySQL, pymysql.err.ProgrammingError(1146, "Table doesn't exist"), False),
        (PostgreSQL, psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), True),
        (PostgreSQL, psycopg.errors.InvalidTextRepresentation("invalid input value for enum"), True),
        (PostgreSQL, psycopg.errors.QueryCanceled("statement timeout"), False),
        (PostgreSQL, psycopg.OperationalError("the connection is closed"), False),
    ],
)
def test_an_error_about_a_value_is_told_apart(kind: type[MySQL | PostgreSQL], error: Exception, refused: bool) -> None:
    database: Any = object.__new__(kind)
    assert kind.rejects_value(database, error) == refused


def test_a_number_that_mariadb_cannot_be_sent() -> None:
    database = MySQL.__new__(MySQL)
    given = (float("inf"), float("nan"), Decimal("Infinity"), Decimal("NaN"), 1, 1.5, Decimal("1.5"), "Infinity", b"x")
    assert [database.can_send(value) for value in given] == [False] * 4 + [True] * 5
