"""Captures of a real MySQL 9: what differs from MariaDB, and that the rest does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import make_url

from penstock.capture.output.encode import encode
from penstock.capture.polling.keyset_queries import PageQueries, SourceQuery
from penstock.capture.source.base import READ_TIMEOUT, SourceError, SourcePage
from penstock.capture.source.mysql import MySQL
from penstock.devstack.servers.kafka import Broker
from penstock.model.capture import parse
from tests.support.captures import Source, connect, polled, until
from tests.support.mysql import MySQL as Server

DELAY = timedelta(seconds=5)


@pytest.fixture
def mysql(mysql_server: Server) -> Iterator[MySQL]:
    made = MySQL(make_url(mysql_server.url_of("demo")), DELAY)
    yield made
    made.close()


@pytest.fixture
def source(
    mysql_server: Server, broker: Broker, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Source]:
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", mysql_server.url_of("demo"))
    made = Source(f"{request.node.name[:50]}_9", mysql_server, broker, home)
    yield made
    for poller in made.pollers:
        poller.close()
    for connection in made.connections:
        connection.close()


# Column type, literal, what is in the record.
TYPES = [
    ("BIGINT UNSIGNED", "18446744073709551615", 18446744073709551615),
    ("TINYINT(1)", "TRUE", 1),
    ("DECIMAL(65, 30)", "-12345678901234567890123456789012345.123456789012345678901234567890",
     "-12345678901234567890123456789012345.123456789012345678901234567890"),
    ("DOUBLE", "0.1", 0.1),
    ("VARCHAR(100)", "'grün 🐟 \\\\ '' \" : %'", "grün 🐟 \\ ' \" : %"),
    ("DATETIME(6)", "'9999-12-31 23:59:59.999999'", "9999-12-31T23:59:59.999999"),
    ("TIMESTAMP(3) NULL", "'1970-01-01 00:00:01.5'", "1970-01-01T00:00:01.500000"),
    ("TIME(6)", "'-838:59:59'", "-838:59:59.000000"),
    ("YEAR", "2026", 2026),
    ("VARBINARY(10)", "x'00ff27'", "AP8n"),
    ("BIT(9)", "b'100000001'", "AQE="),
    # MySQL keeps JSON in a form of its own, and shows that.
    ("JSON", "'{\"b\": 1.50,   \"a\": null}'", '{"a": null, "b": 1.5}'),
    ("ENUM('x', 'y')", "'y'", "y"),
    ("SET('x', 'y')", "'x,y'", "x,y"),
]  # fmt: skip


def test_types(mysql_server: Server, mysql: MySQL) -> None:
    """In one table, for each would take a second of its own."""
    columns = ", ".join(f"c{n} {kind}" for n, (kind, _, _) in enumerate(TYPES))
    with connect(mysql_server, autocommit=True).cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute("DROP TABLE IF EXISTS types")
        cursor.execute(f"CREATE TABLE types (id INT PRIMARY KEY, {columns})")
        cursor.execute(f"INSERT INTO types VALUES (1, {', '.join(literal for _, literal, _ in TYPES)})")
    declared = parse("CAPTURE INTO t FROM mysql demo KEY (id) CURSOR id AS SELECT * FROM types", Path("t.sql"))
    page = mysql.page(PageQueries(declared).by_key(None, 100))
    [row] = [orjson.loads(value) for value in encode(page.names, page.rows)]
    assert row == {"id": 1} | {f"c{n}": wanted for n, (_, _, wanted) in enumerate(TYPES)}


def test_a_query_that_takes_too_long_ends_at_the_server(mysql: MySQL, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mysql.value(SourceQuery("SELECT @@max_execution_time", {})) == READ_TIMEOUT * 1000
    mysql.close()
    monkeypatch.setitem(MySQL.VARIABLES, "max_execution_time", "500")
    tables = ", ".join(f"information_schema.columns AS {alias}" for alias in "abc")
    with pytest.raises(SourceError, match="maximum statement execution time exceeded") as e:
        mysql.page(SourceQuery(f"SELECT COUNT(*) FROM {tables}", {}))
    assert e.value.timed_out


def test_a_vector_is_refused_with_what_to_select(mysql_server: Server, mysql: MySQL) -> None:
    with connect(mysql_server, autocommit=True).cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS vectors")
        cursor.execute("CREATE TABLE vectors (id INT PRIMARY KEY, v VECTOR(2))")
        cursor.execute("INSERT INTO vectors VALUES (1, TO_VECTOR('[1,2]'))")
    declared = "CAPTURE INTO t FROM mysql demo KEY (id) CURSOR id AS SELECT {} FROM vectors"

    def page(columns: str) -> SourcePage:
        return mysql.page(PageQueries(parse(declared.format(columns), Path("t.sql"))).by_key(None, 100))

    with pytest.raises(SourceError, match=r"cannot be captured; got: v, of type VECTOR; hint: select (\S+ AS v)$") as e:
        page("*")
    found = page(f"id, {e.value.hint.removeprefix('select ')}")
    assert encode(found.names, found.rows) == [b'{"id":1,"v":"[1.00000e+00,2.00000e+00]"}']


def test_it_tells_since_when_a_transaction_is_open(mysql_server: Server, mysql: MySQL) -> None:
    with connect(mysql_server, autocommit=True).cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS open (id INT PRIMARY KEY)")
    assert mysql.visibility_problem == ""
    assert abs(mysql.clock() - time.time()) < 2
    connection = connect(mysql_server)
    with connection.cursor() as cursor:
        before = mysql.clock()
        cursor.execute("INSERT INTO open VALUES (1)")
        time.sleep(1.5)
        oldest = mysql.transactions().oldest
        assert oldest is not None
        assert before - 2 <= oldest <= before + 0.5
        connection.rollback()
    time.sleep(0.4)
    assert mysql.transactions().oldest is None
    connection.close()


def test_a_table_ends_in_its_topic(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b'), ('c')")
    poller = source.poller()
    until(poller, source.same, "the snapshot is in the topic")
    late = source.begun("begun first")
    source.sql(f"UPDATE {source.name} SET name = 'B' WHERE id = 2", f"UPDATE {source.name} SET gone = 1 WHERE id = 1")
    polled(poller, 20)
    late.commit()
    until(poller, source.same, "what committed late is in the topic")
    source.sql(f"DELETE FROM {source.name} WHERE id = 3")
    poller.compare("asked for")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert source.same()
    rows: list[tuple[Any, ...]] = source.rows(f"SELECT name FROM {source.name} WHERE gone = 0 ORDER BY id")
    assert rows == [("B",), ("begun first",)]
