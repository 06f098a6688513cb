"""What a server's own settings do to a capture: on the real servers."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pymysql
import pytest
from sqlalchemy import make_url

from penstock.capture.output.encode import encode
from penstock.capture.polling.keyset_queries import PageQueries, SourceQuery
from penstock.capture.source.base import READ_TIMEOUT, SourceError
from penstock.capture.source.mysql import MySQL
from penstock.capture.source.postgres import PostgreSQL
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.model.capture import Capture, parse
from tests.support.captures import connect, opened
from tests.support.postgres import Postgres
from tests.support.wait import wait_until

DELAY = timedelta(seconds=5)


def capture(dialect: str, columns: str) -> Capture:
    text = f"CAPTURE INTO t FROM {dialect} demo KEY (id) CURSOR id AS SELECT {columns} FROM settings"
    return parse(text, Path("t.sql"))


def rows(database: MySQL | PostgreSQL, columns: str = "*") -> list[dict[str, Any]]:
    dialect = "mysql" if isinstance(database, MySQL) else "postgres"
    page = database.page(PageQueries(capture(dialect, columns)).by_key(None, 100))
    return [orjson.loads(row) for row in encode(page.names, page.rows)] if page.rows else []


class Odd(MariaDB):
    """A server whose settings are others than its vendor's."""

    SETUP = MariaDB.SETUP + "SET GLOBAL system_versioning_asof = '2020-01-01 00:00:00';\n"

    def command(self) -> list[str]:
        return [
            *super().command(),
            "--transaction-isolation=READ-UNCOMMITTED", "--sql-mode=ANSI,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES",
            "--group-concat-max-len=4", "--div-precision-increment=1", "--lc-time-names=de_DE",
            "--default-time-zone=+05:30", "--default-week-format=3", "--event-scheduler=ON",
            "--default-regex-flags=EXTENDED", "--completion-type=CHAIN", "--block-encryption-mode=aes-128-cbc",
            "--lock-wait-timeout=1", "--idle-transaction-timeout=1",
            "--init-connect=SET sql_select_limit = 1, NAMES latin1",
        ]  # fmt: skip


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Odd]:
    with Odd(home=tmp_path_factory.mktemp("odd"), port=free_port()) as made:
        yield made


def in_odd(odd: Odd, *statements: str) -> pymysql.Connection[Any]:
    """A connection on which these were executed."""
    connection = connect(odd, autocommit=True, charset="utf8mb4", init_command="SET sql_select_limit = DEFAULT")
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    return connection


def test_what_is_not_committed_is_not_read(odd: Odd) -> None:
    made = in_odd(
        odd, "CREATE OR REPLACE TABLE settings (id INT PRIMARY KEY)", "BEGIN", "INSERT INTO settings VALUES (1)"
    )
    with connect(odd).cursor() as cursor:
        cursor.execute("SELECT id FROM settings")
        assert cursor.fetchall() == ((1,),), "the server lets others see it"
    with opened(odd) as database:
        assert rows(database) == []
    made.close()


def test_a_versioned_table_is_read_as_it_is_now(odd: Odd) -> None:
    table = "CREATE OR REPLACE TABLE settings (id INT PRIMARY KEY) WITH SYSTEM VERSIONING"
    made = in_odd(odd, table, "INSERT INTO settings VALUES (1)")
    with made.cursor() as cursor:
        cursor.execute("SELECT id FROM settings")
        assert cursor.fetchall() == (), "the server shows what was there in 2020"
    with opened(odd) as database:
        assert rows(database) == [{"id": 1}]
    in_odd(odd, "DROP TABLE settings").close()
    made.close()


def test_a_look_leaves_no_transaction_open(odd: Odd) -> None:
    made = in_odd(odd, "CREATE OR REPLACE TABLE settings (id INT PRIMARY KEY)")
    with opened(odd) as database:
        database.transactions()
        assert rows(database) == []
        with made.cursor() as cursor:
            cursor.execute("INSERT INTO settings VALUES (1)")
        assert rows(database) == [{"id": 1}]
    made.close()


