"""An archive of a few records of topic `t`, written without Spark into a local folder and a catalog in a file: its
batches and hours, rows, and damages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.archive import catalog, file_io, records, register, state
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.hour_closer import HourCloser
from penstock.archive.reader import ArchiveHour, read_hours, read_interval
from penstock.archive.stream import ArchiveOutput
from penstock.archive.table import ArchiveTable
from penstock.archive.verify import verify_archive
from penstock.archive.writer import ArchiveWriter
from penstock.model.output import CommitMarker
from penstock.object_store.bucket import Bucket
from penstock.settings import settings
from tests.support.s3_store import Calls, Failing, LocalBucket

HOUR, NEXT_HOUR = "2026-01-01T10", "2026-01-01T11"
LATER = state.hour_start("2026-01-01T12").timestamp() + 900.0


def output(name: str = "kept", target: int = 1 << 27) -> ArchiveOutput:
    return ArchiveOutput(name, "lake", name, f"penstock.{name}", ("t",), 900.0, target)


@contextmanager
def local_store(folder: Path, calls: Calls | None = None) -> Iterator[None]:
    """Archives are in a local folder within the block. calls: counts those of the store and the catalog."""

    def open_bucket(_bucket: str, prefix: str = "") -> Bucket:
        bucket = LocalBucket(folder, prefix)
        return Failing(bucket, calls) if calls else bucket

    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{folder}/catalog.db")
        patch.setattr(file_io, "open_bucket", open_bucket)
        patch.setattr(register, "COMMIT_TIME", 0.0)
        if calls:
            for name in ("load_table", "create_table", "commit_table"):
                patch.setattr(catalog.ControlCatalog, name, _counted(getattr(catalog.ControlCatalog, name), calls))
        settings.cache_clear()
        yield
        # A test that patches it for longer than this block would bring this one back at its end.
        assert file_io.open_bucket is open_bucket
    settings.cache_clear()


def _counted(method: Any, calls: Calls) -> Any:
    return lambda *args, **options: calls.call(lambda: method(*args, **options))


def once_before(patch: pytest.MonkeyPatch, owner: object, name: str, act: Callable[[], object]) -> None:
    """Before the next call of a function something happens, once."""
    real, due = getattr(owner, name), [act]

    def call(*args: object, **options: object) -> object:
        if due:
            due.pop()()
        return real(*args, **options)

    patch.setattr(owner, name, call)


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
    return pa.Table.from_pylist(rows, records.SCHEMA)


def open_writer(to: ArchiveOutput) -> ArchiveWriter:
    return ArchiveWriter(to, ArchiveTable.create(to))


def write_batch(writer: ArchiveWriter, to: ArchiveOutput, rows: pa.Table, number: int = 0) -> int:
    ends: dict[int, int] = {}
    for row in rows.to_pylist():
        ends[row["partition"]] = max(ends.get(row["partition"], 0), row["offset"] + 1)
    return writer.write({to.name: rows}, CommitMarker("query", number, {"t": ends}))


def closer(writer: ArchiveWriter, to: ArchiveOutput, end: int, now: float = LATER) -> HourCloser:
    return HourCloser(writer, to, lambda _: ({}, {("t", 0): end}), lambda: now)


def table_of(to: ArchiveOutput) -> ArchiveTable:
    table = ArchiveTable.find(to)
    assert table
    return table


def archived_rows(to: ArchiveOutput) -> list[dict[str, object]]:
    """All records of an archive, read as a backfill reads them, by partition and offset."""
    rows = [row for _, part in read_interval(table_of(to)) for row in part.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def hours(to: ArchiveOutput) -> dict[str, ArchiveHour]:
    return {hour.name: hour for hour in read_hours(table_of(to), ClosedHours.of(to))}


def is_valid(to: ArchiveOutput) -> bool:
    return all(one.ok for one in verify_archive(table_of(to), ClosedHours.of(to)))


BATCHES = [batch(*range(10)), pa.concat_tables([batch(*range(10, 15)), batch(15, 16, hour=11)]), batch(17, 18, hour=10)]
ALL_ROWS = sorted((row for one in BATCHES for row in one.to_pylist()), key=lambda row: row["offset"])


def write_archive(to: ArchiveOutput) -> None:
    """Batches, a closed hour with its files joined, a late record, the hour closed once more."""
    writer = open_writer(to)
    for number, one in enumerate(BATCHES[:2]):
        write_batch(writer, to, one, number)
    closer(writer, to, 17).close_due_hours()
    write_batch(writer, to, BATCHES[2], 2)
    closer(writer, to, 19, LATER + 2000).close_due_hours()


def keys(to: ArchiveOutput, hour: str = HOUR) -> list[str]:
    """The files of an hour."""
    return [file.key for file in table_of(to).files_of_hour(hour)]


def parquet_bytes(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(rows, out)
    return bytes(out.getvalue())
