"""An archive of the layout that Penstock 0.2 had, taken over into a table: record by record, once, verified."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.archive import file_io, records
from penstock.archive.table import ArchiveTable
from penstock.archive.takeover import take_over
from penstock.errors import LeaseLost, SinkError
from penstock.model.output import CommitMarker
from tests.support.small_archive import (
    HOUR,
    NEXT_HOUR,
    archived_rows,
    batch,
    closer,
    hours,
    is_valid,
    local_store,
    open_writer,
    output,
    parquet_bytes,
    table_of,
    write_batch,
)

TO = output("new")
FIRST, SECOND, LATE = batch(0, 1, 2), batch(3, 4), batch(5, hour=11)


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[None]:
    """An old archive with a closed hour of two files, and an open one."""
    with local_store(tmp_path):
        old = file_io.open_bucket("lake", "old")
        files = {
            "date=2026-01-01/hour=10/00000001-a-000000001.parquet": FIRST,
            "date=2026-01-01/hour=10/00000001-a-000000002.parquet": SECOND,
            "date=2026-01-01/hour=11/00000001-a-000000003.parquet": LATE,
        }
        entries = []
        for key, rows in files.items():
            old.put(key, parquet_bytes(rows))
            entries.append({"key": key, "size": 1, "spans": records.spans_of(rows)})
        spans = records.spans_of(pa.concat_tables([FIRST, SECOND]))
        manifest = "_penstock/hours/date=2026-01-01/hour=10/m.json.gz"
        put(manifest, {"archive": "old", "hour": HOUR, "revision": 2, "spans": spans, "files": entries[:2]})
        closed = {"key": manifest, "revision": 2, "rows": 5, "size": 2, "files": 2, "at": 17.5}
        state = {
            "claim": "00000001-a", "number": 3, "positions": {"t": {"0": 6}}, "ids": {"t": "id"},
            "open": {NEXT_HOUR: entries[2:]}, "closed": {HOUR: closed}, "garbage": {}, "begins": {"t": {"0": 0}},
        }  # fmt: skip
        put("_penstock/states/00000001-a-000000002.json.gz", {"positions": {}})
        put("_penstock/states/00000001-a-000000003.json.gz", state)
        yield


def put(key: str, content: dict[str, Any]) -> None:
    file_io.open_bucket("lake", "old").put(key, gzip.compress(json.dumps(content).encode()))


def taken() -> dict[str, int]:
    return {hour.hour: hour.records for hour in take_over(TO, "lake", "old")}


EVERY = batch(*range(5)).to_pylist() + LATE.to_pylist()


def test_all_records_are_there_once_and_so_is_what_was_promised() -> None:
    assert taken() == {HOUR: 5, NEXT_HOUR: 1}
    assert archived_rows(TO) == EVERY
    assert is_valid(TO)
    closed = hours(TO)[HOUR]
    assert closed.closed is not None
    assert (closed.is_closed, closed.closed.revision, closed.closed.closed_at) == (True, 2, 17.5)
    assert not hours(TO)[NEXT_HOUR].is_closed
    state = table_of(TO).state
    assert (state.positions, state.begins, state.ids) == ({"t": {0: 6}}, {"t": {0: 0}}, {"t": "id"})
    assert taken() == {HOUR: 0, NEXT_HOUR: 0}
    assert archived_rows(TO) == EVERY
    # The stream goes on behind it, and closes what was open.
    writer = open_writer(TO)
    assert write_batch(writer, TO, batch(5, 6, hour=11)) == 1
    closer(writer, TO, 7).close_due_hours()
    assert all(hour.is_closed for hour in hours(TO).values())


def test_a_run_that_was_interrupted_is_continued() -> None:
    assert next(take_over(TO, "lake", "old")).records == 5
    assert taken() == {HOUR: 0, NEXT_HOUR: 1}
    assert archived_rows(TO) == EVERY


@pytest.mark.parametrize("close", [False, True])
def test_an_hour_that_the_archive_has_begun_itself_gets_the_records_before(close: bool) -> None:
    """It ran from offset 4 on, and wrote more of the hour than the old one had."""
    writer = open_writer(TO)
    mark = CommitMarker("q", 0, {"t": {0: 14}}, {"t": "id"}, start_offsets={"t": {0: 4}})
    writer.write({TO.name: batch(*range(4, 14))}, mark)
    if close:
        closer(writer, TO, 14).close_due_hours()
    assert taken() == {HOUR: 4, NEXT_HOUR: 0}
    assert [row["offset"] for row in archived_rows(TO)] == [*range(14)]
    assert table_of(TO).state.begins == {"t": {0: 0}}
    assert taken() == {HOUR: 0, NEXT_HOUR: 0}
    assert len(archived_rows(TO)) == 14


def test_records_of_a_topic_that_was_recreated_count_beside_those_of_before() -> None:
    writer = open_writer(TO)
    writer.write({TO.name: batch(0, 1)}, CommitMarker("q", 0, {"t": {0: 2}}, {"t": "new"}))
    assert taken() == {HOUR: 5, NEXT_HOUR: 1}
    state = table_of(TO).state
    assert (state.positions, state.ids, state.recreated) == ({"t": {0: 2}}, {"t": "new"}, ("t",))
    writer = open_writer(TO)
    assert writer.write({TO.name: batch(2, 3)}, CommitMarker("q", 1, {"t": {0: 4}}, {"t": "new"})) == 2


def test_an_archive_that_runs_is_refused() -> None:
    writer = open_writer(TO)
    run = take_over(TO, "lake", "old")
    next(run)
    with pytest.raises(LeaseLost):
        write_batch(writer, TO, batch(6))
    open_writer(TO)
    with pytest.raises(LeaseLost):
        list(run)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("changed", "holds other records than were written: s3://lake/old/date=2026-01-01/hour=10"),
        ("gone", "an object does not exist; got: s3://lake/old/date=2026-01-01/hour=10"),
        ("cut", "cannot be read: s3://lake/old/date=2026-01-01/hour=10"),
        ("state", "_penstock/states/00000001-a-000000003.json.gz is no valid object of an archive"),
    ],
)
def test_a_damaged_archive_is_refused(damage: str, message: str) -> None:
    old, key = file_io.open_bucket("lake", "old"), "date=2026-01-01/hour=10/00000001-a-000000001.parquet"
    if damage == "changed":
        old.put(key, parquet_bytes(batch(0, 1, 7)))
    elif damage == "gone":
        old.delete(key)
    elif damage == "cut":
        old.put(key, old.get(key)[:-9])
    else:
        old.put("_penstock/states/00000001-a-000000003.json.gz", b"nothing")
    with pytest.raises(SinkError) as e:
        taken()
    assert message in str(e.value)
    assert ArchiveTable.find(TO) is None or hours(TO) == {}


def test_a_place_without_an_archive_is_refused() -> None:
    with pytest.raises(SinkError, match="there is no archive of the old layout; got: s3://lake/elsewhere"):
        list(take_over(TO, "lake", "elsewhere"))
