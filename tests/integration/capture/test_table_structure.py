"""What is asked of tables beside their rows, on real servers: another shape, and keys that act behind the cursor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from penstock.capture.checks.introspection import inspect_statement
from penstock.capture.checks.table_structure import foreign_key_caveats, table_fingerprint
from penstock.capture.polling.poller import Poller
from penstock.capture.source.base import SourceDatabase, SourceError
from penstock.capture.source.engines import ENGINES
from penstock.devstack.servers.mariadb import MariaDB
from penstock.model.capture import Capture, parse
from tests.support.captures import Source, opened, polled, until, url_of

DIALECTS = ("mysql", "postgres", "sqlite")
TABLES = ("child", "parent", "t", "o", "n", "unrelated", "parted")


class Place:
    """One engine's database, with a few tables."""

    def __init__(self, dialect: str, url: str) -> None:
        self.dialect = dialect
        self.database: SourceDatabase = ENGINES[dialect](make_url(url), timedelta(seconds=5))

    def sql(self, *statements: str) -> None:
        with self.database._connected() as c:
            for statement in statements:
                c.exec_driver_sql(statement)

    def clear(self) -> None:
        self.sql(
            "DROP VIEW IF EXISTS v", "DROP VIEW IF EXISTS v_inner", *(f"DROP TABLE IF EXISTS {name}" for name in TABLES)
        )

    def capture(self, columns: str = "id, a, b, c", table: str = "t") -> Capture:
        text = f"CAPTURE INTO t FROM {self.dialect} x KEY id CURSOR c AS SELECT {columns} FROM {table}"
        return parse(text, Path("t.sql"))


@pytest.fixture(params=DIALECTS)
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = url_of(request, tmp_path / "shapes.db")
    made = Place(request.param, url)
    made.clear()
    made.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, c INT)", "INSERT INTO t VALUES (1, 2, 3, 4)")
    yield made
    made.clear()
    made.database.close()


def seen(at: Place, declared: Capture) -> str:
    return table_fingerprint(at.database, declared, inspect_statement(declared, at.database).tables)


SWAP = (
    "ALTER TABLE t RENAME COLUMN a TO x",
    "ALTER TABLE t RENAME COLUMN b TO a",
    "ALTER TABLE t RENAME COLUMN x TO b",
)
OTHER = {
    "swapped": SWAP,
    "added": ("ALTER TABLE t ADD COLUMN d INT",),
    "dropped and added anew": ("ALTER TABLE t DROP COLUMN b", "ALTER TABLE t ADD COLUMN b INT"),
    "exchanged": (
        "CREATE TABLE n (id INT PRIMARY KEY, b INT, a INT, c INT)",
        "ALTER TABLE t RENAME TO o",
        "ALTER TABLE n RENAME TO t",
    ),
}


# Statements by which other rows come into the place of those that were there, and the columns stay as they are.
EMPTIED = {
    "mysql": {
        "emptied": "TRUNCATE TABLE {t}",
        "exchanged with a part": "ALTER TABLE parted EXCHANGE PARTITION p0 WITH TABLE {t}",
        "taken out of a part": "ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE o",
        "a part emptied": "ALTER TABLE {t} TRUNCATE PARTITION p0",
    },
    "postgres": {"emptied": "TRUNCATE TABLE {t}"},
}
PARTED = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (9), PARTITION p1 VALUES LESS THAN MAXVALUE)"


@pytest.mark.parametrize(
    ("at", "change"),
    [
        pytest.param(engine, change, id=f"{engine} {what}")
        for engine, of in EMPTIED.items()
        for what, change in of.items()
    ],
    indirect=["at"],
)
@pytest.mark.parametrize("name", ["t", "ün d-o.t"])
def test_other_rows_in_place_of_those_that_were_there(at: Place, change: str, name: str) -> None:
    table = f'"{name}"' if at.dialect == "postgres" else f"`{name}`"
    columns = "(id INT PRIMARY KEY, a INT, b INT, c INT)"
    parted = PARTED if "{t} EXCHANGE" in change or "{t} TRUNCATE" in change else ""
    at.sql(f"DROP TABLE IF EXISTS {table}", f"CREATE TABLE {table} {columns} {parted}", f"CREATE TABLE o {columns}")
    at.sql(f"CREATE TABLE parted {columns} {PARTED if at.dialect == 'mysql' else ''}")
    declared = at.capture(table=table)
    before = seen(at, declared)
    at.sql(f"INSERT INTO {table} VALUES (1, 2, 3, 4)", "CREATE TABLE unrelated (id INT)", "TRUNCATE TABLE unrelated")
    assert seen(at, declared) == before
    at.sql(change.format(t=table))
    assert seen(at, declared) != before
    at.sql(f"DROP TABLE {table}")


