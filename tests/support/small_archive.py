"""An archive of a few records of topic `t`, written without Spark: its batches and hours, rows, and damages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive import layout, parquet, reader, state_log
from penstock.archive.hour_closer import GARBAGE_GRACE, HourCloser, read_manifest
from penstock.archive.layout import HourManifest
from penstock.archive.stream import ArchiveOutput
from penstock.archive.verify import verify_archive
from penstock.archive.writer import ArchiveWriter
from penstock.model.output import CommitMarker
from penstock.object_store.bucket import Bucket

HOUR = "2026-01-01T10"
LATER = layout.hour_start("2026-01-01T12").timestamp() + 900.0


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


def write_batch(writer: ArchiveWriter, to: ArchiveOutput, rows: pa.Table, number: int = 0) -> int:
    ends: dict[int, int] = {}
    for row in rows.to_pylist():
        ends[row["partition"]] = max(ends.get(row["partition"], 0), row["offset"] + 1)
    return writer.write({to.name: rows}, CommitMarker("query", number, {"t": ends}))


def closer(writer: ArchiveWriter, to: ArchiveOutput, end: int, now: float = LATER) -> HourCloser:
    return HourCloser(writer, to, lambda _: ({}, {("t", 0): end}), lambda: now)


def archived_rows(store: Bucket) -> list[dict[str, object]]:
    """All records of an archive, read as a backfill reads them, by partition and offset."""
    found = reader.read_interval(store, datetime(1970, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC))
    rows = [row for _, table in found for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def is_valid(store: Bucket) -> bool:
    return all(one.ok for one in verify_archive(store))


BATCHES = [batch(*range(10)), pa.concat_tables([batch(*range(10, 15)), batch(15, 16, hour=11)]), batch(17, 18, hour=10)]


def write_archive(store: Bucket) -> None:
    """Batches, a closed hour with its files joined, a late record, the hour closed once more, old files removed."""
    to = output(store)
    writer = ArchiveWriter(to, store)
    for number, one in enumerate(BATCHES[:2]):
        write_batch(writer, to, one, number)
    closer(writer, to, 17).close_due_hours()
    write_batch(writer, to, BATCHES[2], 2)
    closer(writer, to, 19, LATER + 2000).close_due_hours()
    closer(writer, to, 19, LATER + 2000 + GARBAGE_GRACE + 1).close_due_hours()


ALL_ROWS = sorted((row for one in BATCHES for row in one.to_pylist()), key=lambda row: row["offset"])


def files(store: Bucket) -> list[str]:
    """The files of the closed hour."""
    return [file.key for file in manifest(store).files]


def manifest(store: Bucket) -> HourManifest:
    return read_manifest(store, state_log.latest_state(store).closed[HOUR])


def edit_manifest(store: Bucket, make: Callable[[HourManifest], HourManifest]) -> None:
    store.put(state_log.latest_state(store).closed[HOUR].key, make(manifest(store)).write())


def cut(store: Bucket) -> None:
    key = files(store)[0]
    store.put(key, store.get(key)[:-20])


def strange(store: Bucket) -> None:
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1]}), out)
    store.put(files(store)[0], bytes(out.getvalue()))


def twice(store: Bucket) -> None:
    edit_manifest(store, lambda said: replace(said, files=(*said.files, said.files[0])))


def of_another_hour(store: Bucket) -> None:
    edit_manifest(store, lambda said: replace(said, hour="2026-01-01T09"))
