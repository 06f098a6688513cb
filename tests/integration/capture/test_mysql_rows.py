"""Rows as they are taken out of the protocol are those of PyMySQL, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pymysql.cursors import SSCursor

from penstock.capture.output.encode import Unreadable
from penstock.capture.source.mysql import MySQL
from penstock.capture.source.mysql_rows import read_rows
from tests.support.captures import connect

# About each length from which on a value has more bytes of length, and rows that the protocol cuts into packets.
LENGTHS = (0, 1, 250, 251, 252, 65535, 65536, 2**24 - 1, 2**24, 2**24 + 5)
VALUES = (
    "NULL, 18446744073709551615, -9223372036854775808, CAST(-12.30 AS DECIMAL(65, 30)), 1.5e300, '', 'grün 🐟',"
    " x'00ff', b'101', CAST('2026-02-28 23:59:59.123456' AS DATETIME(6)), DATE '2026-02-28',"
    " CAST('-838:59:59' AS TIME), NULL"
)

MANY = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT"


@pytest.fixture(params=["mariadb", "mysql_server"])
def connection(request: pytest.FixtureRequest) -> Iterator[pymysql.Connection[Any]]:
    made = connect(request.getfixturevalue(request.param), **MySQL.OPTIONS["connect_args"])
    yield made
    made.close()


def both(connection: pymysql.Connection[Any], query: str) -> tuple[list[Any], list[Any], int]:
    """PyMySQL's rows, ours, and how heavy these are."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        theirs = list(cursor.fetchall())
    with connection.cursor(SSCursor) as cursor:
        cursor.execute(query)
        found = list(read_rows(cursor))
    return theirs, [row for row, _ in found], sum(weight for _, weight in found)


def test_rows_are_those_of_pymysql(connection: pymysql.Connection[Any]) -> None:
    rows = " UNION ALL ".join(f"SELECT REPEAT('\u00e9', {n // 2}), REPEAT('x', {n}), {n}" for n in LENGTHS[:7])
    for query in (f"SELECT {VALUES}", rows, "SELECT 1 FROM DUAL WHERE FALSE", "SELECT ''", "SELECT NULL"):
        theirs, ours, _ = both(connection, query)
        assert ours == theirs
        assert [[type(value) for value in row] for row in ours] == [[type(value) for value in row] for row in theirs]


@pytest.mark.parametrize("length", LENGTHS[7:])
def test_a_row_of_several_packets_is_one(connection: pymysql.Connection[Any], length: int) -> None:
    # What is longer than the server's own limit, which MySQL has at 64 MB and MariaDB at 16, it makes NULL.
    query = f"SELECT REPEAT('x', {length}), REPEAT('y', {2**23}), 1 UNION ALL SELECT 'x', 'y', 2"
    theirs, ours, weight = both(connection, query)
    assert ours == theirs
    assert weight > sum(len(value or "") for value in ours[0][:2]) >= 2**23


def test_rows_that_come_together_or_in_pieces_are_those_of_pymysql(connection: pymysql.Connection[Any]) -> None:
    """Of all lengths up to some buffers, with more packets than their numbers."""
    kinds = "REPEAT('x', (n.i * n.i * 7) % 400), n.i, IF(n.i % 7, NULL, 'é'), IF(n.i % 97, '', REPEAT('y', n.i * 40))"
    theirs, ours, _ = both(connection, f"{MANY} {kinds} FROM n JOIN (SELECT 1 UNION SELECT 2 UNION SELECT 3) AS m")
    assert len(ours) == 2700
    assert ours == theirs


def test_a_connection_that_ends_among_the_rows_is_told(request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("mariadb")
    connection, other = (connect(server, **MySQL.OPTIONS["connect_args"]) for _ in range(2))
    with connection.cursor(SSCursor) as cursor, other.cursor() as killer:
        cursor.execute(f"{MANY} n.i, REPEAT('x', 200) FROM n JOIN n AS m")
        rows = read_rows(cursor)
        next(rows)
        thread = connection.thread_id()  # type: ignore[no-untyped-call]
        killer.execute(f"KILL {thread}")
        with pytest.raises(pymysql.Error):
            list(rows)
    other.close()


def test_what_is_not_taken_is_not_left_behind(connection: pymysql.Connection[Any]) -> None:
    with connection.cursor(SSCursor) as cursor:
        cursor.execute(f"{MANY} i FROM n")
        assert next(read_rows(cursor)) == ((1,), 2)
    assert both(connection, "SELECT 7")[1] == [(7,)]


def test_an_error_among_the_rows_is_told(connection: pymysql.Connection[Any]) -> None:
    # The second row is only made when the first was sent.
    failing = (
        "SELECT i, (SELECT 1 FROM information_schema.tables WHERE i > 900) FROM"
        " (WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 950) SELECT i FROM n) AS m"
    )
    with pytest.raises(pymysql.Error, match="more than 1 row"):
        both(connection, failing)
    with connection.cursor(SSCursor) as cursor:
        cursor.execute(failing)
        rows = read_rows(cursor)
        assert next(rows)[0] == (1, None)
        with pytest.raises(pymysql.Error, match="more than 1 row"):
            list(rows)
    assert both(connection, "SELECT 7")[1] == [(7,)]


def test_a_text_that_cannot_be_read_breaks_no_row_and_no_connection(connection: pymysql.Connection[Any]) -> None:
    """MariaDB takes one half of a surrogate pair for a character, of which there is no UTF-8."""
    half = "CONVERT(_ucs2 x'D800' USING utf8mb4)"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT HEX({half})")
        if cursor.fetchone() != ("EDA080",):
            pytest.skip("this server does not")
    with connection.cursor(SSCursor) as streaming:
        streaming.execute(f"SELECT 1, 'a' UNION ALL SELECT 2, {half} UNION ALL SELECT 3, 'c'")
        found = [row for row, _ in read_rows(streaming)]
    assert found == [(1, "a"), (2, Unreadable(b"\xed\xa0\x80")), (3, "c")]
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
