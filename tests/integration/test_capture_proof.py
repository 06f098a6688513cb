"""Each type as key and as cursor, on the real servers: either every row comes once, page by page, or it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from penstock.capture.database import Database, Page, SourceError
from penstock.capture.encode import encode
from penstock.capture.engines import MySQL, PostgreSQL
from penstock.capture.pages import Pages, Query
from penstock.capture.position import read, write
from penstock.capture.proof import Proof
from penstock.capture.reconcile import Reconcile
from penstock.capture.verdict import Unproven, in_order
from penstock.declare.capture import Capture, parse
from penstock.local.parts import MariaDB
from tests.captures import connect
from tests.postgres import Postgres

DELAY = timedelta(seconds=5)
Row = tuple[Any, ...]


class Table:
    """A table `paged` of one engine, and what is proven of it."""

    def __init__(self, database: Database, execute: Callable[[str], Any]) -> None:
        self.database, self.execute = database, execute
        self.dialect = "mysql" if isinstance(database, MySQL) else "postgres"

    def filled(self, columns: str, rows: list[str]) -> None:
        """rows: each the literals of one."""
        self.execute("DROP TABLE IF EXISTS paged")
        self.execute(f"CREATE TABLE paged ({columns})")
        self.execute(f"INSERT INTO paged VALUES {', '.join(f'({row})' for row in rows)}")

    def declared(self, select: str = "SELECT id, c FROM paged", key: str = "id") -> Capture:
        return parse(f"CAPTURE INTO t FROM {self.dialect} demo KEY ({key}) CURSOR c AS {select}", Path("t.sql"))

    def proven(self, select: str = "SELECT id, c FROM paged", key: str = "id") -> Proof:
        made = Proof(self.declared(select, key), self.database)
        made.prove()
        return made

    def through(self, query: Callable[[Row | None], Query], behind: Callable[[Row], Row]) -> list[Row]:
        """Every row, in pages of three; what was kept of a row goes back as it was read."""
        found: list[Row] = []
        last: Row | None = None
        for _ in range(100):
            rows = [tuple(row) for row in self.database.page(query(last)).rows]
            found += rows
            if len(rows) < 3:
                return found
            last = tuple(read(write(behind(rows[-1]))))
        raise AssertionError("paging does not end")

    def once(self, rows: int) -> None:
        """By key, by cursor and one by one each row comes once; all rows have a cursor."""
        capture, proof = self.declared(), self.proven()
        pages = Pages(capture)
        by_key = self.through(lambda last: pages.by_key(last, 3), lambda row: row[:1])
        by_cursor = self.through(lambda last: pages.since(None, last, 3), lambda row: (row[1], row[0]))
        keys = encode(["id"], [row[:1] for row in by_key])
        assert len(set(keys)) == len(keys) == rows
        assert sorted(encode(["id"], [row[:1] for row in by_cursor])) == sorted(keys)
        for key in keys:
            back = Reconcile.key_of(key, ["id"], proof.types)
            assert back is not None, key
            found = self.database.page(pages.exactly([back])).rows
            assert encode(["id"], [row[:1] for row in found]) == [key]
            # What is none of its values is not found, or known to be none.
            other = tuple(f"{part}?" if isinstance(part, str) else part for part in back)
            if proof.may_be(other):
                found = self.database.page(pages.exactly([back, other])).rows
                assert encode(["id"], [row[:1] for row in found]) == [key]
        whole = self.database.page(pages.since(None, None, 100))
        in_order(capture, whole)
        for number, (row, record) in enumerate(zip(whole.rows, self.as_records(whole), strict=True)):
            low = read(write(row[1]))
            since = self.as_records(self.database.page(pages.since(low, None, 100)))
            assert since[-(len(keys) - number) :] == self.as_records(whole)[number:]
            assert record not in self.as_records(self.database.page(pages.since(low, None, 100, itself=False)))

    @staticmethod
    def as_records(page: Page) -> list[bytes]:
        return encode(page.names, page.rows) if page.rows else []


@pytest.fixture
def maria(mariadb: MariaDB) -> Iterator[Table]:
    database = MySQL(make_url(mariadb.url_of("demo")), DELAY)
    with connect(mariadb, autocommit=True, init_command="SET time_zone = '+00:00'") as c, c.cursor() as cursor:
        yield Table(database, cursor.execute)
    database.close()


@pytest.fixture
def pg(postgres: Postgres) -> Iterator[Table]:
    database = PostgreSQL(make_url(postgres.url).set(drivername="postgresql+psycopg"), DELAY)
    with psycopg.connect(postgres.url, autocommit=True) as c:
        yield Table(database, c.execute)
    database.close()


TEXTS = ["'b'", "'A'", "''", "'a b'", "'é'", "'f'", "'Z'", "'ß'", "'\\\\'", "'%'", "'🐟'", "':x'"]
MYSQL_KEYS = [
    ("BIGINT UNSIGNED", ["0", "1", "18446744073709551615", "9223372036854775808", "9007199254740993", "7", "8", "9"]),
    ("BIGINT", ["-9223372036854775808", "-1", "0", "1", "9007199254740992", "9007199254740993", "9007199254740994"]),
    ("INT ZEROFILL", ["0", "1", "2", "10", "100"]),
    ("TINYINT(1)", ["0", "1", "2", "-1", "5"]),
    ("YEAR", ["0", "1901", "1970", "2000", "2026", "2155"]),
    ("DECIMAL(65, 30)", [f"0.{'0' * 9}1234567890123456789{n}" for n in range(8)] + ["-1", "99999999999"]),
    ("DOUBLE", ["0.1", "1e300", "-1e-300", "0", "0.30000000000000004", "0.3", "1e22", "16777217"]),
    ("VARCHAR(40) COLLATE utf8mb4_general_ci", TEXTS),
    ("VARCHAR(40) COLLATE utf8mb4_uca1400_ai_ci", TEXTS),
    ("VARCHAR(40) COLLATE utf8mb4_bin", [*TEXTS, "'B'", "'a'", "'a\t'"]),
    ("VARCHAR(40) COLLATE utf8mb4_nopad_bin", [*TEXTS, "'a'", "'a '", "'a\t'", "'B'"]),
    ("VARCHAR(40) CHARACTER SET latin1", ["'é'", "'e1'", "'€'", "'ÿ'", "'z'", "'ä1'", "'x'"]),
    ("VARCHAR(600)", [f"CONCAT(REPEAT('é', 590), {n})" for n in range(10, 20)]),
    ("CHAR(5)", TEXTS),
    ("VARBINARY(20)", ["x'00'", "x'0000'", "x''", "'a'", "'A'", "'a '", "x'ff'", "x'ff27'"]),
    ("BINARY(3)", ["x'00'", "x'01'", "'a'", "'A'", "'a '", "x'ff'", "x'ff27'"]),
    ("DATE", ["'0001-01-01'", "'1000-01-01'", "'2026-02-28'", "'2026-03-01'", "'9999-12-31'"]),
    ("DATETIME", ["'0001-01-01'", "'2026-03-29 02:30:00'", "'2026-02-28'", "'2026-03-01'", "'9999-12-31'"]),
    ("DATETIME(6)", [f"'2026-03-29 02:30:00.00000{n}'" for n in range(10)]),
    ("TIMESTAMP(3)", [f"'2026-03-29 02:30:00.00{n}'" for n in range(8)] + ["'1970-01-01 00:00:01'"]),
    ("TIME(6)", ["'-838:59:59'", "'-00:00:01'", "'-00:00:00.5'", "'0'", "'00:00:01'", "'838:59:59'", "'-01:00:00'"]),
    ("UUID", [f"'{n:08x}-0{8 - n}00-4000-8000-{9 - n:012x}'" for n in range(8)]),
    ("INET6", ["'::1'", "'2001:db8::1'", "'2001:db8::a'", "'::ffff:10.0.0.1'", "'fe80::1'", "'::'"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values"), MYSQL_KEYS, ids=[kind for kind, _ in MYSQL_KEYS])
def test_keys_of_mariadb(maria: Table, kind: str, values: list[str]) -> None:
    maria.filled(f"id {kind} PRIMARY KEY, c INT NOT NULL", [f"{value}, 7" for value in values])
    maria.once(len(values))
    assert maria.proven().notes == []


MYSQL_CURSORS = [kind for kind in MYSQL_KEYS if not kind[0].startswith(("VARCHAR", "CHAR", "UUID", "INET"))]


@pytest.mark.parametrize(("kind", "values"), MYSQL_CURSORS, ids=[kind for kind, _ in MYSQL_CURSORS])
def test_cursors_of_mariadb(maria: Table, kind: str, values: list[str]) -> None:
    twice = values * 2
    maria.filled(f"id INT PRIMARY KEY, c {kind} NOT NULL", [f"{n}, {value}" for n, value in enumerate(twice)])
    maria.once(len(twice))


KINDS = [
    ("ENUM('z', 'b', 'a')", "ENUM"),
    ("SET('z', 'b', 'a')", "SET"),
    ("BIT(1)", "BIT"),
    ("BIT(9)", "BIT"),
    ("BIT(64)", "BIT"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_what_mariadb_orders_otherwise_is_refused_wherever_it_comes_from(maria: Table, kind: str, name: str) -> None:
    value = "'1'" if "BIT" not in kind else "b'1'"
    if name in ("ENUM", "SET"):
        value = "'b'"
    maria.execute("CREATE DATABASE IF NOT EXISTS penstock_elsewhere")
    for table in ("paged", "penstock_elsewhere.paged"):
        maria.execute(f"DROP TABLE IF EXISTS {table}")
        maria.execute(f"CREATE TABLE {table} (id {kind} NOT NULL, c INT NOT NULL, PRIMARY KEY (id))")
    for filled in (False, True):
        if filled:
            for table in ("paged", "penstock_elsewhere.paged"):
                maria.execute(f"INSERT INTO {table} VALUES ({value}, 1)")
        maria.execute("CREATE OR REPLACE VIEW seen AS SELECT id, c FROM penstock_elsewhere.paged")
        maria.execute("CREATE OR REPLACE ALGORITHM = TEMPTABLE VIEW copied AS SELECT * FROM penstock_elsewhere.paged")
        for select in (
            "SELECT id, c FROM paged",
            "SELECT * FROM penstock_elsewhere.paged",
            "SELECT x.id, x.c FROM (SELECT id, c FROM penstock_elsewhere.paged WHERE c < 9) AS x",
            "SELECT v AS id, c FROM (SELECT id AS v, c FROM paged) AS x",
            "SELECT * FROM seen",
            "SELECT * FROM copied",
            "SELECT p.id, p.c FROM paged AS p JOIN penstock_elsewhere.paged AS e ON e.c = p.c",
        ):
            with pytest.raises(Unproven, match=rf"capture t cannot be paged by a column of type {name}; got: id: "):
                maria.proven(select)
    maria.execute("DROP TABLE paged")
    maria.execute(f"CREATE TABLE paged (id INT PRIMARY KEY, c {kind})")
    with pytest.raises(Unproven, match=rf"by a column of type {name}; got: c: .*another CURSOR is better"):
        maria.proven()


def test_the_cures_for_them_page(maria: Table) -> None:
    kinds = "ENUM('z', 'b', 'a', 'c', 'y', 'x', 'd')"
    maria.filled(f"kind {kinds} PRIMARY KEY, c INT", [f"{n}, 1" for n in range(1, 8)])
    select = "SELECT CAST(kind AS CHAR) AS id, c FROM paged"
    pages = Pages(maria.declared(select))
    assert len(maria.proven(select).notes) == 1
    found = maria.through(lambda last: pages.by_key(last, 3), lambda row: row[:1])
    assert [row[0] for row in found] == sorted("zbacyxd")
    maria.filled("bits BIT(64) PRIMARY KEY, c INT", [f"{n}, 1" for n in (0, 1, 2**63, 2**64 - 1, 255, 256, 65536)])
    select = "SELECT bits + 0 AS id, c FROM paged"
    pages = Pages(maria.declared(select))
    maria.proven(select)
    found = maria.through(lambda last: pages.by_key(last, 3), lambda row: row[:1])
    assert [row[0] for row in found] == [0, 1, 255, 256, 65536, 2**63, 2**64 - 1]


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_uca1400_ai_ci", "utf8mb4_bin", "latin1_bin"])
def test_a_cursor_of_text_must_be_in_order_of_code_points(maria: Table, collation: str) -> None:
    characters = collation.split("_")[0]
    kind = f"VARCHAR(9) CHARACTER SET {characters} COLLATE"
    maria.filled(f"id INT PRIMARY KEY, c {kind} {collation} NOT NULL", ["1, 'a'", "2, 'B'"])
    with pytest.raises(Unproven, match=r"a cursor of type VARCHAR; got: c: its collation .*utf8mb4_nopad_bin"):
        maria.proven()


def test_a_cursor_of_text_by_code_point(maria: Table) -> None:
    rows = [f"{n}, {value}" for n, value in enumerate([*TEXTS, "'a'", "'a '", "'a\t'"])]
    maria.filled("id INT PRIMARY KEY, c VARCHAR(9) COLLATE utf8mb4_nopad_bin NOT NULL", rows)
    maria.once(len(rows))


@pytest.mark.parametrize(("kind", "zero"), [("DATE", "0000-00-00"), ("DATETIME(3)", "2026-00-00 00:00:00.000"),
                                            ("TIMESTAMP", "0000-00-00 00:00:00")])  # fmt: skip
def test_dates_that_are_none_are_refused(maria: Table, kind: str, zero: str) -> None:
    maria.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
    maria.filled(f"id INT PRIMARY KEY, c {kind} NULL", [f"1, '{zero}'", "2, '2026-02-01'", "3, '2026-03-01'"])
    with pytest.raises(Unproven, match=rf"a value of c that has no place.*got: {zero} in a column of type {kind[:4]}"):
        maria.proven()
    maria.execute("UPDATE paged SET c = NULL WHERE id = 1")
    maria.proven()
    maria.filled(f"id {kind} PRIMARY KEY, c INT", [f"'{zero}', 1", "'2026-02-01', 2", "'2026-03-01', 3"])
    with pytest.raises(Unproven, match=rf"a value of id that has no place.*got: {zero} in a column of type {kind[:4]}"):
        maria.proven()


def test_a_key_of_mariadb_that_is_not_unique_is_refused(maria: Table) -> None:
    rows = ["1, 'a', 1, NULL", "2, 'a ', 2, NULL", "3, 'b', 3, 1"]
    maria.filled("id INT PRIMARY KEY, name VARCHAR(9), c INT, part INT UNIQUE, KEY (name)", rows)
    with pytest.raises(Unproven, match="KEY that is not unique; got: 2 rows of one name"):
        maria.proven("SELECT name, c FROM paged", "name")
    with pytest.raises(Unproven, match="a row without a key; got: NULL in name, part"):
        maria.proven("SELECT name, part, c FROM paged", "name, part")
    assert maria.proven("SELECT name, id, c FROM paged", "name, id").notes == []
    [note] = maria.proven("SELECT p.id, p.c FROM paged AS p LEFT JOIN paged AS q ON q.id = p.id").notes
    assert "KEY (id)" in note
    # What is unique to the table's collation need not be so to another.
    maria.filled("name VARCHAR(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY, c INT", ["'a', 1", "'A', 2"])
    assert maria.proven("SELECT name, c FROM paged", "name").notes == []
    with pytest.raises(Unproven, match="2 rows of one id"):
        maria.proven("SELECT name COLLATE utf8mb4_general_ci AS id, c FROM paged")


def test_a_part_of_a_text_that_is_unique_proves_its_key(maria: Table) -> None:
    maria.filled("id VARCHAR(90) NOT NULL, c INT, other INT, UNIQUE (id(2))", ["'aa', 1, 1", "'ab', 2, 1"])
    assert len(maria.proven().notes) == 1, "asked of the rows: an index over a part is not taken for a proof"


def test_a_text_without_a_limit_may_be_a_key_of_limited_length(maria: Table) -> None:
    rows = [f"CONCAT(REPEAT('a', 1500), {n}), 7" for n in range(10, 22)]
    maria.filled("id TEXT NOT NULL, c INT, UNIQUE (id)", rows)
    maria.once(len(rows))
    maria.execute("INSERT INTO paged VALUES (REPEAT('Z', 3073), 8)")
    with pytest.raises(
        Unproven, match=r"a value of id that has no place.*got: Z{40}\.\.\. of 3073 characters in a col"
    ):
        maria.proven()


def test_a_column_that_is_given_another_type_is_proven_anew(maria: Table) -> None:
    maria.filled("id CHAR(5) PRIMARY KEY, c INT", ["'z', 1", "'a', 2"])
    proof, pages = maria.proven(), Pages(maria.declared())
    assert not proof.take(maria.database.page(pages.by_key(None, 5)))
    maria.execute("ALTER TABLE paged MODIFY id VARCHAR(5)")
    assert proof.take(maria.database.page(pages.by_key(None, 5)))
    maria.execute("ALTER TABLE paged MODIFY id ENUM('z', 'a')")
    with pytest.raises(Unproven, match="type ENUM; got: id"):
        proof.take(maria.database.page(pages.by_key(None, 5)))


# PostgreSQL

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
        with pytest.raises(Unproven, match=f"{message.format('id')}to mend it: select CAST"):
            kinds.proven(select)
    kinds.execute("DROP VIEW seen")
    kinds.filled(f"id int PRIMARY KEY, c {kind}", [f"1, {value}"])
    with pytest.raises(Unproven, match=f"{message.format('c')}to mend it: another CURSOR"):
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
    with pytest.raises(Unproven, match=message):
        kinds.proven()


def test_a_key_of_postgresql_that_is_not_unique_is_refused(kinds: Table) -> None:
    kinds.filled("id int PRIMARY KEY, name text, c int, part int UNIQUE", ["1, 'a', 1, NULL", "2, 'a', 2, 3"])
    with pytest.raises(Unproven, match="KEY that is not unique; got: 2 rows of one name"):
        kinds.proven("SELECT name, c FROM paged", "name")
    with pytest.raises(Unproven, match="a row without a key; got: NULL in name, part"):
        kinds.proven("SELECT name, part, c FROM paged", "name, part")
    assert kinds.proven("SELECT Name AS n, ID AS key, c FROM Public.Paged", "n, key").notes == []
    # Unique by bytes, and the same to the collation by which it is paged.
    kinds.filled("name text PRIMARY KEY, c int", ["'a', 1", "'A', 2"])
    with pytest.raises(Unproven, match="2 rows of one id"):
        kinds.proven("SELECT name COLLATE nobody AS id, c FROM paged")
    kinds.filled("name text COLLATE nobody NOT NULL, c int", ["'a', 1", "'A', 2"])
    kinds.execute('CREATE UNIQUE INDEX ON paged (name COLLATE "C")')
    with pytest.raises(Unproven, match="2 rows of one name"):
        kinds.proven("SELECT name, c FROM paged", "name")
    # The rows of an heir are not in the index.
    kinds.filled("id int PRIMARY KEY, c int", ["1, 1"])
    kinds.execute("CREATE TABLE heir () INHERITS (paged)")
    kinds.execute("INSERT INTO heir VALUES (1, 2)")
    with pytest.raises(Unproven, match="2 rows of one id"):
        kinds.proven()
    kinds.execute("DROP TABLE heir")


def test_a_table_that_is_not_there_is_told(maria: Table) -> None:
    with pytest.raises(SourceError, match="nothing_here"):
        maria.proven("SELECT id, c FROM nothing_here")


@pytest.mark.parametrize("value", ["'infinity'", "'0044-03-15 BC'"])
def test_a_time_that_python_lacks_is_told_with_its_cure(kinds: Table, value: str) -> None:
    kinds.filled("id int PRIMARY KEY, c timestamptz", ["1, '2026-01-01'", f"2, {value}"])
    with pytest.raises(SourceError, match=r"NULLIF\(column, 'infinity'\).*between the years 1 and 9999"):
        kinds.proven()
    if value == "'infinity'":
        kinds.proven("SELECT id, NULLIF(c, 'infinity') AS c FROM paged")
