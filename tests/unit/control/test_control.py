"""The control database: rows that another inserts first, values that no column takes, requests, what drivers end by."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Table, event, select

from penstock.control import Actor, Control, ProgressRow, database, schema, tables
from penstock.control.repositories.apps import DeclaredApps
from penstock.control.repositories.data_loss import DataLoss
from penstock.errors import ControlError
from tests.support.control_tables import create_tables

ME = Actor("me", "cli")


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """App `a` with the streams `s` and `t`."""
    made = Control(f"sqlite:///{tmp_path / 'control.db'}")
    create_tables(made)
    with made.engine.begin() as c:
        c.execute(tables.app.insert().values(name="a", release_seq=0, restarts=0))
        for name in ("s", "t"):
            c.execute(tables.stream.insert().values(name=name, app="a", desired="on"))
    yield made
    made.engine.dispose()


# Rows


def test_a_row_that_cannot_be_inserted_is_not_taken_for_there(control: Control) -> None:
    with pytest.raises(ControlError, match="NOT NULL"), control.begin() as c:
        database.insert_if_new(c, tables.stream, name="u", app="a", desired=None)
    with control.begin() as c:
        assert database.insert_if_new(c, tables.stream, name="s", app="a", desired="on") == 0


def test_a_row_that_another_inserts_first_gets_the_values_all_the_same(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_if_new = database.insert_if_new

    def slower(c: Connection, table: Table, **values: Any) -> int:
        c.execute(table.insert().values(name="topic", at=1, partitions=1, sender="another"))
        return insert_if_new(c, table, **values)

    monkeypatch.setattr(database, "insert_if_new", slower)
    control.record_heartbeat("topic", 2, 4, "me")
    assert dict(control.heartbeats()["topic"]) == {"name": "topic", "at": 2, "partitions": 4, "sender": "me"}


# Reports

HUGE = 2**70


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"error": "x" * 70_000}, {"error": "x" * 4000}),
        ({"error": "a\0b\ud800"}, {"error": "ab?"}),
        ({"rows_per_s": float("inf")}, {"rows_per_s": 0.0}),
        ({"rows_per_s": float("nan")}, {"rows_per_s": 0.0}),
        ({"lag": float("nan")}, {"lag": None}),
        ({"rows_in": HUGE, "batch_ms": -HUGE}, {"rows_in": 2**63 - 1, "batch_ms": 1 - 2**31}),
        (
            {"store": {"destination": "p" * 5000, "written_per_s": float("inf")}},
            {"store": {"destination": "p" * 4000, "written_per_s": None}},
        ),
    ],
    ids=["a long text", "no character", "inf", "nan", "no lag", "huge", "a store"],
)
def test_figures_that_no_column_takes_are_bounded(
    control: Control, given: dict[str, Any], written: dict[str, Any]
) -> None:
    assert control.report([ProgressRow("s", "a", "i", **given)], keep=True) == {}
    row = vars(control.progress()["s"])
    assert {name: row[name] for name in written} == written


def test_a_row_that_is_refused_keeps_no_other_from_being_written(control: Control) -> None:
    bad = ProgressRow("s", "a", "i", rows_in=None)  # type: ignore[arg-type]
    refused = control.report([bad, ProgressRow("t", "a", "i", rows_in=7)], keep=True)
    assert refused.keys() == {"s"}
    assert "NOT NULL" in refused["s"]
    assert {name: row.rows_in for name, row in control.progress().items()} == {"t": 7}
    assert [row["name"] for row in control.history(0)] == ["t"]
    odd = ProgressRow("s", "a", "i", topics={"x": object()})
    assert control.report([odd, ProgressRow("t", "a", "i", rows_in=8)], keep=False).keys() == {"s"}
    with control.begin() as c:
        assert c.execute(select(tables.progress.c.rows_in)).scalars().all() == [8]


# Migration


def differences(control: Control) -> list[Any]:
    """What Alembic would change in the database for its tables to be those of `tables.metadata`."""
    with control.begin() as c:
        options = {"include_object": schema.is_own, "compare_type": True}
        return list(compare_metadata(MigrationContext.configure(c, opts=options), tables.metadata))


def test_the_migrations_make_the_declared_tables(control: Control) -> None:
    assert differences(control) == []
    assert control.schema_revision() == (schema.head(), schema.head())


def test_a_migration_may_be_repeated_and_changes_no_row(control: Control) -> None:
    control.migrate()
    assert control.desired() == {"s": "on", "t": "on"}


def test_a_first_migration_that_was_cut_off_is_finished(control: Control) -> None:
    with control.engine.begin() as c:
        c.exec_driver_sql(f"DELETE FROM {schema.VERSION_TABLE}")
        c.exec_driver_sql("DROP TABLE lease")
        c.exec_driver_sql("DROP INDEX ix_action_request")
    control.migrate()
    assert differences(control) == []


def test_tables_without_a_version_are_refused(control: Control) -> None:
    with control.engine.begin() as c:
        c.exec_driver_sql(f"DROP TABLE {schema.VERSION_TABLE}")
    with pytest.raises(
        ControlError, match=r"the tables of the control database have no version.*PENSTOCK_CONTROL_URL to an empty"
    ):
        control.migrate()


def test_tables_of_a_later_version_are_refused(control: Control) -> None:
    with control.engine.begin() as c:
        c.exec_driver_sql(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(ControlError, match=r"a later version of Penstock; got: revision 9999; this code has \d+; hint"):
        control.migrate()


def test_tables_of_others_are_left_alone(tmp_path: Path) -> None:
    made = Control(f"sqlite:///{tmp_path / 'shared.db'}")
    with made.engine.begin() as c:
        c.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        c.exec_driver_sql("INSERT INTO alembic_version VALUES ('airflow')")
        c.exec_driver_sql("CREATE TABLE dag (dag_id VARCHAR(250))")
    made.migrate()
    assert differences(made) == []
    with made.engine.begin() as c:
        assert c.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "airflow"
    made.engine.dispose()


def test_several_that_migrate_at_once_make_one_schema(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Control(url).migrate(), range(4)))
    assert differences(Control(url)) == []


def test_declarations_are_inserted_in_one_order_so_that_two_processes_do_not_deadlock(control: Control) -> None:
    inserted: list[str] = []

    def sent(_: Any, __: Any, statement: str, values: Any, ___: Any, ____: Any) -> None:
        if statement.startswith("INSERT INTO"):
            inserted.append(values[0])

    event.listen(control.engine, "before_cursor_execute", sent)
    names = [f"app-{number:02}" for number in range(30)]
    streams = [f"stream-{number:02}" for number in range(30)]
    supervised = {name: SimpleNamespace(name=name, app=names[0]) for name in reversed(streams)}
    control.sync(cast("DeclaredApps", SimpleNamespace(apps=dict.fromkeys(names), supervised=supervised)))
    assert inserted == [*names, *streams]


# Texts


@pytest.mark.parametrize("odd", ["x" * 70_000, "caf\udce9", "a\0b"], ids=["long", "half a character", "NUL"])
def test_what_people_files_and_paths_say_is_written_as_every_database_takes_it(control: Control, odd: str) -> None:
    """SQLite takes any length: what is written shows whether it was cut."""
    first = control.claim("a", None, host="h", spec_hash="", owner=f"me {odd}", log=f"/logs/{odd}")
    assert first
    control.report_driver_resources(first, odd)
    control.report_driver_wait(first, odd)
    control.end_driver(first, odd)
    control.set_desired(["s"], "off", ME, odd)
    control.release("a", Actor(odd, "cli"), odd)
    control.release_refused("a", ME, odd)
    control.record(ME, "wait", odd, odd)
    control.hold_heartbeats("topic", None, odd)
    control.report_data_loss("s", [DataLoss("topic", "cut")])
    control.accept_data_loss("s", Actor(odd, "cli"), [row.id for row in control.data_losses("s")], odd)
    with control.begin() as c:
        for table in tables.metadata.sorted_tables:
            for row in c.execute(select(table)).mappings():
                for name, value in row.items():
                    if isinstance(value, str):
                        assert len(value) <= (getattr(table.c[name].type, "length", None) or 4000), name
                        assert "\0" not in value
                        value.encode()


# Transactions


def test_reads_of_a_thread_share_a_transaction(control: Control) -> None:
    checkouts: list[object] = []
    event.listen(control.engine, "checkout", lambda connection, _record, _proxy: checkouts.append(connection))
    with control.read_together():
        assert control.desired("a") == {"s": "on", "t": "on"}
        assert control.app("a")
        with ThreadPoolExecutor(1) as another:
            assert another.submit(control.app, "a").result()
        assert len(checkouts) == 2, "another thread has its own"
    assert control.app("a")
    assert len(checkouts) == 3


def test_a_transaction_that_failed_is_not_used_again(control: Control) -> None:
    with pytest.raises(ControlError, match="no such table"), control.read_together(), control.begin() as c:
        c.exec_driver_sql("SELECT * FROM not_there")
    assert control.app("a")
