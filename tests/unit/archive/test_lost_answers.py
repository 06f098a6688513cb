"""Answers that are lost, writers that were replaced, and catalogs and tables that somebody else has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import DayTransform
from sqlalchemy.exc import OperationalError, ProgrammingError

from penstock.archive import catalog, records
from penstock.archive import register as registration
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.maintenance import maintain
from penstock.archive.register import register
from penstock.archive.table import ArchiveTable
from penstock.archive.verify import verify_archive
from penstock.errors import LeaseLost, SinkError, Wait
from tests.support.small_archive import (
    HOUR,
    LATER,
    NEXT_HOUR,
    archived_rows,
    batch,
    closer,
    hours,
    is_valid,
    local_store,
    once_before,
    open_writer,
    output,
    table_of,
    write_batch,
)

TO = output()


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[None]:
    with local_store(tmp_path):
        yield


@contextmanager
def answer_lost(table: str = TO.table) -> Iterator[None]:
    """The next commit of a table is executed, and its answer is lost."""
    real, lost = catalog.ControlCatalog.commit_table, list[str]()

    def commit_table(self: Any, changed: Any, *more: Any) -> Any:
        done = real(self, changed, *more)
        if ".".join(changed.name()) == table and not lost:
            lost.append(table)
            raise Wait("the answer is lost", seconds=0.0)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog.ControlCatalog, "commit_table", commit_table)
        yield


def offsets() -> list[object]:
    return [row["offset"] for row in archived_rows(TO)]


def test_files_that_are_joined_behind_a_lost_answer_do_not_turn_offsets_back() -> None:
    writer = open_writer(TO)
    write_batch(writer, TO, batch(0))
    write_batch(writer, TO, batch(1))
    with answer_lost(), pytest.raises(Wait):
        write_batch(writer, TO, batch(2, 3))
    closer(writer, TO, 2).close_due_hours()
    assert write_batch(writer, TO, batch(2, 3)) == 0
    assert offsets() == [0, 1, 2, 3]


def test_an_hour_behind_a_lost_answer_is_closed() -> None:
    writer = open_writer(TO)
    write_batch(writer, TO, batch(0))
    closer(writer, TO, 1).close_due_hours()
    with answer_lost(), pytest.raises(Wait):
        write_batch(writer, TO, batch(1, hour=11))
    assert write_batch(writer, TO, batch(1, hour=11)) == 0
    closer(writer, TO, 2).close_due_hours()
    assert hours(TO)[NEXT_HOUR].is_closed


def test_an_hour_whose_closing_got_no_answer_is_closed_once() -> None:
    writer = open_writer(TO)
    write_batch(writer, TO, batch(0))
    keeper = closer(writer, TO, 1)
    with answer_lost(f"{TO.table}_hours"), pytest.raises(Wait):
        keeper.close_due_hours()
    keeper.close_due_hours()
    closed = hours(TO)[HOUR].closed
    assert closed is not None
    assert closed.revision == 1


def test_an_older_writer_stays_fenced_behind_a_lost_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    old = open_writer(TO)
    write_batch(old, TO, batch(0))

    def refuse(*_: Any) -> None:
        raise Wait("away", seconds=0.0)

    with monkeypatch.context() as patch:
        patch.setattr(catalog.ControlCatalog, "commit_table", refuse)
        with pytest.raises(Wait):
            write_batch(old, TO, batch(1))
    new = open_writer(TO)
    write_batch(new, TO, batch(1))
    with pytest.raises(LeaseLost):
        write_batch(old, TO, batch(1, 2))
    assert write_batch(new, TO, batch(2)) == 1
    assert offsets() == [0, 1, 2]


def test_a_writer_that_was_replaced_closes_no_hour() -> None:
    old = open_writer(TO)
    write_batch(old, TO, batch(0, 1))
    keeper = closer(old, TO, 2)
    new = open_writer(TO)
    write_batch(new, TO, batch(2))
    closer(new, TO, 3).close_due_hours()
    with pytest.raises(LeaseLost):
        keeper.close_due_hours()
    closed = hours(TO)[HOUR].closed
    assert closed is not None
    assert (closed.revision, closed.records) == (1, 3)


def test_an_hour_that_another_writer_left_open_is_found() -> None:
    writer, now = open_writer(TO), [LATER]
    keeper = closer(writer, TO, 1)
    keeper._clock = lambda: now[0]
    write_batch(writer, TO, batch(0))
    keeper.close_due_hours()
    writer.open_hours.clear()
    write_batch(writer, TO, batch(1))
    writer.open_hours.clear()
    now[0] += 3600
    keeper.close_due_hours()
    assert hours(TO)[HOUR].is_closed


def test_rows_that_are_deleted_while_files_are_joined_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer(TO)
    write_batch(writer, TO, batch(0, 1))
    write_batch(writer, TO, batch(2))
    write_file = ArchiveTable.write_file

    def slow(self: ArchiveTable, *given: Any) -> Any:
        written = write_file(self, *given)
        table_of(TO)._table.delete("offset = 1")
        self.refresh()
        return written

    with monkeypatch.context() as patch:
        patch.setattr(ArchiveTable, "write_file", slow)
        with pytest.raises(Wait, match="another program has changed files of hour"):
            closer(writer, TO, 3).close_due_hours()
    assert offsets() == [0, 2]


def rolled_back() -> None:
    table = table_of(TO)._table
    first = table.history()[1].snapshot_id
    with table.manage_snapshots() as change:
        change.set_current_snapshot(first)


def without_a_column() -> None:
    with table_of(TO)._table.update_schema() as change:
        change.delete_column("headers")


def by_day() -> None:
    with table_of(TO)._table.update_spec() as change:
        change.remove_field("hour")
        change.add_field("event_time", DayTransform(), "day")


def without_time() -> None:
    rows = batch(9)
    place = rows.schema.get_field_index("event_time")
    table_of(TO)._table.append(rows.set_column(place, "event_time", pa.array([None], records.TIMESTAMP_TYPE)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rolled_back, "was rolled back, so it lacks records that count as archived"),
        (without_a_column, "another program has changed the columns or the partitions"),
        (by_day, "another program has changed the columns or the partitions"),
        (without_time, "has a file without event times"),
    ],
)
def test_a_table_that_another_program_has_changed_is_refused(change: Callable[[], None], message: str) -> None:
    writer = open_writer(TO)
    for n in range(3):
        write_batch(writer, TO, batch(n))
    change()
    with pytest.raises(SinkError, match=message) as e:
        write_batch(open_writer(TO), TO, batch(3))
    assert e.value.hint


def test_a_catalog_of_an_older_copy_is_refused(tmp_path: Path) -> None:
    writer = open_writer(TO)
    write_batch(writer, TO, batch(0))
    old = (tmp_path / "catalog.db").read_bytes()
    for n in range(1, 4):
        write_batch(writer, TO, batch(n))
    (tmp_path / "catalog.db").write_bytes(old)
    with pytest.raises(
        SinkError, match=r"names an older state of table penstock.kept.*penstock archives register kept"
    ):
        open_writer(TO)
    register(TO)
    assert write_batch(open_writer(TO), TO, batch(3, 4)) == 1
    assert offsets() == [0, 1, 2, 3, 4]


def test_a_writer_that_opens_beside_a_running_one_finds_no_older_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    running = open_writer(TO)

    def write() -> None:
        for n in range(2):
            write_batch(running, TO, batch(n))

    once_before(monkeypatch, registration, "metadata_files", write)
    assert write_batch(open_writer(TO), TO, batch(1, 2)) == 1
    assert offsets() == [0, 1, 2]


def test_a_table_that_another_writer_makes_meanwhile_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    once_before(monkeypatch, registration, "metadata_files", lambda: write_batch(open_writer(TO), TO, batch(0)))
    assert write_batch(open_writer(TO), TO, batch(0, 1)) == 1
    assert offsets() == [0, 1]


def test_verify_finds_rows_that_are_gone_where_others_came() -> None:
    writer = open_writer(TO)
    write_batch(writer, TO, batch(0, 1, 2))
    closer(writer, TO, 3).close_due_hours()
    write_batch(writer, TO, batch(3))
    assert is_valid(TO), "a late record is no fault"
    table_of(TO)._table.delete("offset = 1")
    [found] = verify_archive(table_of(TO), ClosedHours.of(TO))
    assert "has other records than when it was closed; got: t/0: 2 records" in found.findings[0].what


def test_a_table_of_hours_that_was_made_anew_is_read() -> None:
    writer = open_writer(TO)
    write_batch(writer, TO, batch(0))
    closer(writer, TO, 1).close_due_hours()
    closed = ClosedHours(TO.table)
    [hour] = closed.read().values()
    catalog.open_catalog().drop_table(f"{TO.table}_hours")
    assert closed.read() == {}
    ClosedHours.of(TO).add([hour])
    assert closed.read() == {HOUR: hour}


def test_a_database_that_refuses_is_told_and_one_that_is_away_is_waited_for() -> None:
    with pytest.raises(SinkError, match=r"the Iceberg catalog refuses table a\.b; got: ProgrammingError: no right"):
        with catalog.errors("table a.b"):
            raise ProgrammingError("SELECT 1", {}, Exception("no right"))
    with pytest.raises(Wait, match=r"does not answer for table a\.b; got: OperationalError: gone"):
        with catalog.errors("table a.b"):
            raise OperationalError("SELECT 1", {}, Exception("gone"))


def test_a_snapshot_that_expires_while_it_is_read_is_told() -> None:
    writer = open_writer(TO)
    write_batch(writer, TO, batch(0))
    then = table_of(TO).as_of(datetime.now(UTC))
    write_batch(writer, TO, batch(1))
    maintain(replace(TO, keep_snapshots=timedelta(0)))
    then.refresh()
    with pytest.raises(SinkError, match="no longer keeps the snapshot that is read"):
        then.files()
