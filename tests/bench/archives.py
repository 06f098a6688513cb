"""Rates of an archive's table: written, read back, read and verified, and planned; and what a day leaves of it.

The records are in memory, and the writer, the reader and the library's own scan take turns in one process; the table is
in the embedded object store, and its catalog in MariaDB.

    python -m tests.bench.archives [million records] [hours to plan] [hours of a slow topic] [batches of a fast one]
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import duckdb
import pyarrow as pa

from penstock.archive import catalog
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.hour_closer import HourCloser
from penstock.archive.reader import read_file, read_hours, read_interval
from penstock.archive.records import SCHEMA
from penstock.archive.stream import ArchiveOutput, output_of
from penstock.archive.table import ArchiveTable
from penstock.archive.writer import ArchiveWriter
from penstock.model.archive import Archive
from penstock.model.output import CommitMarker
from penstock.streams import Topic
from tests.bench.archive_servers import archive_servers
from tests.bench.common import table as as_table
from tests.bench.common import write

START = datetime(2026, 1, 1, tzinfo=UTC)
BATCH = 500_000
RECORDS = """
SELECT 'events' AS topic, (n % 4)::INT AS partition, n // 4 AS "offset", encode('key-' || n % 1000) AS key,
  encode('{"shop":"shop-' || n % 1000 || '","amount":' || n % 977 || ',"at":' || epoch_ms(t) || '}') AS value,
  t AS timestamp, NULL::STRUCT(key VARCHAR, value BLOB)[] AS headers, t AS event_time
FROM (SELECT n, $start::TIMESTAMPTZ + to_microseconds((n * $step)::BIGINT) AS t FROM range($first, $last) r(n))
"""


def batch(first: int, count: int, step_us: int) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        given = {"start": START, "step": step_us, "first": first, "last": first + count}
        rows = connection.execute(RECORDS, given).to_arrow_table()
        assert rows is not None
        return rows.cast(SCHEMA)


def opened(
    name: str, schema: str = "", interval: timedelta = timedelta(minutes=1)
) -> tuple[ArchiveOutput, ArchiveWriter]:
    topic = Topic("events", partitions=4, schema=schema)
    output = output_of(Archive(name, topic, bucket="lake", prefix=name, every=interval))
    return output, ArchiveWriter(output, ArchiveTable.create(output))


def timed(what: Callable[[], int]) -> tuple[float, float]:
    """Records a second, and CPU seconds of this process for a million."""
    began, cpu = time.monotonic(), time.process_time()
    count = what()
    return count / (time.monotonic() - began), (time.process_time() - cpu) / count * 1e6


def rates(million: int, schema: str = "") -> dict[str, tuple[float, float]]:
    output, writer = opened("decoded" if schema else "rates", schema)
    batches = [batch(first, BATCH, 7200) for first in range(0, million * 1_000_000, BATCH)]

    def written() -> int:
        for number, rows in enumerate(batches):
            writer.write({output.name: rows}, CommitMarker("query", number, {}))
        return million * 1_000_000

    def closed() -> int:
        later = (START + timedelta(days=30)).timestamp()
        HourCloser(writer, output, lambda _: ({}, {}), lambda: later).close_due_hours()
        return million * 1_000_000

    def read() -> int:
        return sum(rows.num_rows for _, rows in read_interval(writer.table))

    def read_by_threads() -> int:
        # As a backfill does.
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return sum(pool.map(lambda file: read_file(writer.table, file).num_rows, writer.table.files()))

    def scanned() -> int:
        return sum(part.num_rows for part in writer.table.batches())

    ways = {
        "written": written, "hours closed, small files joined": closed, "read and verified": read,
        "read and verified, a thread for each core": read_by_threads, "read by the library alone": scanned,
    }  # fmt: skip
    suffix = ", with decoded fields" if schema else ""
    return {name + suffix: timed(way) for name, way in ways.items()}


def left(name: str, batches: int, rows: int, step_us: int, interval: timedelta) -> list[str]:
    """What batches leave, with their hours closed when they are over: its row of the table."""
    output, writer = opened(name, interval=interval)
    seconds = []
    for number in range(batches):
        began, part = time.monotonic(), batch(number * rows, rows, step_us)
        writer.write({output.name: part}, CommitMarker("query", number, {}))
        seconds.append(time.monotonic() - began)
        at = (START + timedelta(microseconds=(number + 1) * rows * step_us)).timestamp()
        HourCloser(writer, output, lambda _: ({}, {}), lambda at=at: at).close_due_hours()  # type: ignore[misc]
    bucket, files = writer.table.bucket, writer.table.files()
    metadata = [one.size for one in bucket.list_objects("metadata") if one.key.endswith(".metadata.json")]
    table = catalog.open_catalog().load_table(output.table)
    return [
        f"{1_000_000 // step_us:,} records/s", f"{batches * rows:,}", f"{batches:,}", f"{len(table.snapshots()):,}",
        f"{len(files):,}",
        f"{sum(file.size for file in files) / 1e6:,.0f}", f"{max(metadata) / 1e6:.2f}",
        f"{median(seconds[:50]):.2f}, {median(seconds[-50:]):.2f}",
    ]  # fmt: skip


def planned(hours: int) -> tuple[float, float, int]:
    """Seconds to plan all files of a table, and to read its hours with what they had when closed; and its files."""
    output, writer = opened("planned")
    # A record in each minute, in batches of a day.
    for day in range(0, hours, 24):
        count = min(24, hours - day) * 60
        writer.write({output.name: batch(day * 60, count, 60_000_000)}, CommitMarker("query", day, {}))
    later = (START + timedelta(days=3650)).timestamp()
    HourCloser(writer, replace(output, target=1), lambda _: ({}, {}), lambda: later).close_due_hours()
    table = ArchiveTable.find(output)
    assert table
    began = time.monotonic()
    files = len(table.files())
    middle = time.monotonic()
    assert len(read_hours(table, ClosedHours.of(output))) == hours
    return middle - began, time.monotonic() - middle, files


def main(million: int, hours: int, slow_hours: int, fast_batches: int) -> None:
    with tempfile.TemporaryDirectory() as folder, archive_servers(Path(folder)):
        found = {**rates(million), **rates(million, "shop STRING, amount BIGINT, at BIGINT")}
        plan_s, hours_s, files = planned(hours)
        # A batch a minute of a topic of 100 records a second; of one of 100,000, one follows the other.
        slow = left("slow", slow_hours * 60, 6_000, 10_000, timedelta(0))
        fast = left("fast", fast_batches, BATCH, 10, timedelta(minutes=1))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    rows = [[name, f"{rate:,.0f}", f"{cpu:.2f}"] for name, (rate, cpu) in found.items()]
    about = (
        f"{million} million records in batches of {BATCH:,}, one process. A table of {hours:,} hours in {files:,} "
        f"files: {plan_s:.2f} s to plan them all, {hours_s:.2f} s to read its hours with what they had when closed."
    )
    figures = {"rate, records/s": {name: [rate] for name, (rate, _) in found.items()}}
    columns = ["", "records", "batches", "snapshots", "files", "MB", "metadata, MB", "batch at first and at last, s"]
    text = (
        f"{about}\n\n{as_table(['', 'records/s', 'CPU s per million'], rows)}\n\n{as_table(columns, [slow, fast])}\n\n"
        f"The process took {memory:,} MiB at most."
    )
    write("archives", text, figures, chart="rate, records/s")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*[*given, *(10, 720, 24, 120)[len(given) :]])
