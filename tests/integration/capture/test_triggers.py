"""What explain says of triggers, of a cursor's own ON UPDATE, and of what changes rows behind it: on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url

from penstock.capture.checks.introspection import inspect_statement
from penstock.capture.checks.triggers import trigger_caveats
from penstock.capture.source.base import SourceDatabase
from penstock.capture.source.engines import ENGINES
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.model.capture import parse
from tests.support.captures import url_of

NOW = {"mysql": "NOW(6)", "postgres": "now()", "sqlite": "strftime('%Y-%m-%d %H:%M:%f')"}
TABLES = "CREATE TABLE tr (id INT PRIMARY KEY, b INT, changed {time} NULL)", "CREATE TABLE tr_o (id INT PRIMARY KEY)"


class WithTriggers(MariaDB):
    # Who has not made the binary log trust them may not make triggers.
    SETUP = MariaDB.SETUP + "SET GLOBAL log_bin_trust_function_creators = 1;\n"


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with WithTriggers(home=tmp_path_factory.mktemp("triggers"), port=free_port()) as server:
        yield server


class Place:
    def __init__(self, dialect: str, database: SourceDatabase) -> None:
        self.dialect, self.database, self._count = dialect, database, 0

    def sql(self, *statements: str) -> None:
        with self.database._connected() as c:
            for statement in statements:
                given = statement.replace("{now}", NOW[self.dialect])
                c.exec_driver_sql(given if self.dialect == "sqlite" else given.replace("%", "%%"))

    def trigger(self, on: str, body: str, when: str = "BEFORE UPDATE") -> None:
        """A trigger `a` with a body as MariaDB and PostgreSQL have it."""
        if self.dialect == "postgres":
            self._count += 1
            body = body.replace("SET NEW.", "NEW.")
            self.sql(
                f"CREATE FUNCTION tr_f{self._count}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN {body}; RETURN NEW; END $$",
                f"CREATE TRIGGER a{self._count} {when} ON {on} FOR EACH ROW EXECUTE FUNCTION tr_f{self._count}()",
            )
        else:
            each = "FOR EACH ROW " if self.dialect == "mysql" else ""
            self._count += 1
            self.sql(f"CREATE TRIGGER a{self._count} {when} ON {on} {each}BEGIN {body}; END")

    def said(self, select: str = "SELECT * FROM tr") -> list[str]:
        text = f"CAPTURE INTO t FROM {self.dialect} x KEY (id) CURSOR changed AS {select}"
        capture = parse(text, Path("t.sql"))
        tables = inspect_statement(capture, self.database).tables
        return [found.split(": ", 1)[1] for found in trigger_caveats(self.database, capture, tables)]

    def clear(self) -> None:
        cascade = " CASCADE" if self.dialect == "postgres" else ""
        self.sql("DROP VIEW IF EXISTS tr_v", f"DROP TABLE IF EXISTS tr{cascade}", f"DROP TABLE IF EXISTS tr_o{cascade}")
        for number in range(1, self._count + 1) if self.dialect == "postgres" else ():
            self.sql(f"DROP FUNCTION IF EXISTS tr_f{number}")


@pytest.fixture(params=["mysql", "postgres", "sqlite"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = url_of(request, tmp_path / "triggers.db", mariadb="trusting")
    database = ENGINES[request.param](make_url(url), timedelta(seconds=5))
    made = Place(request.param, database)
    made.clear()
    made.sql(*(one.format(time="TIMESTAMP(6)") for one in TABLES))
    yield made
    made.clear()
    database.close()


def keeps(at: Place, on: str = "") -> None:
    """The usual trigger that keeps the cursor."""
    if at.dialect == "sqlite":
        body = "UPDATE tr SET changed = {now} WHERE id = NEW.id"
        at.trigger("tr", body, f"AFTER UPDATE{on}")
    else:
        at.trigger("tr", "SET NEW.changed = {now}", f"BEFORE UPDATE{on}")


def test_a_cursor_that_nobody_keeps_is_told(at: Place) -> None:
    [said] = at.said()
    assert "sets changed when a row of tr changes" in said
    assert at.said("SELECT id, b, changed FROM tr AS x WHERE b > 0") == [said]
    at.sql("CREATE VIEW tr_v AS SELECT id, b, changed FROM tr")
    assert at.said("SELECT * FROM tr_v") == [said]
    keeps(at)
    assert at.said() == at.said("SELECT * FROM tr_v") == []


def test_a_cursor_that_keeps_itself(at: Place) -> None:
    if at.dialect == "mysql":  # the others have none
        at.sql("ALTER TABLE tr MODIFY changed TIMESTAMP(6) NULL ON UPDATE CURRENT_TIMESTAMP(6)")
        assert at.said() == []
        # It goes before.
        at.trigger("tr", "SET NEW.changed = OLD.changed")
        [said] = at.said()
        assert "trigger a1 of tr sets changed to OLD.changed; a change is seen only if that grows" in said


def test_a_trigger_of_some_changes_only(at: Place) -> None:
    if at.dialect == "mysql":
        return  # it has none
    keeps(at, " OF b")
    [said] = at.said()
    assert "trigger a1 of tr sets changed of some changes only" in said


def test_a_trigger_that_is_disabled(at: Place) -> None:
    keeps(at)
    if at.dialect == "postgres":
        at.sql("ALTER TABLE tr DISABLE TRIGGER a1")
        said = " ".join(at.said())
        assert "trigger a1 of tr is disabled, and sets changed of no change" in said
        assert "no trigger sets changed" in said


def test_a_trigger_that_sets_a_cursor_that_may_not_grow(at: Place) -> None:
    if at.dialect != "sqlite":
        at.trigger("tr", "SET NEW.changed = COALESCE(NEW.changed, OLD.changed)")
        [said] = at.said()
        assert "sets changed to COALESCE(NEW.changed, OLD.changed); a change is seen only if" in said


def test_a_trigger_of_another_table_that_changes_rows(at: Place) -> None:
    at.trigger("tr_o", "UPDATE tr SET b = 7 WHERE id = NEW.id", "AFTER INSERT")
    said = at.said()
    assert len(said) == 2
    assert "trigger a1 of tr_o changes rows of tr and leaves changed as it was" in said[1]
    keeps(at)
    assert at.said() == []


def test_a_trigger_of_another_table_that_sets_the_cursor_too(at: Place) -> None:
    at.trigger("tr_o", "UPDATE tr SET b = 7, changed = {now} WHERE id = NEW.id", "AFTER INSERT")
    assert len(at.said()) == 1


def test_a_trigger_that_deletes_rows(at: Place) -> None:
    keeps(at)
    at.trigger("tr_o", "DELETE FROM tr WHERE id = NEW.id", "AFTER INSERT")
    assert at.said() == ["not a row of tr that trigger a2 of tr_o deletes, until the next reconcile"]


def test_a_trigger_that_changes_other_rows_of_its_table(at: Place) -> None:
    if at.dialect == "mysql":
        return  # it may not
    if at.dialect == "sqlite":
        # It does not run for what it did itself.
        at.trigger(
            "tr", "UPDATE tr SET changed = {now} WHERE id = NEW.id; UPDATE tr SET b = 1 WHERE id = 9", "AFTER UPDATE"
        )
        [said] = at.said()
        assert "trigger a1 of tr changes rows of tr and leaves changed as it was" in said
        at.sql("INSERT INTO tr VALUES (1, 0, 'old'), (9, 0, 'old')", "UPDATE tr SET b = 2 WHERE id = 1")
        with at.database._connected() as c:
            assert c.exec_driver_sql("SELECT b, changed FROM tr WHERE id = 9").one() == (1, "old")
    else:
        keeps(at)
        at.trigger("tr", "UPDATE tr SET b = 1 WHERE id = 9 AND b <> 1", "AFTER UPDATE")
        assert at.said() == []
