"""Archives that somebody else changed: each change is reported, with the object and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.archive import records
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.reader import read_interval
from penstock.archive.register import STATE
from penstock.archive.table import ArchiveTable
from penstock.archive.verify import HourVerification, verify_archive
from penstock.errors import SinkError
from tests.support.small_archive import (
    HOUR,
    NEXT_HOUR,
    batch,
    closer,
    is_valid,
    keys,
    local_store,
    open_writer,
    output,
    parquet_bytes,
    table_of,
    write_batch,
)  # fmt: skip

TO = output(target=1)


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[None]:
    """An hour that is closed, of two files that were not joined, and one that is open."""
    with local_store(tmp_path):
        writer = open_writer(TO)
        write_batch(writer, TO, batch(0, 1, 2), 0)
        write_batch(writer, TO, batch(3, 4), 1)
        closer(writer, TO, 5).close_due_hours()
        write_batch(writer, TO, batch(5, hour=11), 2)
        assert is_valid(TO)
        yield


def cut(table: ArchiveTable) -> None:
    key = keys(TO)[0]
    table.bucket.put(key, table.bucket.get(key)[:-20])


def strange(table: ArchiveTable) -> None:
    table.bucket.put(keys(TO)[0], parquet_bytes(pa.table({"n": [1]})))


def changed_page(table: ArchiveTable) -> None:
    """A bit of a page is another one."""
    key = keys(TO)[0]
    content = bytearray(table.bucket.get(key))
    chunk = pq.ParquetFile(pa.BufferReader(bytes(content))).metadata.row_group(0).column(4)
    content[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    table.bucket.put(key, bytes(content))


def other_file(table: ArchiveTable) -> None:
    table.bucket.put(keys(TO)[1], parquet_bytes(batch(3)))


def gone(table: ArchiveTable) -> None:
    table.bucket.delete(keys(TO)[1])


def deleted_rows(table: ArchiveTable) -> None:
    """Another program deletes a row."""
    table._table.delete("offset = 1")


def replaced_rows(table: ArchiveTable) -> None:
    """Another program changes a row: as many are there as before."""
    rows = batch(0, 1, 2).to_pylist()
    rows[1]["value"] = b"other"
    table._table.overwrite(pa.Table.from_pylist(rows, records.SCHEMA), "offset < 3")


CHANGES: dict[Callable[[ArchiveTable], None], str] = {
    cut: "cannot be read: s3://lake/",
    strange: "the columns are not those of an archive: topic",
    changed_page: "cannot be read: s3://lake/",
    other_file: "is not the one that was written: s3://lake/kept/data",
    gone: "a file of the archive is missing: s3://lake/",
    deleted_rows: "has other records than when it was closed; got: t/0: 4 records",
    replaced_rows: "has other records than when it was closed",
}


@pytest.mark.parametrize("damage", CHANGES, ids=lambda one: one.__name__)
def test_each_change_is_reported_with_a_hint(damage: Callable[[ArchiveTable], None]) -> None:
    damage(table_of(TO))
    found: dict[str, HourVerification] = {one.hour: one for one in verify_archive(table_of(TO), ClosedHours.of(TO))}
    assert not found[HOUR].ok
    assert found[NEXT_HOUR].ok, "the other hour is as it was"
    said = " ".join(f"{one.what}; hint: {one.hint}" for one in found[HOUR].findings)
    assert CHANGES[damage] in said
    assert all(one.hint for one in found[HOUR].findings)


@pytest.mark.parametrize("damage", [cut, strange, changed_page, other_file, gone])
def test_a_reader_refuses_a_changed_file(damage: Callable[[ArchiveTable], None]) -> None:
    damage(table_of(TO))
    with pytest.raises(SinkError, match="s3://lake/"):
        list(read_interval(table_of(TO)))


def test_an_invalid_state_is_reported() -> None:
    with table_of(TO)._table.transaction() as change:
        change.set_properties({STATE: "nothing"})
        with change.update_snapshot({STATE: "nothing"}).fast_append():
            pass
    with pytest.raises(SinkError, match=r"the property of table penstock.kept that says what is archived is invalid"):
        open_writer(TO)


def test_an_interval_selects_its_hours() -> None:
    first, second = datetime(2026, 1, 1, 10, tzinfo=UTC), datetime(2026, 1, 1, 11, tzinfo=UTC)
    table = table_of(TO)
    assert [hour for hour, _ in read_interval(table, first, second)] == [HOUR, HOUR]
    assert [hour for hour, _ in read_interval(table, second, second.replace(minute=1))] == [NEXT_HOUR]
    assert not list(read_interval(table, datetime(2025, 1, 1, tzinfo=UTC), first))
