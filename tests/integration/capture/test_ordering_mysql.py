"""Each type as key and as cursor, on a real MariaDB: either every row comes once, page by page, or it is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from penstock.capture.checks.paging_checks import PagingError
from penstock.capture.polling.keyset_queries import PageQueries, SourceQuery
from penstock.capture.polling.page_size import PageSize
from penstock.capture.source.base import SourceError
from penstock.capture.source.mysql import MySQL
from penstock.devstack.servers.mariadb import MariaDB
from tests.support.captures import connect
from tests.support.paged_tables import DELAY, Table


@pytest.fixture
def maria(mariadb: MariaDB) -> Iterator[Table]:
    database = MySQL(make_url(mariadb.url_of("demo")), DELAY)
    with connect(mariadb, autocommit=True, init_command="SET time_zone = '+00:00'") as c, c.cursor() as cursor:
        yield Table(database, cursor.execute)
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
            with pytest.raises(PagingError, match=rf"capture t cannot be paged by a column of type {name}; got: id: "):
                maria.proven(select)
    maria.execute("DROP TABLE paged")
    maria.execute(f"CREATE TABLE paged (id INT PRIMARY KEY, c {kind})")
    with pytest.raises(PagingError, match=rf"by a column of type {name}; got: c: .*another CURSOR is better"):
        maria.proven()


def test_the_cures_for_them_page(maria: Table) -> None:
    kinds = "ENUM('z', 'b', 'a', 'c', 'y', 'x', 'd')"
    maria.filled(f"kind {kinds} PRIMARY KEY, c INT", [f"{n}, 1" for n in range(1, 8)])
    select = "SELECT CAST(kind AS CHAR) AS id, c FROM paged"
    pages = PageQueries(maria.declared(select))
    assert len(maria.proven(select).notes) == 1
    found = maria.through(lambda last: pages.by_key(last, 3), lambda row: row[:1])
    assert [row[0] for row in found] == sorted("zbacyxd")
    maria.filled("bits BIT(64) PRIMARY KEY, c INT", [f"{n}, 1" for n in (0, 1, 2**63, 2**64 - 1, 255, 256, 65536)])
    select = "SELECT bits + 0 AS id, c FROM paged"
    pages = PageQueries(maria.declared(select))
    maria.proven(select)
    found = maria.through(lambda last: pages.by_key(last, 3), lambda row: row[:1])
    assert [row[0] for row in found] == [0, 1, 255, 256, 65536, 2**63, 2**64 - 1]


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_uca1400_ai_ci", "utf8mb4_bin", "latin1_bin"])
def test_a_cursor_of_text_must_be_in_order_of_code_points(maria: Table, collation: str) -> None:
    characters = collation.split("_")[0]
    kind = f"VARCHAR(9) CHARACTER SET {characters} COLLATE"
    maria.filled(f"id INT PRIMARY KEY, c {kind} {collation} NOT NULL", ["1, 'a'", "2, 'B'"])
    with pytest.raises(PagingError, match=r"a cursor of type VARCHAR; got: c: its collation .*utf8mb4_nopad_bin"):
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
    with pytest.raises(
        PagingError, match=rf"a value of c that has no place.*got: {zero} in a column of type {kind[:4]}"
    ):
        maria.proven()
    maria.execute("UPDATE paged SET c = NULL WHERE id = 1")
    maria.proven()
    maria.filled(f"id {kind} PRIMARY KEY, c INT", [f"'{zero}', 1", "'2026-02-01', 2", "'2026-03-01', 3"])
    with pytest.raises(
        PagingError, match=rf"a value of id that has no place.*got: {zero} in a column of type {kind[:4]}"
    ):
        maria.proven()


def test_a_key_of_mariadb_that_is_not_unique_is_refused(maria: Table) -> None:
    rows = ["1, 'a', 1, NULL", "2, 'a ', 2, NULL", "3, 'b', 3, 1"]
    maria.filled("id INT PRIMARY KEY, name VARCHAR(9), c INT, part INT UNIQUE, KEY (name)", rows)
    with pytest.raises(PagingError, match="KEY that is not unique; got: 2 rows of one name"):
        maria.proven("SELECT name, c FROM paged", "name")
    with pytest.raises(PagingError, match="a row without a key; got: NULL in name, part"):
        maria.proven("SELECT name, part, c FROM paged", "name, part")
    assert maria.proven("SELECT name, id, c FROM paged", "name, id").notes == []
    [note] = maria.proven("SELECT p.id, p.c FROM paged AS p LEFT JOIN paged AS q ON q.id = p.id").notes
    assert "KEY (id)" in note
    # What is unique to the table's collation need not be so to another.
    maria.filled("name VARCHAR(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY, c INT", ["'a', 1", "'A', 2"])
    assert maria.proven("SELECT name, c FROM paged", "name").notes == []
    with pytest.raises(PagingError, match="2 rows of one id"):
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
        PagingError, match=r"a value of id that has no place.*got: Z{40}\.\.\. of 3073 characters in a col"
    ):
        maria.proven()


def test_a_column_that_is_given_another_type_is_proven_anew(maria: Table) -> None:
    maria.filled("id CHAR(5) PRIMARY KEY, c INT", ["'z', 1", "'a', 2"])
    proof, pages = maria.proven(), PageQueries(maria.declared())
    assert not proof.check_page(maria.database.page(pages.by_key(None, 5)))
    maria.execute("ALTER TABLE paged MODIFY id VARCHAR(5)")
    assert proof.check_page(maria.database.page(pages.by_key(None, 5)))
    maria.execute("ALTER TABLE paged MODIFY id ENUM('z', 'a')")
    with pytest.raises(PagingError, match="type ENUM; got: id"):
        proof.check_page(maria.database.page(pages.by_key(None, 5)))


# PostgreSQL


def test_a_table_that_is_not_there_is_told(maria: Table) -> None:
    with pytest.raises(SourceError, match="nothing_here"):
        maria.proven("SELECT id, c FROM nothing_here")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cp1251", ["98"]),
        ("gbk", ["a140", "a141"]),
        ("ascii", ["80", "81"]),
        ("big5", ["a3c0"]),
        ("cp932", ["81ca", "f040", "fa54"]),
        ("sjis", ["5c", "815f"]),
    ],
)
def test_a_key_whose_text_is_another_in_utf8(maria: Table, name: str, values: list[str]) -> None:
    """Read as it is, a page begins again before it, for ever, or two rows are one key."""
    kind = f"id VARCHAR(9) CHARACTER SET {name} PRIMARY KEY, c INT NOT NULL"
    plain = ["'a'", "'b?'", "'c'", "'d'", "'e'"]
    maria.execute("SET sql_mode = ''")
    maria.filled(kind, [f"{value}, 7" for value in plain])
    maria.once(len(plain))
    proof = maria.proven()
    assert proof.notes == [f"not all text of {name} is the same in UTF-8: see that no two of id become one there"]
    for value in values:
        maria.execute(f"INSERT INTO paged VALUES (_{name} x'{value}', 7)")
    with pytest.raises(PagingError, match=rf"cannot be asked for.*text of {name} that is another"):
        maria.proven()
    if name not in ("cp932", "sjis"):
        with pytest.raises(PagingError, match="cannot be asked for"):
            proof.check_page(maria.database.page(PageQueries(maria.declared()).by_key(None, 99)))


@pytest.mark.parametrize(
    ("select", "columns"),
    [
        ("SELECT id, c, CAST(t AS DATETIME) AS x, t FROM paged", "x"),
        ("SELECT id, c, COALESCE(t, d) AS x, YEAR(t) AS y FROM paged", "x, y"),
        ("SELECT id, c, t < d AS x FROM paged", "x"),
        ("SELECT id, c FROM paged WHERE t < d", "which rows there are"),
        ("SELECT * FROM todays", "x"),
    ],
)
def test_a_time_that_gets_the_date_of_today(maria: Table, select: str, columns: str) -> None:
    maria.filled(
        "id INT PRIMARY KEY, c INT NOT NULL, t TIME, d DATE", ["1, 7, NULL, NULL", "2, 7, '9:0', '2026-01-02'"]
    )
    maria.execute("CREATE OR REPLACE VIEW todays AS SELECT id, c, DATE(t) AS x FROM paged")
    with pytest.raises(PagingError, match=rf"says another thing each day.*; got: {columns};"):
        maria.proven(select)
    maria.proven("SELECT id, c, t, TIMESTAMP(d, t) AS x FROM paged")
    (row,) = maria.database.page(SourceQuery("SELECT YEAR(NOW()) > 2025 AND @@timestamp > 1700000000", {})).rows
    assert row == (1,)
    maria.execute("DROP VIEW todays")


def test_the_check_of_dates_holds_no_more_than_pages(maria: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageSize, "BYTES", 64 * 1024)
    rows = [f"{number}, 7, REPEAT('x', 16384)" for number in range(50)]
    maria.filled("id INT PRIMARY KEY, c INT NOT NULL, body LONGTEXT", rows)
    proof = maria.proven("SELECT * FROM paged")
    tracemalloc.start()
    try:
        proof._check_date_independence()
        assert tracemalloc.get_traced_memory()[1] < 512 * 1024
    finally:
        tracemalloc.stop()