def test_two_tables_of_the_same_columns_that_swap_their_names(at: Place) -> None:
    at.sql("CREATE TABLE n (id INT PRIMARY KEY, a INT, b INT, c INT)")
    before = [seen(at, at.capture())]
    # At first their texts differ in SQLite too, by quotes that a new name gets.
    for _ in range(3):
        at.sql("ALTER TABLE t RENAME TO o", "ALTER TABLE n RENAME TO t", "ALTER TABLE o RENAME TO n")
        before.append(seen(at, at.capture()))
        assert before[-1] != before[-2]


def test_a_login_that_may_not_look_into_innodb_sees_the_columns_still(mariadb: MariaDB) -> None:
    with opened(mariadb) as database:
        assert database.storage_ids("demo", "nowhere") == []
        with database._connected() as c:
            c.exec_driver_sql("CREATE OR REPLACE TABLE looked (id INT PRIMARY KEY)")
        assert len(database.storage_ids("", "looked")) == 1
        with database._connected() as c:
            c.info["looks"] = False
        assert database.storage_ids("", "looked") == []
        with database._connected() as c:
            c.exec_driver_sql("DROP TABLE looked")


@pytest.mark.parametrize("column", ["feel", "feel[]", "felt"])
@pytest.mark.parametrize("at", ["postgres"], indirect=True)
def test_labels_of_an_enum_are_of_the_shape(at: Place, column: str) -> None:
    at.sql("DROP TYPE IF EXISTS feel CASCADE", "CREATE TYPE feel AS ENUM ('sad', 'ok')", "CREATE DOMAIN felt AS feel")
    at.sql(f"CREATE TABLE n (id INT PRIMARY KEY, a {column}, b INT, c INT)")
    declared = at.capture(table="n")
    before = seen(at, declared)
    at.sql("ALTER TYPE feel RENAME VALUE 'sad' TO 'blue'")
    assert seen(at, declared) != before
    at.sql("DROP TABLE n", "DROP TYPE feel CASCADE")


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
@pytest.mark.parametrize("columns", ["*", "id, a, b, c", "id, a + b AS a, b, c"])
def test_another_shape_is_seen_whatever_is_selected(at: Place, change: tuple[str, ...], columns: str) -> None:
    declared = at.capture(columns)
    before = seen(at, declared)
    at.sql("INSERT INTO t VALUES (2, 2, 3, 4)", "UPDATE t SET a = 7", "CREATE TABLE unrelated (id INT)")
    assert seen(at, declared) == before
    at.sql(*change)
    assert seen(at, declared) != before


def test_a_view_that_is_another_is_seen(at: Place) -> None:
    at.sql("CREATE VIEW v AS SELECT id, a, b, c FROM t")
    declared = at.capture(table="v")
    before = seen(at, declared)
    at.sql("DROP VIEW v", "CREATE VIEW v AS SELECT id, a, b + 1 AS b, c FROM t")
    assert seen(at, declared) != before


def test_a_view_is_another_if_what_it_reads_is(at: Place) -> None:
    inner = "CREATE VIEW v_inner AS SELECT id, a, b, c FROM t"
    at.sql(inner, "CREATE VIEW v AS SELECT id, a, b, c FROM v_inner")
    declared = at.capture(table="v")
    before = seen(at, declared)
    at.sql("INSERT INTO t VALUES (2, 2, 3, 4)")
    assert seen(at, declared) == before
    other = inner.replace("id, a, b", "id, a, b + 1 AS b")
    at.sql(*(("DROP VIEW v_inner", other) if at.dialect == "sqlite" else (other.replace("VIEW", "OR REPLACE VIEW"),)))
    assert seen(at, declared) != before


