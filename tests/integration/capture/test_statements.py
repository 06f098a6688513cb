"""The statement of a capture on real servers: what they tell of it, that its derived table costs nothing, what they
refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.capture import explain, factory
from penstock.capture.polling.keyset_queries import PageQueries
from penstock.capture.source.base import SourceError
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.model.capture import Capture, parse
from tests.support.captures import Source, connect, polled, until
from tests.support.postgres import Postgres

SETUP = """
CREATE TABLE st_a (id INT PRIMARY KEY, b INT, changed TIMESTAMP(6) NULL, low VARCHAR(9));
CREATE INDEX st_changed ON st_a (changed, id);
CREATE TABLE st_b (id INT PRIMARY KEY, title VARCHAR(9));
CREATE VIEW st_plain AS SELECT id, changed FROM st_a WHERE b > 0;
CREATE VIEW st_some AS SELECT id, changed FROM st_plain LIMIT 5;
CREATE VIEW st_fresh AS SELECT id, changed, NOW() AS seen FROM st_a;
"""
MYSQL = """
INSERT INTO st_a SELECT seq, seq % 9, TIMESTAMP('2026-01-01') + INTERVAL seq SECOND, 'x' FROM seq_1_to_5000;
INSERT INTO st_b SELECT seq - 1, 'x' FROM seq_1_to_9;
ALTER TABLE st_a ADD whole INT GENERATED ALWAYS AS (b * 2) VIRTUAL;
ANALYZE TABLE st_a, st_b;
"""
POSTGRES = """
INSERT INTO st_a SELECT s, s % 9, TIMESTAMP '2026-01-01' + s * INTERVAL '1 s', 'x' FROM generate_series(1, 5000) s;
INSERT INTO st_b SELECT s - 1, 'x' FROM generate_series(1, 9) s;
ALTER TABLE st_a ADD whole INT GENERATED ALWAYS AS (b * 2) STORED;
CREATE MATERIALIZED VIEW st_kept AS SELECT id, changed FROM st_a;
CREATE FUNCTION st_own(x INT) RETURNS INT LANGUAGE plpgsql AS 'BEGIN RETURN x; END';
CREATE FUNCTION st_same(x INT) RETURNS INT LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN x; END';
CREATE VIEW st_calls AS SELECT id, changed, st_own(b) AS b FROM st_a;
CREATE TABLE st_secret (id INT PRIMARY KEY, changed TIMESTAMP(6));
ALTER TABLE st_secret ENABLE ROW LEVEL SECURITY;
ALTER TABLE st_secret FORCE ROW LEVEL SECURITY;
CREATE SCHEMA st_closed;
CREATE TABLE st_closed.st_d (id INT PRIMARY KEY, "Was" INT, changed TIMESTAMP(6));
CREATE VIEW st_open AS SELECT id, "Was" AS was, changed FROM st_closed.st_d;
GRANT ALL ON ALL TABLES IN SCHEMA public TO st_plain_login;
VACUUM ANALYZE;
"""


@pytest.fixture(scope="module")
def in_mysql(mariadb: MariaDB) -> Iterator[str]:
    with connect(mariadb, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in (SETUP + MYSQL).strip().removesuffix(";").split(";\n"):
            cursor.execute(statement)
        yield mariadb.url_of("demo")
        cursor.execute("DROP VIEW st_fresh, st_some, st_plain")
        cursor.execute("DROP TABLE st_a, st_b")


@pytest.fixture(scope="module")
def in_postgres(postgres: Postgres) -> Iterator[str]:
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("CREATE ROLE st_plain_login LOGIN")
        for statement in (SETUP + POSTGRES).strip().removesuffix(";").split(";\n"):
            c.execute(statement)
        yield postgres.url
        c.execute("DROP TABLE st_a, st_b, st_secret CASCADE")
        c.execute("DROP SCHEMA st_closed CASCADE")
        c.execute("DROP FUNCTION st_own, st_same")
        c.execute("DROP OWNED BY st_plain_login")
        c.execute("DROP ROLE st_plain_login")


@pytest.fixture(params=["mysql", "postgres"])
def dialect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", request.getfixturevalue(f"in_{request.param}"))
    return str(request.param)


def declared(dialect: str, select: str) -> Capture:
    return parse(f"CAPTURE INTO t FROM {dialect} shop KEY (id) CURSOR changed AS\n{select}", Path("t.sql"))


PLAIN = [
    "SELECT * FROM st_a",
    "SELECT id, b + 1 AS b, changed FROM st_a WHERE low <> 'y'",
    "SELECT a.id, title, a.changed FROM st_a a LEFT JOIN st_b b ON b.id = a.b",
    "SELECT id, (SELECT title FROM st_b WHERE st_b.id = b) AS title, changed FROM st_a",
    "SELECT id, changed FROM st_a WHERE EXISTS (SELECT 1 FROM st_b WHERE st_b.id = b)",
    "SELECT d.id, d.changed FROM (SELECT * FROM st_a WHERE b > 1) AS d",
    "SELECT * FROM st_plain",
]


@pytest.mark.parametrize("select", PLAIN)
def test_the_derived_table_is_merged_so_each_page_is_served_by_an_index(dialect: str, select: str) -> None:
    capture = declared(dialect, select)
    database = factory.database(capture)
    pages = PageQueries(capture)
    at = database.page(pages.by_key(None, 100)).rows[-1]
    names = database.page(pages.by_key(None, 1)).names
    low = at[names.index("changed")]
    served = {"PRIMARY", "st_a_pkey", "st_changed"}
    for query in (
        pages.by_key((100,), 9), pages.by_key(None, 9, upto=(100,)), pages.since(low, None, 9),
        pages.since(low, (low, 100), 9), pages.without_cursor(None, 9), pages.rows_with_keys([(1,), (2,)]),
        pages.key_at(99),
    ):  # fmt: skip
        plan = database.plan(query)
        assert all("derived" not in table for table, _ in plan)
        # Another table may be so small that it is read whole.
        assert {index for table, index in plan if table not in ("st_b", "b")} <= served, query.display_sql
    database.close()


@pytest.mark.parametrize(
    ("select", "by"),
    [
        ("SELECT id, changed FROM st_plain", "not a change in the view st_plain that leaves changed as it was"),
        ("SELECT id, changed, whole FROM st_a", "st_a.whole is generated"),
    ],
)
def test_explain_says_what_the_server_tells(dialect: str, select: str, by: str) -> None:
    warnings = explain.explain(declared(dialect, select)).warnings
    assert [warning for warning in warnings if by in warning]
    plain = explain.explain(declared(dialect, "SELECT id, changed FROM st_a")).warnings
    assert not [warning for warning in plain if by in warning]


@pytest.mark.parametrize(
    ("select", "place", "message"),
    [
        ("SELECT id, changed\nFROM st_some", "3:6", "LIMIT in the view 'st_some'"),
        ("SELECT id, changed FROM st_fresh", "2:25", "this says another thing at each poll"),
        ("SELECT id, changed FROM st_nowhere", "2:25", "st_nowhere"),
        ("SELECT id, changed,\n  nothing FROM st_a", "3:3", "nothing"),
        ("SELECT * FROM st_a JOIN st_b ON st_a.b = st_b.id", "2:1", "two columns of one name"),
    ],
)
def test_what_the_server_refuses_names_its_place(dialect: str, select: str, place: str, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        explain.first_row(declared(dialect, select))
    assert str(refused.value).startswith(f"t.sql:{place}: capture t: ")
    assert message in str(refused.value)


def test_a_function_of_your_own_is_trusted_if_it_is_declared_so(
    in_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithFunctions(MariaDB):
        # Who has not made the binary log trust them may not make functions.
        SETUP = MariaDB.SETUP + (
            # Nor is there a user yet who could be their definer.
            "CREATE FUNCTION IF NOT EXISTS demo.st_own(x INT) RETURNS INT NOT DETERMINISTIC NO SQL "
            "SQL SECURITY INVOKER RETURN x;\n"
            "CREATE FUNCTION IF NOT EXISTS demo.st_same(x INT) RETURNS INT DETERMINISTIC RETURN x;\n"
            "GRANT EXECUTE ON demo.* TO 'penstock'@'127.0.0.1';\n"
        )

    with WithFunctions(home=tmp_path, port=free_port()) as server:
        with connect(server, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE st_a (id INT PRIMARY KEY, b INT, changed INT)")
            cursor.execute("CREATE VIEW st_calls AS SELECT id, changed, st_own(b) AS b FROM st_a")
        for dialect, url in {"mysql": server.url_of("demo"), "postgres": in_postgres}.items():
            monkeypatch.setenv("AIRFLOW_CONN_SHOP", url)
            for name, known in {"st_own": True, "st_same": False}.items():
                warnings = explain.explain(declared(dialect, f"SELECT id, changed, {name}(b) AS b FROM st_a")).warnings
                assert any(f"{name}(…) may say another thing at each call" in w for w in warnings) == known
            warnings = explain.explain(declared(dialect, "SELECT * FROM st_calls")).warnings
            assert any("st_own(…) may say another thing at each call" in w for w in warnings)


def test_what_only_postgresql_has(in_postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", in_postgres.replace("postgres@", "st_plain_login@"))
    with pytest.raises(SourceError, match=r"row-level security policy for table .*st_secret.*BYPASSRLS"):
        explain.explain(declared("postgres", "SELECT * FROM st_secret"))
    kept = explain.explain(declared("postgres", "SELECT * FROM st_kept")).warnings
    assert [w for w in kept if "not what REFRESH brings into st_kept" in w]
    explain.first_row(declared("postgres", "SELECT * FROM st_open"))
    with pytest.raises(SourceError, match=r"another thing at each poll; got: pg_try_advisory_lock_shared"):
        explain.first_row(declared("postgres", "SELECT id, changed, pg_try_advisory_lock_shared(1) AS n FROM st_a"))


def test_a_row_that_leaves_the_where_waits_for_a_reconcile_or_is_deleted_at_once(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b'), (NULL)")
    text = source.declared().replace("DELETED WHEN (gone = 1)", "")
    poller = source.opened(f"{text} WHERE name <> 'x'")
    polled(poller, 2)
    source.sql(f"UPDATE {source.name} SET name = 'x' WHERE id = 1")
    polled(poller, 2)
    assert set(source.topic()) == {b'{"id":1}', b'{"id":2}'}
    poller.compare("test")
    until(poller, lambda: not poller.position.reconcile, "the comparison ends")
    assert set(source.topic()) == {b'{"id":2}'}
    at_once = source.opened(source.declared().replace("(gone = 1)", "((name <> 'x') IS NOT TRUE)"), "snapshot")
    polled(at_once, 2)
    source.sql(f"UPDATE {source.name} SET name = 'x' WHERE id = 2")
    polled(at_once, 2)
    assert source.topic() == {}


def test_a_change_in_a_joined_table_alone_waits_for_a_reconcile(source: Source) -> None:
    other = f"{source.name}_o"
    source.sql(
        f"CREATE OR REPLACE TABLE {other} (id BIGINT PRIMARY KEY, title VARCHAR(9))",
        f"INSERT INTO {other} VALUES (1, 'old')",
        f"INSERT INTO {source.name} (name, changed) VALUES ('a', '2026-01-01'), ('b', DEFAULT)",
    )
    text = source.declared(columns="s.id, gone, changed, title").replace(
        f"FROM {source.name}", f"FROM {source.name} s LEFT JOIN {other} o ON o.id = s.id"
    )
    poller = source.opened(text)
    until(poller, lambda: poller.position.low is not None and not poller.position.snapshot, "polls read no more of it")
    source.sql(f"UPDATE {other} SET title = 'new'")
    polled(poller, 2)
    assert b'"title":"old"' in source.topic()[b'{"id":1}']
    poller.compare("test")
    until(poller, lambda: not poller.position.reconcile, "the comparison ends")
    assert b'"title":"new"' in source.topic()[b'{"id":1}']
    source.sql(f"DROP TABLE {other}")
