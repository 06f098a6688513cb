"""What the author wrote is what the database is asked: hundreds of expressions, bare and as a capture sends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url

from penstock.capture.polling.keyset_queries import PageQueries
from penstock.capture.source.base import SourceDatabase, SourceError
from penstock.capture.source.mysql import MySQL
from penstock.capture.source.postgres import PostgreSQL
from penstock.capture.source.sqlite import SQLite
from penstock.model.capture import parse

EXPRESSIONS = Path(__file__).parents[2] / "expressions"
NUMBERS = {"mysql": "DOUBLE", "postgres": "double precision", "sqlite": "REAL"}
TIMES = {"mysql": "DATETIME(6)", "postgres": "timestamp", "sqlite": "TEXT"}
BYTES = {"mysql": "VARBINARY(9)", "postgres": "bytea", "sqlite": "BLOB"}
TABLE = """CREATE TABLE expressions (id INT PRIMARY KEY, changed INT, s VARCHAR(20), u VARCHAR(20), n INT,
m DECIMAL(9, 3), f {number}, d {date}, t {time}, j VARCHAR(99), b {bytes}, z VARCHAR(9))"""
ROWS = [
    (1, 1, "abc", "grün 🐟", 1, "12.345", 0.1, "2026-02-03", "2026-02-03 04:05:06", '{"a": 1, "b": [2], "c": "x"}'),
    (2, 2, "ABBA", "", 7, "-0.500", -1e300, "2024-02-29", "2024-02-29 23:59:59", '{"a": null}'),
    (3, 3, "", "x", 0, "0", 0.0, "1999-12-31", "1999-12-31 00:00:00.123456", "{}"),
]


@pytest.fixture(params=["mariadb", "mysql_server", "postgres", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceDatabase]:
    if request.param in ("mariadb", "mysql_server"):
        url = request.getfixturevalue(request.param).url_of("demo")
        made: SourceDatabase = MySQL(make_url(url), timedelta(seconds=5))
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres").url
        made = PostgreSQL(make_url(url).set(drivername="postgresql+psycopg"), timedelta(seconds=5))
    else:
        made = SQLite(make_url(f"sqlite:///{tmp_path / 'x.db'}"), timedelta(seconds=5))
    dialect = dialect_of(made)
    with made._connected() as c:
        date = "TEXT" if dialect == "sqlite" else "DATE"
        kinds = {"number": NUMBERS[dialect], "date": date, "time": TIMES[dialect], "bytes": BYTES[dialect]}
        for table in ("expressions", "other"):
            c.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
        c.exec_driver_sql(TABLE.format(**kinds))
        c.exec_driver_sql("CREATE TABLE other (id INT PRIMARY KEY, title VARCHAR(9))")
        c.exec_driver_sql("INSERT INTO other VALUES (1, 'one'), (2, NULL)")
        values = ("?, " * 10 if dialect == "sqlite" else "%s, " * 10) + "NULL, NULL"
        for row in ROWS:
            c.exec_driver_sql(f"INSERT INTO expressions VALUES ({values})", row)
    yield made
    made.close()


def dialect_of(database: SourceDatabase) -> str:
    return {"MySQL": "mysql", "PostgreSQL": "postgres", "SQLite": "sqlite"}[type(database).__name__]


def known(database: SourceDatabase, expressions: list[str]) -> list[str]:
    """Those that the server takes: the file of MariaDB and MySQL has some that only one of them has."""
    found = []
    for expression in expressions:
        with suppress(SourceError), database._connected() as c:
            c.exec_driver_sql(f"SELECT {expression.replace('%', '%%')} FROM expressions", ()).fetchall()
            found.append(expression)
    return found


def test_every_expression_is_sent_as_it_is_written(database: SourceDatabase, request: pytest.FixtureRequest) -> None:
    dialect = dialect_of(database)
    files = [EXPRESSIONS / f"{name}.txt" for name in ("everywhere", dialect)]
    given = [line for file in files for line in file.read_text().splitlines()]
    on_mysql = "mysql_server" in request.node.name
    if on_mysql:
        given = known(database, given)
    assert len(given) > 150
    columns = "".join(f",\n{expression}\nAS e{i}" for i, expression in enumerate(given))
    select = f"SELECT id, changed{columns}\nFROM expressions"
    text = f"CAPTURE INTO t FROM {dialect} x KEY id CURSOR changed DELETED WHEN (e0) AS {select}; -- the end"
    capture = parse(text, Path("t.sql"))
    with database._connected() as c:
        cursor = c.connection.cursor()
        cursor.execute(f"{select} ORDER BY id")
        wanted = [tuple(row) for row in cursor.fetchall()]
        kinds = list(database.columns(cursor))
        cursor.close()
    assert len(wanted) == len(ROWS)
    names = [name for name, _ in kinds]
    pages = PageQueries(capture)
    for query in (pages.by_key(None, 9), pages.since(0, None, 9), pages.rows_with_keys([(1,), (2,), (3,)])):
        page = database.page(query)
        if on_mysql:
            # To it an integer of a derived table is wide where it needs to be, and so it is in every page.
            on_mysql, kinds = False, list(page.columns[:-1])
        # Another type would ask for a reconcile.
        assert [(a, b) for a, b in zip(kinds, page.columns, strict=False) if a != b] == []
        assert page.names[:-1] == names
        differing = [
            (given[at - 2], bare[at], sent[at])
            for bare, sent in zip(wanted, page.rows, strict=True)
            for at in range(len(names))
            if repr(bare[at]) != repr(sent[at])
        ]
        assert differing == []
