"""Old snapshots and objects that nobody needs: they go, and nothing else does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.archive import register
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.maintenance import ORPHAN_AGE, maintain
from penstock.archive.reader import read_interval
from penstock.errors import LeaseLost
from tests.support.small_archive import (
    HOUR,
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
    write_batch,
)

OLD = time.time() - 3 * 86_400
LATER = datetime.now(UTC) + timedelta(days=3)
TO = replace(output(), keep_snapshots=timedelta(hours=6))


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[None]:
    with local_store(tmp_path):
        yield


def test_old_snapshots_and_what_only_they_needed_go(tmp_path: Path) -> None:
    writer = open_writer(TO)
    for n in range(6):
        write_batch(writer, TO, batch(n))
    closer(writer, TO, 6).close_due_hours()
    small = {file.key for file in table_of(TO).files_of_hour(HOUR)}
    before = {one.key for one in table_of(TO).bucket.list_objects("data")}
    assert len(before) == 7
    # The host's clock is ahead of the store's: nothing is old by that.
    assert [one.objects for one in maintain(TO, LATER)] == [0, 0]
    for path in tmp_path.rglob("*.*"):
        os.utime(path, (OLD, OLD))
    write_batch(writer, TO, batch(6))
    small |= {one.key for one in table_of(TO).files_of_hour(HOUR)}
    records, closed = maintain(TO, LATER)
    assert (records.snapshots, closed.snapshots) == (1, 0)
    assert {one.key for one in table_of(TO).bucket.list_objects("data")} == small
    assert records.objects > 6
    assert archived_rows(TO) == batch(*range(7)).to_pylist()
    assert is_valid(TO)
    assert maintain(TO, LATER)[0].objects == 0
    # The writer goes on, and so does what it has closed.
    assert write_batch(writer, TO, batch(6, 7)) == 1
    closer(writer, TO, 8, time.time()).close_due_hours()
    assert hours(TO)[HOUR].is_closed


def test_young_snapshots_and_objects_stay() -> None:
    writer = open_writer(TO)
    write_batch(writer, TO, batch(0))
    write_batch(writer, TO, batch(1))
    assert [(one.snapshots, one.objects) for one in maintain(TO)] == [(0, 0)]


def test_commits_meanwhile_are_no_older_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer(TO)

    def write() -> None:
        for n in range(2):
            write_batch(writer, TO, batch(n))

    once_before(monkeypatch, register, "metadata_files", write)
    maintain(TO)
    assert archived_rows(TO) == batch(0, 1).to_pylist()


def test_an_object_of_a_commit_that_failed_goes_when_it_is_old(tmp_path: Path) -> None:
    old, new = open_writer(TO), open_writer(TO)
    write_batch(new, TO, batch(0, 1))
    with pytest.raises(LeaseLost):
        write_batch(old, TO, batch(0, 1))
    data = table_of(TO).bucket.list_objects("data")
    assert len(data) == 2
    [kept] = keys(TO)
    [orphan] = {one.key for one in data} - {kept}
    assert maintain(TO)[0].objects == 0
    [path] = tmp_path.rglob(orphan.rpartition("/")[2])
    aged = time.time() - ORPHAN_AGE.total_seconds() - 60
    os.utime(path, (aged, aged))
    assert (maintain(TO)[0].objects, path.exists()) == (1, False)
    assert archived_rows(TO) == batch(0, 1).to_pylist()


def test_the_rows_of_closed_hours_get_into_few_files() -> None:
    writer = open_writer(TO)
    for hour in range(15):
        write_batch(writer, TO, batch(hour, hour=hour))
        closer(writer, TO, hour + 1, LATER.timestamp()).close_due_hours()
    closed = ClosedHours.of(TO)
    before = closed.read()
    assert len(before) == 15
    maintain(TO, LATER)
    table = closed._find()
    assert table
    assert len(list(table.refresh().scan().plan_files())) == 1
    assert closed.read() == ClosedHours.of(TO).read() == before
    assert is_valid(TO)
    # The next hour is added, and a few files stay as they are.
    write_batch(writer, TO, batch(15, hour=15))
    closer(writer, TO, 16, LATER.timestamp()).close_due_hours()
    assert len(closed.read()) == 16
    assert closed.join_files(LATER) == 0


def test_an_archive_that_never_ran_has_nothing_to_do() -> None:
    assert maintain(TO) == []


@pytest.mark.parametrize(("interval", "kept"), [(timedelta(hours=1), 4), (timedelta(milliseconds=1), 13)])
def test_one_snapshot_is_kept_in_an_interval(interval: timedelta, kept: int) -> None:
    """Beside the newest, and the one that somebody has tagged."""
    to = replace(TO, snapshot_interval=interval)
    writer = open_writer(to)
    for n in range(12):
        write_batch(writer, to, batch(n), n)
        if n == 5:
            tagged, time_of_tag = table_of(to).snapshot_id or 0, datetime.now(UTC)
            table_of(to)._table.manage_snapshots().create_tag(tagged, "mine").commit()
    table = table_of(to)._table
    assert table.metadata.refs["mine"].snapshot_id == tagged
    # The first is that of the writer's claim.
    assert len(table.snapshots()) <= kept
    assert (len(table.snapshots()) == kept) == (kept == 13)
    assert archived_rows(to) == batch(*range(12)).to_pylist()
    then = sorted(
        row["offset"] for _, part in read_interval(table_of(to).as_of(time_of_tag)) for row in part.to_pylist()
    )
    assert then == [*range(6)]
