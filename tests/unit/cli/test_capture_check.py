"""`penstock capture check` with databases that answer, that refuse and that are away."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app, captures
from penstock.host.ports import free_port
from penstock.model.capture import Capture, parse
from tests.chaos.projects import other_project

pytestmark = pytest.mark.processes

TEXT = "CAPTURE INTO {name} FROM {engine} {name} KEY (id) CURSOR at AS SELECT id, at FROM {table}"


@pytest.fixture(autouse=True)
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that can be captured, one whose table is not there, one whose server is away, one without a connection."""
    with closing(sqlite3.connect(tmp_path / "x.db")) as c, c:
        c.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, at INT)")
    for name in ("good", "bad"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", f"sqlite:///{tmp_path / 'x.db'}")
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", f"mysql://u:secret@127.0.0.1:{free_port()}/x")
    given = {"good": ("sqlite", "a"), "bad": ("sqlite", "b"), "away": ("mysql", "a"), "none": ("mysql", "a")}
    made = {
        name: parse(TEXT.format(name=name, engine=engine, table=table), Path(f"{name}.sql"))
        for name, (engine, table) in given.items()
    }

    def named(names: list[str] | None) -> list[Capture]:
        return [made[name] for name in names or made]

    monkeypatch.setattr(captures, "captures", named)


def check(*words: str, code: int) -> str:
    done = CliRunner().invoke(app, ["capture", "check", *words])
    assert done.exit_code == code, done.output
    assert "secret" not in done.output
    return " ".join(done.output.split())


def test_a_reachable_database_is_queried() -> None:
    assert "✓ good: topic good, columns id, at; there are no rows yet" in check("good", code=0)
    assert "✗ bad: bad.sql:1:75: capture bad: a query of a capture failed" in check("bad", code=1)


def test_an_unreachable_database_fails_only_with_connected() -> None:
    assert "✓ away: the declaration is valid; its database is not reachable" in check("away", code=0)
    assert "✗ away: away.sql:1:19: capture away:" in check("away", "--connected", code=1)


def test_a_missing_connection_is_an_error() -> None:
    assert "✗ none: none.sql:1:19: capture none: connection none is missing" in check("none", code=1)


def test_no_database_is_queried_with_no_connected() -> None:
    assert check("--no-connected", code=0).count("the declaration is valid") == 4


def test_an_invalid_file_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "sql" / "captures"
    folder.mkdir(parents=True)
    (folder / "torn.sql").write_text("CAPTURE INTO")
    with other_project(tmp_path, {}):
        said = check("--no-connected", code=1)
        assert "✗ torn: " in said
        assert "✓ good: the declaration is valid" in said
        assert "torn" not in check("good", "--no-connected", code=0)


def test_explain_prints_queries_plans_and_warnings(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as c, c:
        c.execute("CREATE INDEX by_at ON a (at, id)")
    done = CliRunner().invoke(app, ["capture", "explain", "good"])
    assert done.exit_code == 0, done.output
    queries = " ".join(done.output.split()).split(" SELECT q.*")[1:]
    assert len(queries) == 7
    assert all(" by index " in query or " by a full scan" in query for query in queries)
    assert "poll, further pages" in done.output
    assert "a by index by_at" in queries[4]
    said = " ".join(done.output.split())
    assert "warning: what the SELECT no longer gives is no longer in the topic: not a row that is deleted" in said
    refused = CliRunner().invoke(app, ["capture", "explain", "bad"])
    assert refused.exit_code == 1
    assert "bad.sql:1:75: capture bad: a query of a capture failed" in " ".join(refused.output.split())
