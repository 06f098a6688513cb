"""The archive's writer: cut off between any two calls to the store and the catalog, replaced, late, joined."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2

from penstock.archive import records
from penstock.archive.reader import read_interval
from penstock.archive.table import ArchiveTable
from penstock.errors import LeaseLost, PenstockError, Wait
from penstock.model.output import CommitMarker
from tests.support.s3_store import Calls, Cut
from tests.support.small_archive import (
    ALL_ROWS,
    HOUR,
    LATER,
    NEXT_HOUR,
    archived_rows,
    batch,
    closer,
    hours,
    is_valid,
    keys,
    local_store,
    once_before,
    open_writer,
    output,
    table_of,
    write_archive,
    write_batch,
)  # fmt: skip


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[None]:
    with local_store(tmp_path):
        yield


@pytest.mark.parametrize(
    ("effect", "first", "step"),
    [
        ("before", 1, 31), ("after", 16, 31),
        *(pytest.param(effect, 1, 1, marks=[pytest.mark.long, pytest.mark.timeout(3600)])
          for effect in ("before", "after")),
    ],
)  # fmt: skip
def test_cut_off_at_every_call_and_started_again(tmp_path: Path, effect: Cut, first: int, step: int) -> None:
    for at in itertools.count(first, step):
        to, calls = output(f"cut_{at}"), Calls(at, effect)
        with local_store(tmp_path, calls), suppress(Wait):
            write_archive(to)
        if calls.count < at:
            break
        write_archive(to)
        assert archived_rows(to) == ALL_ROWS, f"cut {effect} call {at}"
        assert is_valid(to)
        assert all(hours(to)[hour].is_closed for hour in (HOUR, NEXT_HOUR))
    assert at > 40


def test_the_state_is_of_one_commit_while_another_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that closes hours reads it without the lock."""
    to = output()
    writer = open_writer(to)
    write_batch(writer, to, batch(0))
    once_before(monkeypatch, Table, "current_snapshot", lambda: write_batch(writer, to, batch(1)))
    assert writer.state.positions == {"t": {0: 1}}
    assert writer.state.positions == {"t": {0: 2}}


def test_a_batch_repeated_with_other_limits_adds_nothing() -> None:
    to = output()
    writer = open_writer(to)
    assert write_batch(writer, to, batch(0, 1, 2)) == 3
    assert write_batch(writer, to, batch(0, 1, 2)) == 0
    assert write_batch(writer, to, batch(1, 2, 3, 4), 7) == 2
    assert [row["offset"] for row in archived_rows(to)] == [0, 1, 2, 3, 4]
    assert (writer.counters.written, writer.counters.duplicates) == (5, 5)


def test_a_recreated_topic_is_archived_from_its_first_offset() -> None:
    to = output()
    writer = open_writer(to)
    for given in ("old", "old", "new"):
        writer.write({to.name: batch(0, 1)}, CommitMarker("query", 0, {"t": {0: 2}}, {"t": given}))
    assert [row["offset"] for row in archived_rows(to)] == [0, 0, 1, 1]


def test_a_newer_writer_fences_the_older() -> None:
    to = output()
    old = open_writer(to)
    write_batch(old, to, batch(0, 1))
    new = open_writer(to)
    with pytest.raises(LeaseLost, match="has a newer writer"):
        write_batch(old, to, batch(2, 3))
    assert write_batch(new, to, batch(2, 3)) == 2
    with pytest.raises(LeaseLost):
        write_batch(old, to, batch(4))
    assert [row["offset"] for row in archived_rows(to)] == [0, 1, 2, 3]
    assert write_batch(open_writer(to), to, batch(3, 4)) == 1


def test_an_older_writer_joins_and_closes_nothing() -> None:
    to = output()
    old = open_writer(to)
    write_batch(old, to, batch(0, 1))
    write_batch(old, to, batch(2))
    new = open_writer(to)
    with pytest.raises(LeaseLost):
        closer(old, to, 3).close_due_hours()
    assert not hours(to)[HOUR].is_closed
    closer(new, to, 3).close_due_hours()
    assert hours(to)[HOUR].is_closed


def test_a_change_of_another_program_delays_a_batch_and_loses_nothing() -> None:
    to = output()
    writer = open_writer(to)
    write_batch(writer, to, batch(0, 1))
    other = table_of(to)
    other._table.append(batch(7, hour=11))
    with pytest.raises(Wait, match=r"another program has changed table penstock\.kept"):
        write_batch(writer, to, batch(2))
    assert write_batch(writer, to, batch(2)) == 1
    assert [row["offset"] for row in archived_rows(to)] == [0, 1, 2, 7]


