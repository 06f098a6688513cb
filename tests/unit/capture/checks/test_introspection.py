"""What a database tells of a statement, what `explain` says of its promises, and where an error is put: on SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from penstock.capture import explain
from penstock.capture import factory as start
from penstock.capture.checks.diagnostics import with_source_location
from penstock.capture.output.encode import EncodingError
from penstock.capture.source.base import SourceError
from penstock.errors import BrokerError, DeclarationError, PenstockError
from penstock.model.capture import Capture, parse

HEAD = "CAPTURE INTO t\nFROM sqlite shop\nKEY (id)\nCURSOR at{more}\nAS\n"
SETUP = """
CREATE TABLE a (id INTEGER PRIMARY KEY, b INT, at INT, gone INT, whole INT GENERATED ALWAYS AS (b * 2) VIRTUAL);
CREATE TABLE b (id INTEGER PRIMARY KEY, title TEXT, at INT);
CREATE TABLE child (
  id INTEGER PRIMARY KEY, at INT, a INT REFERENCES a (id) ON UPDATE SET NULL ON DELETE CASCADE, b INT REFERENCES b (id)
);
CREATE INDEX cursor ON a (at, id);
INSERT INTO a VALUES (1, 1, 1, 0), (2, 9, 2, 1);
INSERT INTO b VALUES (1, 'one', 1);
CREATE VIEW plain AS SELECT id, at, gone FROM a WHERE b > 0;
CREATE VIEW onto AS SELECT * FROM plain;
CREATE VIEW some AS SELECT id, at FROM a LIMIT 5;
CREATE VIEW both AS SELECT id, at FROM a UNION ALL SELECT id, at FROM b;
CREATE VIEW fresh AS SELECT id, at, datetime('now') AS seen FROM a;
CREATE VIEW deep AS SELECT * FROM some;
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.executescript(SETUP)
    connection.close()
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", f"sqlite:///{tmp_path / 'shop.db'}")


def declared(select: str, more: str = "") -> Capture:
    return parse(HEAD.format(more=more) + select, Path("sql/captures/t.sql"))


def test_a_plain_statement_weakens_what_sqlite_does_and_no_more() -> None:
    found = explain.explain(declared("SELECT id, at, gone FROM a", "\nDELETED WHEN (gone)\nRECONCILE EVERY 1 DAY"))
    weakened = [warning for warning in found.warnings if not warning.startswith("a poll costs")]
    assert len(weakened) == 2
    assert weakened[0].startswith("a committed change is in the topic a poll later: SQLite does not show them")
    assert "no trigger sets at when a row of a changes" in weakened[1]
    assert len(found.queries) == 10
    assert "FROM (SELECT id, at, gone FROM a) AS q" in found.queries[0].sql


@pytest.mark.parametrize(
    ("select", "promise", "by"),
    [
        ("SELECT id, at FROM a WHERE b > 0", "what the SELECT no longer gives", "DELETED WHEN ((b > 0) IS NOT TRUE)"),
        ("SELECT id, at FROM a", "what the SELECT no longer gives", "not a row that is deleted"),
        ("SELECT a.id, a.at, title FROM a JOIN b ON b.id = a.b", "a committed change", "not a change in b alone"),
        ("SELECT a.id, b.at, title FROM a JOIN b ON b.id = a.b", "a committed change", "not a change in a alone"),
        ("SELECT id, at, (SELECT title FROM b WHERE b.id = a.b) AS x FROM a", "a committed change", "in b alone"),
        ("SELECT id, at FROM a WHERE EXISTS (SELECT 1 FROM b)", "a committed change", "in b alone"),
        ("SELECT id, at FROM onto", "a committed change", "not a change in the view plain that leaves at as it was"),
        ("SELECT id, at, whole FROM a", "a committed change", "a.whole is generated"),
        ("SELECT id, at FROM child", "child: foreign key from a to a deletes rows (ON DELETE CASCADE)", "no poll sees"),
        ("SELECT id, at FROM child", "child: foreign key from a to a changes rows (ON UPDATE SET NULL)", "cursor at"),
        ("SELECT id, b AS at FROM a", "a poll costs what changed", "no index serves a in `poll, first page`"),
    ],
)  # fmt: skip
def test_explain_says_which_promise_is_weakened_by_what(select: str, promise: str, by: str) -> None:
    found = explain.explain(declared(select))
    assert not [w for w in found.warnings if "from b to b" in w]
    assert [w for w in found.warnings if w.startswith(promise) and by in w]