def test_a_table_is_found_by_the_name_the_engine_knows(at: Place) -> None:
    known = {"mysql": ("t", "demo.t"), "postgres": ("t", "T", "public.t"), "sqlite": ("t", "T", "main.t")}
    for number, name in enumerate(known[at.dialect]):
        before = seen(at, at.capture(table=name))
        at.sql(f"ALTER TABLE t ADD COLUMN d{number} INT")
        assert seen(at, at.capture(table=name)) != before, name


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("", []),
        ("ON DELETE CASCADE", ["deletes rows (ON DELETE CASCADE)"]),
        ("ON DELETE SET NULL", ["changes rows (ON DELETE SET NULL)"]),
        ("ON UPDATE CASCADE", ["changes rows (ON UPDATE CASCADE)"]),
        ("ON UPDATE CASCADE ON DELETE CASCADE", ["deletes rows", "changes rows (ON UPDATE CASCADE)"]),
        ("ON UPDATE RESTRICT ON DELETE NO ACTION", []),
    ],
)
def test_keys_that_act_behind_the_cursor_are_told(at: Place, rule: str, said: list[str]) -> None:
    at.sql(
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        f"CREATE TABLE child (id INT PRIMARY KEY, a INT, b INT, c INT, FOREIGN KEY (a) REFERENCES parent (id) {rule})",
    )
    declared = at.capture(table="child")
    found = list(foreign_key_caveats(at.database, declared, inspect_statement(declared, at.database).tables))
    at.sql("CREATE VIEW v AS SELECT id, a, b, c FROM child")
    view = at.capture(table="v")
    assert list(foreign_key_caveats(at.database, view, inspect_statement(view, at.database).tables)) == found
    assert len(found) == len(said)
    for sentence, part in zip(found, said, strict=True):
        assert sentence.startswith("child: foreign key ")
        assert "to parent " in sentence
        assert part in sentence
    parent = at.capture(table="parent", columns="id, id AS c")
    assert list(foreign_key_caveats(at.database, parent, inspect_statement(parent, at.database).tables)) == []


def two(source: Source) -> None:
    """Rows that do not change again, and one that does."""
    source.sql(
        f"ALTER TABLE {source.name} ADD COLUMN a INT, ADD COLUMN b INT",
        f"INSERT INTO {source.name} (name, a, b, changed) VALUES ('x', 1, 2, '2020-01-01'), ('y', 3, 4, '2020-01-01')",
        f"INSERT INTO {source.name} (name, a, b) VALUES ('z', 5, 6)",
    )


@pytest.mark.parametrize("columns", ["*", "id, gone, changed, a, b"])
@pytest.mark.parametrize("restarted", [False, True])
def test_columns_that_swap_their_names(
    source: Source, monkeypatch: pytest.MonkeyPatch, columns: str, restarted: bool
) -> None:
    monkeypatch.setattr(Poller, "TABLE_CHECK_SECONDS", 0.0)
    two(source)
    poller = source.poller("snapshot", columns=columns)
    until(
        poller, lambda: poller.position.low is not None and not poller.position.reconcile, "the low watermark comes on"
    )
    before = source.topic()
    if restarted:
        source.close(poller)
    source.sql(f"ALTER TABLE {source.name} RENAME COLUMN a TO b, RENAME COLUMN b TO a")
    assert before == source.topic() != source.table(columns)
    if restarted:
        poller = source.poller(columns=columns)
    found = poller.position.last_reconcile
    until(poller, lambda: poller.position.last_reconcile != found, "all is compared")
    assert source.topic() == source.table(columns)
    assert poller.position.last_reconcile.explained
    assert poller.position.last_reconcile.differing >= 2


def test_a_table_that_was_emptied_or_exchanged(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Poller, "TABLE_CHECK_SECONDS", 0.0)
    two(source)
    poller = source.poller()
    until(poller, lambda: poller.position.low is not None, "the low watermark comes on")
    source.sql(f"CREATE TABLE {source.name}_new LIKE {source.name}")
    source.sql(f"INSERT INTO {source.name}_new (id, a, changed) VALUES (1, 7, '2020-01-01')")
    source.sql(f"RENAME TABLE {source.name} TO {source.name}_old, {source.name}_new TO {source.name}")
    until(poller, source.same, "the rows of the new table are there, and those of the old are not")
    assert len(source.topic()) == 1


