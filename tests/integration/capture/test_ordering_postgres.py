"""Each type as key and as cursor, on a real PostgreSQL: either every row comes once, page by page, or it is refused."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import make_url

from penstock.capture.checks.paging_checks import PagingError
from penstock.capture.source.base import SourceError
from penstock.capture.source.postgres import PostgreSQL
from tests.support.paged_tables import DELAY, Table
from tests.support.postgres import Postgres


@pytest.fixture
def pg(postgres: Postgres) -> Iterator[Table]:
    database = PostgreSQL(make_url(postgres.url).set(drivername="postgresql+psycopg"), DELAY)
    with psycopg.connect(postgres.url, autocommit=True) as c:
        yield Table(database, c.execute)
    database.close()


PG_TEXTS = ["'b'", "'A'", "''", "'a b'", "'é'", "'f'", "'Z'", "'ß'", "'\\'", "'%'", "'🐟'", "':x'", "'a'", "'a '"]
POSTGRES_KEYS = [
    ("smallint", ["0", "1", "-1", "32767", "5", "6"]),
    ("bigint", ["-9223372036854775808", "-1", "0", "1", "9007199254740992", "9007199254740993"]),
    ("numeric", ["1.0", "1.10", "'NaN'", "1e-20", "1e30", "-3", "1.00000000000000000001"]),
    ("double precision", ["0.1", "'NaN'", "'-0'", "'Infinity'", "'-Infinity'", "1e300", "0.30000000000000004", "0.3"]),
    ("boolean", ["true", "false"]),
    ("text", PG_TEXTS),
    ('text COLLATE "C"', PG_TEXTS),
    ('varchar(20) COLLATE "de-x-icu"', PG_TEXTS),
    ("text COLLATE nobody", ["'b'", "'A'", "'é'", "'z'", "'x'"]),
    ("citext", ["'b'", "'A'", "'é'", "'z'", "'x'"]),
    ("char(5)", ["'b'", "'A'", "''", "'a b'", "'f'"]),
    ("mood", ["'sad'", "'ok'", "'happy'", "'zen'"]),
    ("shout", ["'A'", "'B'", "'C'", "'D'"]),
    ("uuid", [f"'{n:08x}-0000-4000-8000-{9 - n:012x}'" for n in range(8)]),
    ("bytea", ["'\\x00'", "'\\x'", "'\\xff00'", "'\\xff'", "'a'"]),
    ("date", ["'0001-01-01'", "'2026-02-28'", "'2026-03-01'", "'9999-12-31'", "'1970-01-01'"]),
    ("time", ["'00:00'", "'23:59:59.999999'", "'12:00'", "'12:00:00.5'"]),
    ("timestamp", [f"'2026-03-29 02:30:00.00000{n}'" for n in range(8)]),
    ("timestamptz", [f"'2026-03-29 02:30:00.00000{n}+05'" for n in range(8)]),
    ("inet", ["'10.0.0.1'", "'10.0.0.0/8'", "'::1'", "'10.0.0.2'", "'9.0.0.1'"]),
    ("cidr", ["'10.0.0.0/8'", "'10.0.0.0/16'", "'::/0'", "'9.0.0.0/8'"]),
    ("macaddr", ["'08:00:2b:01:02:03'", "'08:00:2b:01:02:04'", "'ff:00:2b:01:02:03'", "'00:00:2b:01:02:03'"]),
]  # fmt: skip


@pytest.fixture
def kinds(pg: Table) -> Table:
    """Types and collations that are not there by themselves."""
    for statement in (
        "DROP TABLE IF EXISTS paged",
        "DROP TYPE IF EXISTS mood",
        "DROP DOMAIN IF EXISTS shout",
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'zen')",
        "CREATE DOMAIN shout AS text CHECK (value = upper(value))",
        "DROP COLLATION IF EXISTS nobody",
        "CREATE COLLATION nobody (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",
    ):
        pg.execute(statement)
    return pg


@pytest.fixture
def citext(kinds: Table) -> None:
    try:
        kinds.execute("CREATE EXTENSION IF NOT EXISTS citext")
    except psycopg.Error as e:
        pytest.skip(f"this server has no citext: {e}")


@pytest.mark.parametrize(("kind", "values"), POSTGRES_KEYS, ids=[kind for kind, _ in POSTGRES_KEYS])
def test_keys_of_postgresql(request: pytest.FixtureRequest, kinds: Table, kind: str, values: list[str]) -> None:
    if kind == "citext":
        request.getfixturevalue("citext")
    kinds.filled(f"id {kind} PRIMARY KEY, c int NOT NULL", [f"{value}, 7" for value in values])
    kinds.once(len(values))
    assert kinds.proven().notes == []


NO_CURSORS = (
    "text COLLATE nobody",
    "citext",
    "char",
    "mood",
    "inet",
    "cidr",
    "macaddr",
    "varchar",
    "boolean",
    "uuid",
    "bytea",
    "numeric",
    "double",
)
POSTGRES_CURSORS = [kind for kind in POSTGRES_KEYS if not kind[0].startswith(NO_CURSORS)]
POSTGRES_CURSORS += [("numeric", ["1.0", "1.00", "1e-20", "1e30", "-3"]), ("double precision", ["0.1", "'-0'", "0"])]


@pytest.mark.parametrize(("kind", "values"), POSTGRES_CURSORS, ids=[kind for kind, _ in POSTGRES_CURSORS])
def test_cursors_of_postgresql(kinds: Table, kind: str, values: list[str]) -> None:
    twice = values * 2
    kinds.filled(f"id int PRIMARY KEY, c {kind} NOT NULL", [f"{n}, {value}" for n, value in enumerate(twice)])
    kinds.once(len(twice))


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("real", "0.1", r"type real; got: {}: .*"),
        ("interval", "'1 mon'", r"type interval; got: {}: .*"),
        ("int[]", "'{1}'", r"type _int4; got: {}: .*"),
        ("jsonb", "'1'", r"type jsonb; got: {}: .*"),
        ("bit(3)", "'101'", r"type bit; got: {}: .*"),
        ("int4range", "'[1,2)'", r"type int4range; got: {}: .*"),
        ("money", "1", r"type money; got: {}: .*"),
    ],
)
def test_what_postgresql_orders_otherwise_is_refused(kinds: Table, kind: str, value: str, message: str) -> None:
    kinds.filled(f"id {kind} PRIMARY KEY, c int", [f"{value}, 1"])
    kinds.execute("CREATE OR REPLACE VIEW seen AS SELECT id, c FROM paged")
    for select in ("SELECT id, c FROM paged", "SELECT * FROM seen", "SELECT x.* FROM (SELECT * FROM paged) AS x"):
        with pytest.raises(PagingError, match=f"{message.format('id')}hint: select CAST"):
            kinds.proven(select)
    kinds.execute("DROP VIEW seen")
    kinds.filled(f"id int PRIMARY KEY, c {kind}", [f"1, {value}"])
    with pytest.raises(PagingError, match=f"{message.format('c')}hint: another CURSOR"):
        kinds.proven()


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("numeric", "'NaN'", "c that has no place in its order; got: NaN"),
        ("double precision", "'Infinity'", "c that has no place in its order; got: inf"),
        ("uuid", "'00000000-0000-0000-0000-000000000001'", "type uuid; got: c: a cursor is compared here too"),
        ("boolean", "true", "type boolean; got: c: a cursor is compared here too"),
        ("bytea", "'a'", "type bytea; got: c: a cursor is compared here too"),
        ("mood", "'ok'", "type enum mood; got: c: a cursor is compared here too"),
        ("inet", "'10.0.0.1'", "type inet; got: c: a cursor is compared here too"),
        ('text COLLATE "de-x-icu"', "'a'", "a cursor of type text; got: c: its collation"),
        ("text COLLATE nobody", "'a'", "a cursor of type text; got: c: its collation"),
    ],
)
def test_a_cursor_of_postgresql_that_is_ordered_otherwise(kinds: Table, kind: str, value: str, message: str) -> None:
    kinds.filled(f"id int PRIMARY KEY, c {kind}", [f"1, {value}"])
    with pytest.raises(PagingError, match=message):
        kinds.proven()


def test_a_key_of_postgresql_that_is_not_unique_is_refused(kinds: Table) -> None:
    kinds.filled("id int PRIMARY KEY, name text, c int, part int UNIQUE", ["1, 'a', 1, NULL", "2, 'a', 2, 3"])
    with pytest.raises(PagingError, match="KEY that is not unique; got: 2 rows of one name"):
        kinds.proven("SELECT name, c FROM paged", "name")
    with pytest.raises(PagingError, match="a row without a key; got: NULL in name, part"):
        kinds.proven("SELECT name, part, c FROM paged", "name, part")
    assert kinds.proven("SELECT Name AS n, ID AS key, c FROM Public.Paged", "n, key").notes == []
    # Unique by bytes, and the same to the collation by which it is paged.
    kinds.filled("name text PRIMARY KEY, c int", ["'a', 1", "'A', 2"])
    with pytest.raises(PagingError, match="2 rows of one id"):
        kinds.proven("SELECT name COLLATE nobody AS id, c FROM paged")
    kinds.filled("name text COLLATE nobody NOT NULL, c int", ["'a', 1", "'A', 2"])
    kinds.execute('CREATE UNIQUE INDEX ON paged (name COLLATE "C")')
    with pytest.raises(PagingError, match="2 rows of one name"):
        kinds.proven("SELECT name, c FROM paged", "name")
    # The rows of an heir are not in the index.
    kinds.filled("id int PRIMARY KEY, c int", ["1, 1"])
    kinds.execute("CREATE TABLE heir () INHERITS (paged)")
    kinds.execute("INSERT INTO heir VALUES (1, 2)")
    with pytest.raises(PagingError, match="2 rows of one id"):
        kinds.proven()
    kinds.execute("DROP TABLE heir")


@pytest.mark.parametrize("value", ["'infinity'", "'0044-03-15 BC'"])
def test_a_time_that_python_lacks_is_told_with_its_cure(kinds: Table, value: str) -> None:
    kinds.filled("id int PRIMARY KEY, c timestamptz", ["1, '2026-01-01'", f"2, {value}"])
    with pytest.raises(SourceError, match=r"c that has no place in its order.*NULLIF\(c, "):
        kinds.proven()
    if value == "'infinity'":
        kinds.proven("SELECT id, NULLIF(c, 'infinity') AS c FROM paged")