@pytest.mark.parametrize(
    ("select", "place", "message"),
    [
        ("SELECT id, at FROM some", "6:20", "cannot page through LIMIT; got: LIMIT in the view 'some'"),
        ("SELECT id, at\nFROM deep", "7:6", "cannot page through LIMIT; got: LIMIT in the view 'some' of 'deep'"),
        ("SELECT id, at FROM both", "6:20", "cannot page through UNION; got: UNION in the view 'both'"),
        ("SELECT id, at FROM fresh", "6:20", "says another thing at each poll; got: 'now' in the view 'fresh'"),
        ("SELECT id, at FROM nowhere", "6:20", "no such table: nowhere"),
        ("SELECT id, at, title FROM a", "6:16", "no such column: title"),
        ("SELECT * FROM b AS a WHERE\n gone = 1", "7:2", "no such column: gone"),
        ('SELECT id, at, "title" FROM a', "6:16", """SQLite takes it for a text; got: "title";"""),
        ('SELECT id, at, strftime("%Y", at) AS year FROM a', "6:25", """SQLite takes it for a text; got: "%Y";"""),
    ],
)  # fmt: skip
def test_what_the_database_refuses_names_its_place(select: str, place: str, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        explain.first_row(declared(select))
    assert str(refused.value).startswith(f"sql/captures/t.sql:{place}: ")
    assert "capture t" in str(refused.value)
    assert message in str(refused.value)


def test_a_condition_of_deleted_knows_the_columns_alone() -> None:
    with pytest.raises(SourceError, match=r"SQLite takes it for a text; got: \"gone\""):
        explain.first_row(declared("SELECT * FROM b", more='\nDELETED WHEN ("gone")'))
    explain.first_row(declared('SELECT "id", "a"."at", "b" AS "gone", "rowid" AS n FROM a', '\nDELETED WHEN ("gone")'))
    explain.first_row(declared('SELECT a.id, a.at, "value" FROM a, json_each(a.b)'))


def test_a_column_by_the_name_of_the_one_that_pages_have() -> None:
    capture = declared("SELECT id, at, b AS penstock_deleted FROM a")
    with pytest.raises(PenstockError, match=r"selects a column whose name is taken; got: penstock_deleted"):
        explain.first_row(capture)


def test_a_key_that_star_does_not_give_is_put_at_its_clause() -> None:
    capture = parse("CAPTURE INTO t FROM sqlite shop KEY (ident) CURSOR at AS SELECT * FROM a", Path("t.sql"))
    with pytest.raises(
        SourceError, match=r"^t.sql:1:33: capture t: KEY names a column that is not selected: .*q.ident"
    ):
        explain.first_row(capture)
    capture = parse("CAPTURE INTO t FROM sqlite shop KEY (id) CURSOR ats AS SELECT * FROM a", Path("t.sql"))
    with pytest.raises(PenstockError, match=r"^t.sql:1:42: .*selects no column ats|^t.sql:1:42: .*is not selected"):
        explain.first_row(capture)


def test_a_connection_nobody_gave_is_put_at_its_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SHOP")
    with pytest.raises(DeclarationError, match=r"^sql/captures/t.sql:2:1: capture t: connection shop is missing"):
        explain.first_row(declared("SELECT * FROM a"))


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (SourceError("a column of type FLOAT", got="b"), "sql/captures/t.sql:6:12: capture t: a column of type FLOAT"),
        (EncodingError("column b has a type that cannot be captured"), "sql/captures/t.sql:6:12: capture t: column b"),
        (SourceError("did not", got="OperationalError: Can't connect"), "sql/captures/t.sql:2:1: capture t: did not"),
        (SourceError("did not", got="(1054, \"Unknown column 'q.id2' in 'WHERE'\")"), "sql/captures/t.sql:6:1: "),
        (PenstockError("capture t met a row without a key"), "sql/captures/t.sql:3:1: capture t met"),
        (start.PositionRefused("topic t is not the one that capture t wrote"), "sql/captures/t.sql:1:1: topic t"),
        (BrokerError("the broker is away"), "the broker is away"),
        (PenstockError("sql/captures/t.sql:9:9: said already"), "sql/captures/t.sql:9:9: said already"),
    ],
)  # fmt: skip
def test_each_error_is_put_where_it_belongs(error: PenstockError, start: str) -> None:
    with pytest.raises(type(error)) as found, with_source_location(declared("SELECT id, b, at FROM a")):
        raise error
    assert str(found.value).startswith(start)
    assert found.value is error
