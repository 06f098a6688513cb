"""The archive's writer: cut off between any two calls to the store, replaced, late, joined."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.archive import layout, parquet, state_log
from penstock.archive.hour_closer import GARBAGE_GRACE
from penstock.archive.reader import read_hour
from penstock.archive.writer import ArchiveWriter
from penstock.errors import LeaseLost, PenstockError, Wait
from penstock.model.output import CommitMarker
from penstock.object_store.bucket import Bucket
from tests.support.s3_store import Cut, Failing, LocalBucket
from tests.support.small_archive import (
    ALL_ROWS,
    HOUR,
    LATER,
    archived_rows,
    batch,
    closer,
    is_valid,
    output,
    write_archive,
    write_batch,
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Bucket:
    return LocalBucket(tmp_path, "test")


@pytest.mark.parametrize("effect", ["before", "after"])
def test_cut_off_at_every_call_and_started_again(tmp_path: Path, effect: Cut) -> None:
    for at in itertools.count(1):
        store = LocalBucket(tmp_path, f"cut-{at}")
        failing = Failing(store, at, effect)
        with suppress(Wait):
            write_archive(failing)
        if failing.calls < at:
            break
        write_archive(store)
        assert archived_rows(store) == ALL_ROWS, f"cut {effect} call {at}"
        assert is_valid(store)
        assert all(read_hour(store, state_log.latest_state(store), hour).closed for hour in (HOUR, "2026-01-01T11"))
    assert at > 15


def test_a_batch_repeated_with_other_limits_adds_nothing(store: Bucket) -> None:
    to = output(store)
    writer = ArchiveWriter(to, store)
    assert write_batch(writer, to, batch(0, 1, 2)) == 3
    assert write_batch(writer, to, batch(0, 1, 2)) == 0
    assert write_batch(writer, to, batch(1, 2, 3, 4), 7) == 2
    assert [row["offset"] for row in archived_rows(store)] == [0, 1, 2, 3, 4]
    assert (writer.counters.written, writer.counters.duplicates) == (5, 5)


def test_a_recreated_topic_is_archived_from_its_first_offset(store: Bucket) -> None:
    to = output(store)
    writer = ArchiveWriter(to, store)
    for given in ("old", "old", "new"):
        writer.write({to.name: batch(0, 1)}, CommitMarker("query", 0, {"t": {0: 2}}, {"t": given}))
    assert [row["offset"] for row in archived_rows(store)] == [0, 0, 1, 1]


def test_a_newer_writer_fences_the_older(store: Bucket) -> None:
    to = output(store)
    old = ArchiveWriter(to, store)
    write_batch(old, to, batch(0, 1))
    new = ArchiveWriter(to, store)
    with pytest.raises(LeaseLost, match="has a newer writer"):
        write_batch(old, to, batch(2, 3))
    with pytest.raises(LeaseLost):
        closer(old, to, 2).close_due_hours()
    assert write_batch(new, to, batch(2, 3)) in (0, 2)
    with pytest.raises(LeaseLost):
        write_batch(old, to, batch(4))
    assert [row["offset"] for row in archived_rows(store)] == [0, 1, 2, 3]
    assert write_batch(ArchiveWriter(to, store), to, batch(3, 4)) == 1


def test_an_hour_closes_when_all_of_it_is_archived_and_reopens_for_late_records(store: Bucket) -> None:
    to = output(store)
    writer = ArchiveWriter(to, store)
    write_batch(writer, to, batch(0, 1, 2))
    write_batch(writer, to, batch(3, 4))
    closer(writer, to, 5, LATER - 4000).close_due_hours()
    assert not read_hour(store, writer.state, HOUR).closed, "it has not ended long enough"
    closer(writer, to, 6).close_due_hours()
    assert not read_hour(store, writer.state, HOUR).closed, "the topic holds more"
    closer(writer, to, 5).close_due_hours()
    hour = read_hour(store, state_log.latest_state(store), HOUR)
    assert hour.closed
    assert hour.manifest is not None
    assert (hour.manifest.rows, hour.manifest.revision, len(hour.files)) == (5, 1, 1), "two files are joined"
    assert hour.manifest.spans == parquet.spans_of(batch(*range(5)))
    write_batch(writer, to, batch(5))
    late = read_hour(store, state_log.latest_state(store), HOUR)
    assert (late.closed, len(late.files), [r["offset"] for r in archived_rows(store)]) == (False, 2, [*range(6)])
    closer(writer, to, 6, LATER + 1).close_due_hours()
    assert not read_hour(store, writer.state, HOUR).closed, "it was closed a second ago"
    closer(writer, to, 6, LATER + 900).close_due_hours()
    again = read_hour(store, state_log.latest_state(store), HOUR)
    assert again.manifest is not None
    assert (again.closed, again.manifest.revision, again.manifest.rows) == (True, 2, 6)
    before = {one.key for one in store.list_objects("")}
    closer(writer, to, 6, LATER + 900 + GARBAGE_GRACE + 1).close_due_hours()
    assert (
        len(before - {one.key for one in store.list_objects("")} - {o.key for o in store.list_objects(layout.STATES)})
        >= 5
    )
    assert archived_rows(store) == batch(*range(6)).to_pylist()
    assert is_valid(store)


def test_files_are_joined_up_to_the_target_size(store: Bucket) -> None:
    to = output(store, target=8_000)
    writer = ArchiveWriter(to, store)
    for n in range(12):
        write_batch(writer, to, batch(*range(n * 5, n * 5 + 5)), n)
    closer(writer, to, 60).close_due_hours()
    hour = read_hour(store, state_log.latest_state(store), HOUR)
    assert 1 < len(hour.files) < 12
    assert archived_rows(store) == batch(*range(60)).to_pylist()


def test_a_changed_file_is_never_joined(store: Bucket) -> None:
    to = output(store)
    writer = ArchiveWriter(to, store)
    write_batch(writer, to, batch(0, 1))
    write_batch(writer, to, batch(2))
    store.put(writer.state.open[HOUR][0].key, parquet.to_parquet(batch(0, 7)))
    with pytest.raises(PenstockError, match=r"do not hold what was written.*archives verify kept"):
        closer(writer, to, 3).close_due_hours()
    assert not read_hour(store, state_log.latest_state(store), HOUR).closed