def test_a_view_that_leaves_rows_out_is_refused_before_any_is_taken_for_gone(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Poller, "TABLE_CHECK_SECONDS", 0.0)
    two(source)
    view = f"CREATE OR REPLACE VIEW {source.name}_v AS SELECT * FROM {source.name}"
    source.sql(view)
    try:
        text = source.declared().replace(f"FROM {source.name}", f"FROM {source.name}_v")
        poller = source.opened(text)
        until(poller, source.same, "all rows are there")
        source.sql(f"{view} LIMIT 1")
        with pytest.raises(SourceError, match=f"LIMIT in the view '{source.name}_v'"):
            polled(poller, 5)
        source.close(poller)
        poller = source.opened(text, "snapshot")
        with pytest.raises(SourceError, match=f"LIMIT in the view '{source.name}_v'"):
            poller.step()
        assert source.same()
        source.sql(view, f"UPDATE {source.name} SET name = 'new' WHERE id = 1")
        until(poller, source.same, "it goes on when the view is mended")
    finally:
        source.sql(f"DROP VIEW {source.name}_v")


def test_a_changed_statement_writes_all_rows_anew_and_tombstones_for_those_that_it_leaves_out(source: Source) -> None:
    source.sql(*(f"INSERT INTO {source.name} (name, changed) VALUES ('{i}', '2020-01-01')" for i in range(30)))
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('new')")
    poller = source.poller()
    until(poller, lambda: poller.position.low is not None and not poller.position.reconcile, "it polls")
    assert source.same()
    source.close(poller)
    columns = "id, gone, changed, UPPER(name) AS name"
    text = source.declared(columns=columns).replace(f"FROM {source.name}", f"FROM {source.name} WHERE id > 8")
    poller = source.opened(text)
    assert poller.position.reconcile == "the statement was changed"
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('later')")
    until(poller, lambda: not poller.position.reconcile and poller.metrics.polls > 1, "all is compared")
    table = source.table(columns)
    assert source.topic() == {key: row for key, row in table.items() if json.loads(key)["id"] > 8}
    assert len(table) == 32
    drift = poller.position.last_reconcile
    assert drift.extra == 8
    # Once that is done, it is as before.
    source.close(poller)
    assert source.opened(text).position.reconcile == ""


def written_after_a_restart(source: Source, poller: Poller, **options: Any) -> Poller:
    source.close(poller)
    poller = source.poller(**options)
    polled(poller, 3)
    return poller


def test_a_statement_that_computes_a_lower_cursor_hides_no_later_change(source: Source) -> None:
    name, columns = source.name, "id, name, gone, {} AS changed"
    source.sql(
        f"ALTER TABLE {name} ADD COLUMN a BIGINT, ADD COLUMN b BIGINT",
        f"INSERT INTO {name} (name, a, b) SELECT seq, 1000 + seq, seq FROM seq_1_to_20",
    )
    poller = source.poller(columns=columns.format("a"))
    until(poller, lambda: poller.position.low == 1020, "the low watermark comes on")
    source.close(poller)
    poller = source.poller(columns=columns.format("b"))
    assert poller.position.low is None
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    source.sql(f"INSERT INTO {name} (name, a, b) VALUES ('later', 1, 21)")
    polled(poller, 2)
    assert source.topic() == source.table(columns.format("b"))


def test_a_release_writes_no_row_that_is_the_same(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name, gone) SELECT seq, seq = 7 FROM seq_1_to_100")
    poller = source.poller()
    until(poller, lambda: poller.position.low is not None, "the low watermark comes on")
    poller = written_after_a_restart(source, poller)
    assert (poller.metrics.written, poller.metrics.read >= 100) == (0, True)
    # What changed meanwhile is written, whatever the file of the comparison knew.
    source.close(poller)
    source.sql(
        f"UPDATE {source.name} SET name = 'other' WHERE id = 1",
        f"UPDATE {source.name} SET gone = 1 WHERE id = 2",
        f"UPDATE {source.name} SET gone = 0 WHERE id = 7",
        f"INSERT INTO {source.name} (name) VALUES ('new')",
    )
    poller = source.poller()
    polled(poller, 3)
    assert poller.metrics.written == 4
    assert source.same()


def test_a_release_that_lost_its_file_reads_the_topic(source: Source, home: Path) -> None:
    source.sql(f"INSERT INTO {source.name} (name) SELECT seq FROM seq_1_to_100")
    poller = source.poller()
    until(poller, lambda: poller.position.low is not None, "the low watermark comes on")
    source.close(poller)
    for file in (home / "captures").glob("*"):
        file.unlink()
    poller = source.poller()
    polled(poller, 3)
    assert poller.metrics.written == 0
    # And one that has no time for that writes again.
    source.close(poller)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Poller, "TOPIC_READ_SECONDS", 0.0)
        poller = source.poller()
        polled(poller, 3)
    assert poller.metrics.written == 100
    assert source.same()
