"""The demo tables, their editor, the captures that are declared on them, and what `penstock capture` says of those."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from penstock import catalog
from penstock.capture import explain
from penstock.cli import app
from penstock.devstack.demo_database import DemoDatabase, DemoError
from penstock.settings import PROJECT

TABLES = ["accounts", "alert_rules", "businesses", "labels", "tests"]


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


def test_tables_are_made_once(demo: DemoDatabase) -> None:
    assert demo.create() == []
    assert demo.tables == TABLES
    demo.remove("accounts", {"id": "1"}, hard=True)
    assert demo.create() == []
    assert [row[0] for row in demo.rows("accounts")[1]] == [2, 3]


def test_rows_are_added_changed_and_removed(demo: DemoDatabase) -> None:
    assert "added to accounts: id=4" in run("demo", "add", "accounts", "name=It's 100% new: yes")
    assert "It's 100% new: yes" in run("demo", "show", "accounts")
    run("demo", "edit", "labels", "test_id=1,name=region", "value=us")
    assert "us" in run("demo", "show", "labels")
    run("demo", "remove", "tests", "2")
    assert dict(zip(*[demo.rows("tests")[0], demo.rows("tests")[1][1]], strict=True))["deleted"] == 1
    run("demo", "remove", "tests", "2", "--hard")
    assert len(demo.rows("tests")[1]) == 2
    assert run("demo", "live", "--every", "0", "--changes", "30").count("\n") == 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("edit", "accounts", "1", "nam=x"), "no such column; got: nam; hint: use some of: id, name"),
        (("edit", "nothing", "1", "name=x"), "no such table in the demo database; got: nothing"),
        (("edit", "labels", "1", "value=x"), "not the key of table labels; got: id; hint: give test_id="),
        (
            ("edit", "accounts", "77", "name=x"),
            "table accounts has no such row, or the row has these values already; got: 77",
        ),
        (("add", "accounts", "name"), "this is no COLUMN=VALUE; got: name"),
        (("add", "accounts", "name=x", "plan=gold"), "the demo database did not do it"),
    ],
)
def test_what_cannot_be_done_says_why(demo: DemoDatabase, words: tuple[str, ...], message: str) -> None:  # noqa: ARG001
    assert message in run("demo", *words, code=1)


def test_a_table_that_is_not_there(demo: DemoDatabase) -> None:
    with pytest.raises(DemoError):
        demo.rows("nothing")


def test_every_declared_capture_is_served_by_indexes(demo: DemoDatabase) -> None:  # noqa: ARG001
    captures = catalog.load(PROJECT).captures
    assert set(captures) == set(TABLES)
    for capture in captures.values():
        found = explain.explain(capture)
        # The cursor of a test is the later one of two tables.
        cost = capture.name == "tests" and "a poll costs what changed: no index serves"
        assert [w for w in found.warnings if not (cost and w.startswith(cost))] == [], capture.name
        assert len(found.queries) == 10


def test_check_and_explain(demo: DemoDatabase) -> None:
    assert run("capture", "check").count("✓") == len(TABLES)
    said = run("capture", "explain", "accounts")
    assert "by index updated" in said
    assert "ORDER BY" in said
    with demo._engine.begin() as c:
        c.exec_driver_sql("ALTER TABLE accounts DROP KEY updated")
        c.exec_driver_sql("ALTER TABLE labels DROP COLUMN updated_at")
    assert "no index serves" in run("capture", "explain", "accounts")
    failed = run("capture", "check", "accounts", "labels", code=1)
    assert "✓ accounts" in failed
    assert "CURSOR names a column that is not selected" in " ".join(failed.split())
    assert "did you mean accounts" in run("capture", "explain", "account", code=2)
