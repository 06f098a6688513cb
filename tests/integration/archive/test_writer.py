"""The archive's writer against a real object store: cut off between any two calls, replaced, late, joined."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from penstock.archive import layout, parquet, reader, state_log
from penstock.archive.hour_closer import GARBAGE_GRACE, HourCloser
from penstock.archive.reader import read_hour
from penstock.archive.stream import ArchiveOutput
from penstock.archive.verify import verify_archive
from penstock.archive.writer import ArchiveWriter
from penstock.devstack.servers.s3 import S3Server
from penstock.errors import LeaseLost, PenstockError, Wait
from penstock.model.output import CommitMarker
from penstock.object_store.bucket import Bucket
from tests.support import s3_store
from tests.support.s3_store import Cut, Failing, where

pytestmark = pytest.mark.integration

HOUR = "2026-01-01T10"
LATER = layout.hour_start("2026-01-01T12").timestamp() + 900.0
numbers = itertools.count()


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_store.server(tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture
def store(part: S3Server) -> Bucket:
    return Bucket(where(part), "lake", f"test-{next(numbers)}")


def output(store: Bucket, target: int = 1 << 27) -> ArchiveOutput:
    return ArchiveOutput("kept", "lake", store.url("x").split("/")[3], ("t",), 900.0, target)


def batch(*offsets: int, hour: int = 10, partition: int = 0) -> pa.Table:
    """Records as the stream gives them; every third is a tombstone, every second has headers."""
    at = datetime(2026, 1, 1, hour, 5, tzinfo=UTC)
    rows = [
        {
            "topic": "t", "partition": partition, "offset": n, "key": b"k%d" % (n % 5),
            "value": None if n % 3 == 0 else b"v%d" % n,
            "timestamp": at, "headers": [{"key": "h", "value": b"%d" % n}] if n % 2 else None, "event_time": at,
        }
        for n in offsets
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, parquet.SCHEMA)


def give(writer: ArchiveWriter, to: ArchiveOutput, rows: pa.Table, number: int = 0) -> int:
    ends: dict[int, int] = {}
    for row in rows.to_pylist():
        ends[row["partition"]] = max(ends.get(row["partition"], 0), row["offset"] + 1)
    return writer.write({to.name: rows}, CommitMarker("query", number, {"t": ends}))


def keeper(writer: ArchiveWriter, to: ArchiveOutput, end: int, now: float = LATER) -> HourCloser:
    return HourCloser(writer, to, lambda _: ({}, {("t", 0): end}), lambda: now)


def there(store: Bucket) -> list[dict[str, object]]:
    """All that the archive holds, read as a backfill does."""
    found = reader.read_interval(store, datetime(1970, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC))
    rows = [row for _, table in found for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def right(store: Bucket) -> bool:
    return all(one.ok for one in verify_archive(store))


BATCHES = [batch(*range(10)), pa.concat_tables([batch(*range(10, 15)), batch(15, 16, hour=11)]), batch(17, 18, hour=10)]
ALL = sorted((row for one in BATCHES for row in one.to_pylist()), key=lambda row: row["offset"])


def work(store: Bucket) -> None:
    """Batches, a closed hour with its files joined, a late record, the hour closed once more, old files removed."""
    to = output(store)
    writer = ArchiveWriter(to, store)
    for number, one in enumerate(BATCHES[:2]):
        give(writer, to, one, number)
    keeper(writer, to, 17).close_due_hours()
    give(writer, to, BATCHES[2], 2)
    keeper(writer, to, 19, LATER + 2000).close_due_hours()
    keeper(writer, to, 19, LATER + 2000 + GARBAGE_GRACE + 1).close_due_hours()


@pytest.mark.parametrize("effect", ["before", pytest.param("after", marks=pytest.mark.long)])
def test_cut_off_at_every_call_and_begun_again(part: S3Server, effect: Cut) -> None:
    for at in itertools.count(1):
        prefix = f"cut-{effect}-{at}"
        failing = Failing(where(part), "lake", prefix, at, effect)
        with suppress(Wait):
            work(failing)
        if failing.calls < at:
            break
        store = Bucket(where(part), "lake", prefix)
        work(store)
        assert there(store) == ALL, f"cut {effect} call {at}"
        assert right(store)
        assert all(read_hour(store, state_log.latest_state(store), hour).closed for hour in (HOUR, "2026-01-01T11"))
    assert at > 15


def test_a_batch_that_comes_again_otherwise_cut_adds_nothing(store: Bucket) -> None:
    to = output(store)
    writer = ArchiveWriter(to, store)
    assert give(writer, to, batch(0, 1, 2)) == 3
    assert give(writer, to, batch(0, 1, 2)) == 0
    assert give(writer, to, batch(1, 2, 3, 4), 7) == 2
    assert [row["offset"] for row in there(store)] == [0, 1, 2, 3, 4]
    assert (writer.counters.written, writer.counters.duplicates) == (5, 5)


def test_a_topic_made_again_begins_anew(store: Bucket) -> None:
    to = output(store)
    writer = ArchiveWriter(to, store)
    for given in ("old", "old", "new"):
        writer.write({to.name: batch(0, 1)}, CommitMarker("query", 0, {"t": {0: 2}}, {"t": given}))
    assert [row["offset"] for row in there(store)] == [0, 0, 1, 1]


def test_who_opens_later_shuts_the_other_out(store: Bucket) -> None:
    to = output(store)
    old = ArchiveWriter(to, store)
    give(old, to, batch(0, 1))
    new = ArchiveWriter(to, store)
    with pytest.raises(LeaseLost, match="has a newer writer"):
        give(old, to, batch(2, 3))
    with pytest.raises(LeaseLost):
        keeper(old, to, 2).close_due_hours()
    assert give(new, to, batch(2, 3)) in (0, 2)
    with pytest.raises(LeaseLost):
        give(old, to, batch(4))
    assert [row["offset"] for row in there(store)] == [0, 1, 2, 3]
    assert give(ArchiveWriter(to, store), to, batch(3, 4)) == 1


def test_an_hour_is_closed_when_all_of_it_is_archived_and_opened_by_what_is_late(store: Bucket) -> None:
    to = output(store)
    writer = ArchiveWriter(to, store)
    give(writer, to, batch(0, 1, 2))
    give(writer, to, batch(3, 4))
    keeper(writer, to, 5, LATER - 4000).close_due_hours()
    assert not read_hour(store, writer.state, HOUR).closed, "it has not ended long enough"
    keeper(writer, to, 6).close_due_hours()
    assert not read_hour(store, writer.state, HOUR).closed, "the topic holds more"
    keeper(writer, to, 5).close_due_hours()
    hour = read_hour(store, state_log.latest_state(store), HOUR)
    assert hour.closed
    assert hour.manifest is not None
    assert (hour.manifest.rows, hour.manifest.revision, len(hour.files)) == (5, 1, 1), "two files are joined"
    assert hour.manifest.spans == parquet.spans_of(batch(*range(5)))
    give(writer, to, batch(5))
    late = read_hour(store, state_log.latest_state(store), HOUR)
    assert (late.closed, len(late.files), [r["offset"] for r in there(store)]) == (False, 2, [*range(6)])
    keeper(writer, to, 6, LATER + 1).close_due_hours()
    assert not read_hour(store, writer.state, HOUR).closed, "it was closed a second ago"
    keeper(writer, to, 6, LATER + 900).close_due_hours()
    again = read_hour(store, state_log.latest_state(store), HOUR)
    assert again.manifest is not None
    assert (again.closed, again.manifest.revision, again.manifest.rows) == (True, 2, 6)
    before = {one.key for one in store.list_objects("")}
    keeper(writer, to, 6, LATER + 900 + GARBAGE_GRACE + 1).close_due_hours()
    assert (
        len(before - {one.key for one in store.list_objects("")} - {o.key for o in store.list_objects(layout.STATES)})
        >= 5
    )
    assert there(store) == batch(*range(6)).to_pylist()
    assert right(store)


def test_files_are_joined_up_to_their_target(store: Bucket) -> None:
    to = output(store, target=8_000)
    writer = ArchiveWriter(to, store)
    for n in range(12):
        give(writer, to, batch(*range(n * 5, n * 5 + 5)), n)
    keeper(writer, to, 60).close_due_hours()
    hour = read_hour(store, state_log.latest_state(store), HOUR)
    assert 1 < len(hour.files) < 12
    assert there(store) == batch(*range(60)).to_pylist()


def test_a_file_that_was_changed_is_never_joined(store: Bucket) -> None:
    to = output(store)
    writer = ArchiveWriter(to, store)
    give(writer, to, batch(0, 1))
    give(writer, to, batch(2))
    store.put(writer.state.open[HOUR][0].key, parquet.to_parquet(batch(0, 7)))
    with pytest.raises(PenstockError, match=r"do not hold what was written.*archives verify kept"):
        keeper(writer, to, 3).close_due_hours()
    assert not read_hour(store, state_log.latest_state(store), HOUR).closed