def test_values_are_the_same_whatever_the_settings(odd: Odd, mariadb: MariaDB) -> None:
    table = (
        "CREATE OR REPLACE TABLE settings (id INT PRIMARY KEY, c CHAR(5), t VARCHAR(9), at TIMESTAMP NULL)",
        "SET time_zone = '+00:00'",
        "INSERT INTO settings VALUES (1, 'ab', 'grün 🐟', '2026-01-02 03:04:05'), (2, 'x', 'y', NULL)",
        "INSERT INTO settings VALUES (3, 'z', '', NULL)",
        "CREATE OR REPLACE VIEW concatenated AS SELECT GROUP_CONCAT(t ORDER BY id) AS said FROM settings",
    )
    selected = """id, c, t, at, 1 / 3 AS third, DATE_FORMAT(at, '%M') AS month, WEEK(at) AS week, "text" AS quoted,
        (SELECT said FROM concatenated) AS whole, 'a b' REGEXP 'a b' AS matches"""
    with opened(odd) as one, opened(mariadb) as other:
        in_odd(odd, *table).close()
        plain = connect(mariadb, autocommit=True)
        with plain.cursor() as cursor:
            for statement in table:
                cursor.execute(statement)
        plain.close()
        found = rows(one, selected)
        assert found == rows(other, selected)
        assert len(found) == 3
        assert found[0] == {
            "id": 1, "c": "ab", "t": "grün 🐟", "at": "2026-01-02T03:04:05.000000", "third": "0.3333",
            "month": "January", "week": 0, "quoted": "text", "whole": "grün 🐟,y,", "matches": 1,
        }  # fmt: skip
        # Without a LIMIT of its own.
        keys = [(1,), (2,), (3,)]
        assert len(one.page(PageQueries(capture("mysql", "*")).rows_with_keys(keys)).rows) == 3


def test_statements_of_the_event_scheduler_count(odd: Odd) -> None:
    with opened(odd) as database:
        before = database.clock()
        made = in_odd(odd, "DROP EVENT IF EXISTS sleeps", "CREATE EVENT sleeps ON SCHEDULE AT NOW() DO DO SLEEP(3)")
        wait_until(lambda: database.transactions().oldest is not None, every=0.1, what="the event is seen")
        oldest = database.transactions().oldest
        made.close()
        assert oldest is not None
        assert before - 2.5 <= oldest <= before + 1.5


class Bulk(pymysql.Connection):
    """A client of MariaDB's bulk protocol: one statement for many rows of one number each."""

    _next_seq_id: int

    def write_packet(self, payload: bytes) -> None:
        if self._next_seq_id == 1 and len(payload) > 32:
            # The greeting: a client of MariaDB, not of MySQL, that takes part in bulk operations.
            payload = bytes([payload[0] & 0xFE]) + payload[1:28] + struct.pack("<I", 1 << 2) + payload[32:]
        super().write_packet(payload)

    def executed(self, statement: str, numbers: Sequence[int]) -> None:
        client: Any = self
        client._execute_command(0x16, statement)
        number = struct.unpack_from("<I", client._read_packet().get_all_data(), 1)[0]
        for _ in range(2):  # the parameter, and the end of the list
            client._read_packet()
        given = b"".join(struct.pack("<Bi", 0, each) for each in numbers)
        client._execute_command(0xFA, struct.pack("<IHBB", number, 128, 3, 0) + given)
        client._read_packet()


def test_statements_of_the_bulk_protocol_count_as_open_transactions(mariadb: MariaDB) -> None:
    with opened(mariadb, timedelta(seconds=9)) as database:
        client = Bulk(
            host="127.0.0.1", port=mariadb.port, user="penstock", password="penstock", database="demo", autocommit=True
        )
        with client.cursor() as cursor:
            cursor.execute("CREATE OR REPLACE TABLE settings (id INT PRIMARY KEY)")
        before = database.clock()
        statement = "INSERT INTO settings VALUES (? + SLEEP(1.2))"
        thread = threading.Thread(target=client.executed, args=(statement, (1, 2)))
        thread.start()
        running = "SELECT COUNT(*) FROM information_schema.processlist WHERE COMMAND = 'Bulk_execute'"
        with connect(mariadb, autocommit=True).cursor() as cursor:
            wait_until(lambda: cursor.execute(running) and cursor.fetchone() == (1,), every=0.05, what="it runs")
        oldest = database.transactions(before).oldest
        thread.join()
        assert oldest is not None
        assert before - 2.5 <= oldest <= before + 0.5
        assert rows(database) == [{"id": 1}, {"id": 2}]
        client.close()


def test_an_engine_whose_transactions_cannot_be_seen_has_a_delay(
    mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MySQL, "OTHER_ENGINES", MySQL.OTHER_ENGINES.replace("'SEQUENCE'", "'ROCKSDB'"))
    with opened(mariadb, timedelta(seconds=6)) as database:
        assert "another engine with transactions" in database.visibility_problem
        found = database.transactions()
        assert found.oldest == found.now - 6


