"""What a row looks like in the topic, and what each engine tells of open transactions: on the real servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pymysql
import pytest
from sqlalchemy import make_url

from penstock.capture.output.encode import EncodingError, encode
from penstock.capture.output.page_records import records
from penstock.capture.polling.keyset_queries import PageQueries
from penstock.capture.source.base import SourceDatabase, SourceError
from penstock.capture.source.mysql import MySQL
from penstock.capture.source.postgres import PostgreSQL
from penstock.capture.source.sqlite import SQLite
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.model.capture import Capture, parse
from tests.support.captures import connect
from tests.support.postgres import Postgres

DELAY = timedelta(seconds=5)


@pytest.fixture
def mysql(mariadb: MariaDB) -> Iterator[MySQL]:
    made = MySQL(make_url(mariadb.url_of("demo")), DELAY)
    yield made
    made.close()


@pytest.fixture
def pg(postgres: Postgres) -> Iterator[PostgreSQL]:
    made = PostgreSQL(make_url(postgres.url).set(drivername="postgresql+psycopg"), DELAY)
    yield made
    made.close()


def capture(dialect: str, columns: str = "*", table: str = "types") -> Capture:
    text = f"CAPTURE INTO t FROM {dialect} demo KEY (id) CURSOR id AS SELECT {columns} FROM {table}"
    return parse(text, Path("t.sql"))


def rows(database: SourceDatabase, declared: Capture) -> list[dict[str, Any]]:
    page = database.page(PageQueries(declared).by_key(None, 100))
    return [orjson.loads(row) for row in encode(page.names, page.rows)] if page.rows else []


def in_mysql(mariadb: MariaDB) -> pymysql.Connection[Any]:
    return connect(mariadb, autocommit=True)


# Column type, literal, what is in the record.
MYSQL = [
    ("BIGINT UNSIGNED", "18446744073709551615", 18446744073709551615),
    ("BIGINT", "-9223372036854775808", -9223372036854775808),
    ("TINYINT(1)", "TRUE", 1),
    ("DECIMAL(65, 30)", "-12345678901234567890123456789012345.123456789012345678901234567890",
     "-12345678901234567890123456789012345.123456789012345678901234567890"),
    ("DECIMAL(10, 2)", "12.3", "12.30"),
    ("DOUBLE", "1e-300", 1e-300),
    ("DOUBLE", "0.1", 0.1),
    ("VARCHAR(100) CHARACTER SET utf8mb4", "'grün 🐟 \\\\ '' \" : %'", "grün 🐟 \\ ' \" : %"),
    ("CHAR(5) CHARACTER SET latin1", "'é'", "é"),
    ("DATE", "'0001-01-01'", "0001-01-01"),
    ("DATETIME(6)", "'9999-12-31 23:59:59.999999'", "9999-12-31T23:59:59.999999"),
    ("DATETIME", "'2026-03-29 02:30:00'", "2026-03-29T02:30:00.000000"),
    ("TIMESTAMP(3) NULL", "'1970-01-01 00:00:01.5'", "1970-01-01T00:00:01.500000"),
    ("TIME(6)", "'-838:59:59'", "-838:59:59.000000"),
    ("TIME(2)", "'01:02:03.45'", "01:02:03.450000"),
    ("TIME(6)", "'838:59:59.999999'", "838:59:59.999999"),
    ("DATE", "'0000-00-00'", "0000-00-00"),
    ("DATE", "'2026-00-15'", "2026-00-15"),
    ("DATETIME(6)", "'0000-00-00'", "0000-00-00 00:00:00.000000"),
    ("YEAR", "2026", 2026),
    ("VARBINARY(10)", "x'00ff27'", "AP8n"),
    ("BLOB", "x'8081'", "gIE="),
    ("BIT(9)", "b'100000001'", "AQE="),
    ("JSON", "'{\"a\": 1.0, \"b\": [12345678901234567890.1]}'", '{"a": 1.0, "b": [12345678901234567890.1]}'),
    ("ENUM('x', 'y')", "'y'", "y"),
    ("SET('x', 'y')", "'x,y'", "x,y"),
    ("UUID", "'00000000-0000-0000-0000-0000000000ff'", "00000000-0000-0000-0000-0000000000ff"),
    ("INT NULL", "NULL", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "literal", "wanted"), MYSQL)
def test_types_of_mariadb(mariadb: MariaDB, mysql: MySQL, kind: str, literal: str, wanted: Any) -> None:
    with in_mysql(mariadb).cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute("DROP TABLE IF EXISTS types")
        cursor.execute(f"CREATE TABLE types (id INT PRIMARY KEY, x {kind})")
        cursor.execute(f"INSERT INTO types VALUES (1, {literal})")
    assert rows(mysql, capture("mysql")) == [{"id": 1, "x": wanted}]


def test_a_float_of_mariadb_is_refused_and_kept_by_a_cast(mariadb: MariaDB, mysql: MySQL) -> None:
    with in_mysql(mariadb).cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS types")
        cursor.execute("CREATE TABLE types (id INT PRIMARY KEY, x FLOAT)")
        cursor.execute("INSERT INTO types VALUES (1, 16777217), (2, 0.1)")
    with pytest.raises(SourceError, match=r"FLOAT with six digits.*got: x.*CAST\(x AS DOUBLE\) AS x"):
        rows(mysql, capture("mysql"))
    found = rows(mysql, capture("mysql", "id, CAST(x AS DOUBLE) AS x"))
    assert [row["x"] for row in found] == [16777216.0, 0.10000000149011612]


POSTGRES = [
    ("bigint", "-9223372036854775808", -9223372036854775808),
    ("boolean", "true", True),
    ("numeric", "123456789012345678901234567890.10", "123456789012345678901234567890.10"),
    ("numeric", "'NaN'", "NaN"),
    ("real", "0.1", 0.1),
    ("double precision", "'-Infinity'", "-Infinity"),
    ("text", "'grün 🐟 : %'", "grün 🐟 : %"),
    ("date", "'2026-02-28'", "2026-02-28"),
    ("timestamp", "'2026-02-28 23:59:59.5'", "2026-02-28T23:59:59.500000"),
    ("timestamptz", "'2026-03-01 01:00:00+02'", "2026-02-28T23:00:00.000000Z"),
    ("time", "'24:00:00'::interval::time", "00:00:00.000000"),
    ("time", "'24:00:00'", "24:00:00"),
    ("time[]", "'{24:00:00,01:00}'", ["24:00:00", "01:00:00.000000"]),
    ("timetz", "'23:59:59.5-02'", "23:59:59.5-02"),
    ("timetz", "'24:00:00+02'", "24:00:00+02"),
    ("numeric", "'-Infinity'", "-Infinity"),
    ("interval", "'-178000000 years'", "-178000000 years"),
    ("interval", "'1 mon 2 days 03:00:00'", "1 mon 2 days 03:00:00"),
    ("bytea", "'\\x00ff'", "AP8="),
    ("json", "'{\"a\": 1.0, \"b\":  12345678901234567890.1}'", '{"a": 1.0, "b":  12345678901234567890.1}'),
    ("jsonb", "'[1.10]'", "[1.10]"),
    ("uuid", "'00000000-0000-0000-0000-0000000000ff'", "00000000-0000-0000-0000-0000000000ff"),
    ("int[]", "'{1,NULL,3}'", [1, None, 3]),
    ("numeric[]", "'{1.10}'", ["1.10"]),
    ("inet", "'10.0.0.1/8'", "10.0.0.1/8"),
    ("bit(3)", "B'101'", "101"),
    ("int", "NULL", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "literal", "wanted"), POSTGRES)
def test_types_of_postgresql(postgres: Postgres, pg: PostgreSQL, kind: str, literal: str, wanted: Any) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("DROP TABLE IF EXISTS types")
        c.execute(f"CREATE TABLE types (id int PRIMARY KEY, x {kind})")
        c.execute(f"INSERT INTO types VALUES (1, {literal})")
    assert rows(pg, capture("postgres")) == [{"id": 1, "x": wanted}]


def test_what_has_no_form_names_its_column_and_a_cast_that_keeps_it(postgres: Postgres, pg: PostgreSQL) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("DROP TABLE IF EXISTS types")
        c.execute("CREATE TABLE types (id int PRIMARY KEY, x int4range)")
        c.execute("INSERT INTO types VALUES (1, '[1,5)')")
    page = pg.page(PageQueries(capture("postgres")).by_key(None, 1))
    with pytest.raises(EncodingError, match=r"column x has a type that cannot be captured.*CAST\(x AS text\) AS x"):
        records(capture("postgres"), page)
    assert rows(pg, capture("postgres", "id, CAST(x AS text) AS x")) == [{"id": 1, "x": "[1,5)"}]


@pytest.mark.parametrize(
    ("kind", "beyond", "plain"),
    [
        ("timestamptz", "infinity", "2026-02-28T23:59:59.000000Z"),
        ("timestamptz", "0044-03-15 12:00:00+00 BC", "2026-02-28T23:59:59.000000Z"),
        ("timestamp", "-infinity", "2026-02-28T23:59:59.000000"),
        ("date", "12026-01-01", "2026-02-28"),
        ("date[]", "infinity", ["2026-02-28"]),
    ],
)
def test_a_time_beyond_pythons_calendar_stops_nobody(
    postgres: Postgres, pg: PostgreSQL, kind: str, beyond: str, plain: Any
) -> None:
    given = ("{%s}" if "[" in kind else "%s") % beyond
    written = ("{%s}" if "[" in kind else "%s") % "2026-02-28 23:59:59+00"
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("DROP TABLE IF EXISTS types")
        c.execute(f"CREATE TABLE types (id int PRIMARY KEY, x {kind})")
        c.execute("INSERT INTO types VALUES (1, %s), (2, %s), (3, NULL)", (given, written))
    found = {row["id"]: row["x"] for row in rows(pg, capture("postgres"))}
    assert found == {1: [beyond] if "[" in kind else beyond, 2: plain, 3: None}


# Open transactions


def test_mariadb_tells_since_when_a_transaction_is_open(mariadb: MariaDB, mysql: MySQL) -> None:
    with in_mysql(mariadb).cursor() as cursor:
        cursor.execute("CREATE OR REPLACE TABLE open (id INT PRIMARY KEY)")
    assert mysql.visibility_problem == ""
    assert abs(mysql.clock() - time.time()) < 2
    # What an earlier test left in the server may take a moment to end.
    time.sleep(0.4)
    assert mysql.transactions().oldest is None
    connection = in_mysql(mariadb)
    with connection.cursor() as cursor:
        before = mysql.clock()
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO open VALUES (1)")
        time.sleep(1.5)
        oldest = mysql.transactions().oldest
        assert oldest is not None
        assert before - 1 <= oldest <= before + 0.5
        cursor.execute("ROLLBACK")
    time.sleep(0.4)
    assert mysql.transactions().oldest is None
    connection.close()


def test_a_statement_that_runs_counts_from_its_beginning(mariadb: MariaDB, mysql: MySQL) -> None:
    """Its rows carry the time at which it began, and InnoDB knows of it only when it touches the first of them."""
    before = mysql.clock()

    def run() -> None:
        connection = in_mysql(mariadb)
        with connection.cursor() as cursor:
            cursor.execute("SELECT SLEEP(2)")
        connection.close()

    sleeper = threading.Thread(target=run)
    sleeper.start()
    time.sleep(1.2)
    oldest = mysql.transactions().oldest
    sleeper.join()
    assert oldest is not None
    assert before - 2 <= oldest <= before + 0.5


def test_without_the_privilege_there_is_a_delay(tmp_path: Path) -> None:
    # The user may not make others, so this server has one without PROCESS from its start.
    class Strict(MariaDB):
        SETUP = MariaDB.SETUP.replace("GRANT PROCESS", "REVOKE PROCESS")

    with Strict(home=tmp_path, port=free_port()) as strict:
        database = MySQL(make_url(strict.url_of("demo")), DELAY)
        assert "the login lacks the privilege PROCESS" in database.visibility_problem
        found = database.transactions()
        assert found.oldest is not None
        assert 4.9 < found.now - found.oldest < 5.1
        database.close()


def test_a_server_in_another_time_zone_tells_the_same(tmp_path: Path) -> None:
    """InnoDB says when a transaction began in the local time of its machine."""

    class Away(MariaDB):
        def environment(self) -> dict[str, str]:
            return {**super().environment(), "TZ": "Asia/Kolkata"}

    with Away(home=tmp_path, port=free_port()) as away:
        connection = in_mysql(away)
        database = MySQL(make_url(away.url_of("demo")), DELAY)
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@system_time_zone")
            assert cursor.fetchone() == ("IST",)
            cursor.execute("CREATE TABLE open (id INT PRIMARY KEY)")
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO open VALUES (1)")
            found = database.transactions()
        assert found.oldest is not None
        assert -0.5 < found.now - found.oldest < 3
        database.close()
        connection.close()


def test_postgresql_tells_since_when_a_transaction_is_open(postgres: Postgres, pg: PostgreSQL) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("DROP TABLE IF EXISTS open")
        c.execute("CREATE TABLE open (id int)")
    assert pg.visibility_problem == ""
    assert pg.transactions().oldest is None
    with psycopg.connect(postgres.url) as c:
        before = pg.clock()
        c.execute("INSERT INTO open VALUES (1)")
        time.sleep(0.4)
        oldest = pg.transactions().oldest
        assert oldest is not None
        assert abs(oldest - before) < 0.2
        c.execute("PREPARE TRANSACTION 'two phases'")
    time.sleep(0.4)
    assert pg.transactions().oldest == oldest, "it is prepared, and as old as before"
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("ROLLBACK PREPARED 'two phases'")
    time.sleep(0.4)
    assert pg.transactions().oldest is None


def test_a_prepared_transaction_is_as_old_as_any_that_may_have_become_it(postgres: Postgres, pg: PostgreSQL) -> None:
    """It has a number, which its session did not have yet when it was last seen. To the first look it is as old as it
    says: no poll has ended before that."""
    with psycopg.connect(postgres.url) as c:
        c.execute("CREATE TABLE IF NOT EXISTS open (id int)")
        c.commit()
        before = pg.clock()
        c.execute("SELECT 1")
        pg.transactions(before)
        c.execute("INSERT INTO open VALUES (1)")
        c.execute("PREPARE TRANSACTION 'unseen'")
        prepared = pg.clock()
    found = pg.transactions(prepared)
    # Another delay is another look.
    late = PostgreSQL(make_url(postgres.url).set(drivername="postgresql+psycopg"), timedelta(seconds=7))
    first = late.transactions()
    late.close()
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("ROLLBACK PREPARED 'unseen'")
    assert found.oldest is not None
    assert first.oldest is not None
    assert before <= found.oldest < first.oldest <= prepared
    assert pg.transactions(pg.clock()).oldest is None


def test_mariadbs_list_of_transactions_is_seen_to_be_old(mariadb: MariaDB, mysql: MySQL) -> None:
    """Somebody who asks for it without a pause keeps everybody's at what the first of his questions saw."""
    over = threading.Event()

    def ask() -> None:
        connection = in_mysql(mariadb)
        with connection.cursor() as cursor:
            while not over.is_set():
                cursor.execute("SELECT COUNT(*) FROM information_schema.innodb_trx")
        connection.close()

    with in_mysql(mariadb).cursor() as cursor:
        cursor.execute("CREATE OR REPLACE TABLE open (id INT PRIMARY KEY)")
    time.sleep(0.4)
    before = mysql.transactions()
    asker = threading.Thread(target=ask)
    asker.start()
    time.sleep(2.5)
    connection = in_mysql(mariadb)
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO open VALUES (1)")
        time.sleep(0.4)
        found = mysql.transactions()
    over.set()
    asker.join()
    connection.close()
    assert found.oldest is not None or found.now == before.now


def test_a_login_that_cannot_see_others_has_a_delay(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("DROP ROLE IF EXISTS plain")
        c.execute("CREATE ROLE plain LOGIN")
    url = make_url(postgres.url).set(drivername="postgresql+psycopg", username="plain")
    database = PostgreSQL(url, DELAY)
    assert "no rights of pg_read_all_stats" in database.visibility_problem
    found = database.transactions()
    assert found.oldest == found.now - 5
    database.close()


def test_sqlite_has_a_delay(tmp_path: Path) -> None:
    database = SQLite(make_url(f"sqlite:///{tmp_path / 'x.db'}"), DELAY)
    assert database.visibility_problem == "SQLite does not show them"
    found = database.transactions()
    assert found.oldest == found.now - 5
    assert abs(found.now - time.time()) < 1
    database.close()