def test_an_hour_closes_when_all_of_it_is_archived_and_reopens_for_late_records() -> None:
    to = output()
    writer = open_writer(to)
    write_batch(writer, to, batch(0, 1, 2))
    write_batch(writer, to, batch(3, 4))
    closer(writer, to, 5, LATER - 4000).close_due_hours()
    assert not hours(to)[HOUR].is_closed, "it has not ended long enough"
    closer(writer, to, 6).close_due_hours()
    assert not hours(to)[HOUR].is_closed, "the topic holds more"
    keeper = closer(writer, to, 5)
    keeper.close_due_hours()
    hour = hours(to)[HOUR]
    assert hour.is_closed
    assert hour.closed is not None
    assert (hour.closed.records, hour.closed.revision, len(hour.files)) == (5, 1, 1), "two files are joined"
    assert hour.closed.spans == records.spans_of(batch(*range(5)))
    assert hour.closed.snapshot == table_of(to).snapshot_id
    write_batch(writer, to, batch(5))
    late = hours(to)[HOUR]
    assert (late.is_closed, len(late.files), [r["offset"] for r in archived_rows(to)]) == (False, 2, [*range(6)])
    closer(writer, to, 6, LATER + 900).close_due_hours()
    again = hours(to)[HOUR]
    assert again.closed is not None
    assert (again.is_closed, again.closed.revision, again.closed.records) == (True, 2, 6)
    assert archived_rows(to) == batch(*range(6)).to_pylist()
    assert is_valid(to)
    # A writer that opens it finds what is open.
    assert open_writer(to).open_hours == set()
    write_batch(writer := open_writer(to), to, batch(6))
    assert open_writer(to).open_hours == writer.open_hours == {HOUR}


def test_an_hour_that_was_closed_is_not_closed_again_at_once() -> None:
    to = output()
    writer = open_writer(to)
    write_batch(writer, to, batch(0))
    now = [LATER]
    keeper = closer(writer, to, 1)
    keeper._clock = lambda: now[0]
    keeper.close_due_hours()
    write_batch(writer, to, batch(1))
    now[0] += 1
    keeper.close_due_hours()
    assert not hours(to)[HOUR].is_closed, "it was closed a second ago"
    now[0] += 900
    keeper.close_due_hours()
    assert hours(to)[HOUR].is_closed


def test_files_are_joined_up_to_the_target_size() -> None:
    to = output(target=12_000)
    writer = open_writer(to)
    for n in range(12):
        write_batch(writer, to, batch(*range(n * 5, n * 5 + 5)), n)
    closer(writer, to, 60).close_due_hours()
    assert 1 < len(hours(to)[HOUR].files) < 12
    assert archived_rows(to) == batch(*range(60)).to_pylist()


def test_a_changed_file_is_never_joined() -> None:
    to = output()
    writer = open_writer(to)
    write_batch(writer, to, batch(0, 1))
    write_batch(writer, to, batch(2))
    one, other = keys(to)
    writer.table.bucket.put(one, writer.table.bucket.get(other))
    with pytest.raises(PenstockError, match=r"is not the one that was written: s3://lake/kept/data"):
        closer(writer, to, 3).close_due_hours()
    assert not hours(to)[HOUR].is_closed


def test_a_table_is_read_as_it_was_at_a_time() -> None:
    to = output()
    writer = open_writer(to)
    write_batch(writer, to, batch(0, 1))
    at = datetime.now(UTC)
    time.sleep(0.01)
    write_batch(writer, to, batch(2))
    closer(writer, to, 3).close_due_hours()
    then = [row["offset"] for _, part in read_interval(table_of(to).as_of(at)) for row in part.to_pylist()]
    assert then == [0, 1]
    assert len(archived_rows(to)) == 3
    with pytest.raises(
        PenstockError, match=r"table penstock.kept keeps no snapshot of that time; got: 2020-01-01"
    ) as e:
        table_of(to).as_of(datetime(2020, 1, 1, tzinfo=UTC))
    assert "take a time from 20" in str(e.value)


def test_a_table_of_another_archive_is_refused() -> None:
    open_writer(output())
    taken = output()
    object.__setattr__(taken, "archive", "other")
    with pytest.raises(PenstockError, match=r"table penstock.kept is not that of archive other; got: archive kept"):
        ArchiveTable.find(taken)
    moved = output()
    object.__setattr__(moved, "prefix", "elsewhere")
    with pytest.raises(PenstockError, match=r"is not where archive kept says; got: s3://lake/kept"):
        ArchiveTable.find(moved)


def test_a_commit_copies_the_metadata_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library copies all snapshots at each look, which was a second of CPU per commit after a day."""
    to = output()
    writer = open_writer(to)
    write_batch(writer, to, batch(1))
    copies = 0

    def copied(metadata: TableMetadata, *_: object, **options: Any) -> TableMetadata:
        nonlocal copies
        copies += bool(options.get("deep"))
        return copy_of(metadata, **options)

    copy_of = TableMetadataV2.model_copy
    monkeypatch.setattr(TableMetadataV2, "model_copy", copied)
    write_batch(writer, to, batch(2), 1)
    assert 1 <= copies <= 4
    assert [row["offset"] for row in archived_rows(to)] == [1, 2]