SETTINGS = {
    "intervalstyle": "iso_8601", "datestyle": "German, DMY", "bytea_output": "escape", "extra_float_digits": "-5",
    "client_encoding": "LATIN1", "timezone": "Asia/Kolkata", "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on", "standard_conforming_strings": "off", "search_path": "pg_catalog",
    "quote_all_identifiers": "on", "gin_fuzzy_search_limit": "1", "xmloption": "document",
}  # fmt: skip


class Replica(MariaDB):
    SETUP = MariaDB.SETUP + (
        "GRANT REPLICATION SLAVE ADMIN ON *.* TO 'penstock'@'127.0.0.1';\n"
        "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 9, MASTER_USER = 'nobody';\n"
    )


def test_a_replica_has_a_delay_while_it_is_stopped_too(tmp_path: Path) -> None:
    with Replica(tmp_path, free_port()) as server, opened(server) as database:
        assert database.visibility_problem == ""
        with connect(server, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("START SLAVE")
            wait_until(lambda: database.visibility_problem != "", what="it replays")
            cursor.execute("STOP SLAVE")
            cursor.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE USER = 'system user'")
            assert cursor.fetchone() == (0,)
        assert "replica" in database.visibility_problem
        moment = database.transactions(database.clock())
        assert moment.oldest is not None
        assert moment.oldest <= moment.now - 5


def test_values_of_postgresql_are_the_same_whatever_the_settings(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("DROP ROLE IF EXISTS odd")
        c.execute("CREATE ROLE odd LOGIN SUPERUSER")
        for name, value in SETTINGS.items():
            c.execute(f"ALTER ROLE odd SET {name} = '{value}'")
        c.execute("DROP TABLE IF EXISTS settings")
        c.execute(
            "CREATE TABLE settings (id int PRIMARY KEY, i interval, d date, b bytea, f float8, t text, z timestamptz)"
        )
        c.execute(
            "INSERT INTO settings VALUES (1, '1 mon 2 days', '2026-02-28', '\\x00ff', 0.1::float8 + 0.2, 'grün 🐟',"
            " '2026-03-01 01:00:00+02')"
        )
    found = []
    for login in ("postgres", "odd"):
        url = make_url(postgres.url).set(drivername="postgresql+psycopg", username=login)
        database = PostgreSQL(url, DELAY)
        found.append(rows(database, r"*, d::text AS said, b::text AS bytes, 'a\b' AS escaped, date'01/02/2026' AS x"))
        database.close()
    assert found[0] == found[1]
    [row] = found[0]
    assert (row["i"], row["d"], row["f"], row["t"]) == ("1 mon 2 days", "2026-02-28", 0.30000000000000004, "grün 🐟")
    assert (row["z"], row["said"], row["bytes"]) == ("2026-02-28T23:00:00.000000Z", "2026-02-28", "\\x00ff")


def test_a_session_that_does_not_show_what_it_does_means_a_delay(postgres: Postgres) -> None:
    database = PostgreSQL(make_url(postgres.url).set(drivername="postgresql+psycopg"), DELAY)
    assert database.visibility_problem == ""
    with psycopg.connect(postgres.url) as c:
        c.execute("SET track_activities = off")
        found = database.transactions(database.clock())
        assert found.oldest is not None
        assert found.oldest <= found.now - 5
    wait_until(lambda: database.visibility_problem == "", what="it has ended")
    assert database.transactions(database.clock()).oldest is None
    database.close()


def test_a_query_that_takes_too_long_ends_at_the_server(mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(mariadb) as database:
        assert float(database.value(SourceQuery("SELECT @@max_statement_time", {}))) == READ_TIMEOUT
    monkeypatch.setitem(MySQL.VARIABLES, "max_statement_time", "1")
    with opened(mariadb) as database:
        with pytest.raises(SourceError, match="max_statement_time exceeded") as e:
            database.page(SourceQuery("SELECT SLEEP(30)", {}))
        assert e.value.timed_out
        query = "SELECT SUM(INFO LIKE '%SLEEP(30)') FROM information_schema.processlist"
        assert database.value(SourceQuery(query, {})) == 0


def test_a_query_of_postgresql_that_takes_too_long_is_known_as_such(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgreSQL, "SESSION", (*PostgreSQL.SESSION, "SET statement_timeout = 500"))
    database = PostgreSQL(make_url(postgres.url).set(drivername="postgresql+psycopg"), DELAY)
    with pytest.raises(SourceError, match="statement timeout") as e:
        database.page(SourceQuery("SELECT pg_sleep(30)", {}))
    assert e.value.timed_out
    database.close()
