"""Reads the records of an archive as Arrow tables, and compares each file with what was written.

Each data file says in its own metadata which records it has, and has a checksum for each page; each closed hour says
which records it had. So a file that is cut off, changed, missing or of another program is found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive import records
from penstock.archive.archive_file import ArchiveFile
from penstock.archive.closed_hours import ClosedHour, ClosedHours
from penstock.archive.data_file import SPANS
from penstock.archive.state import Span, Spans, merge_spans, span_difference
from penstock.archive.table import ArchiveTable
from penstock.errors import SinkError
from penstock.object_store.bucket import ObjectNotFound

RESTORE_HINT = "restore the object from a version or backup of the bucket"


@dataclass(frozen=True)
class ArchiveHour:
    """An hour of an archive. `closed`: as it was closed last; None if it never was."""

    name: str
    closed: ClosedHour | None
    files: tuple[ArchiveFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def is_closed(self) -> bool:
        return self.closed is not None and self.closed.records == self.rows


def read_hours(
    table: ArchiveTable, closed: ClosedHours, start: datetime | None = None, end: datetime | None = None
) -> list[ArchiveHour]:
    """The hours with records that overlap an interval, and hours that were closed and have none any more."""
    first = start.replace(minute=0, second=0, microsecond=0) if start else None
    rows = closed.read(first, end - datetime.resolution if end else None)
    files: dict[str, list[ArchiveFile]] = {hour: [] for hour in rows}
    for file in table.files(start, end):
        files.setdefault(file.hour, []).append(file)
    return [ArchiveHour(hour, rows.get(hour), tuple(files[hour])) for hour in sorted(files)]


def read_interval(
    table: ArchiveTable, start: datetime | None = None, end: datetime | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """Read the present records of the hours that overlap an interval, each exactly once.

    Yields:
        An hour and the records of one of its files, as `records.SCHEMA`. A file is yielded after it is verified.

    Raises:
        SinkError: A file is not as it was written, or is missing.
    """
    for file in table.files(start, end):
        yield file.hour, read_file(table, file)


def read_file(table: ArchiveTable, file: ArchiveFile) -> pa.Table:
    """Read and verify the records of a file.

    Raises:
        SinkError: They differ from what was written.
    """
    return pa.concat_tables([records.SCHEMA.empty_table(), *read_batches(table, file)])


def read_batches(table: ArchiveTable, file: ArchiveFile, *, all_columns: bool = False) -> Iterator[pa.Table]:
    """Read the records of a file in parts; the last part follows when all are as they were written. As `read_file`.

    Args:
        table: The table.
        file: The file.
        all_columns: Whether they have the columns of the table, if no rows were deleted of it; else `records.SCHEMA`.
    """
    if file.has_deletes:
        yield table.read_rows(file)
        return
    with _open_parquet(table, file) as parquet:
        expected, found, last = _written_spans(parquet), dict[str, Span](), None
        columns = None if all_columns else records.SCHEMA.names
        for batch in parquet.iter_batches(records.ROW_GROUP_ROWS, columns=columns):
            if last is not None:
                yield last
            rows = pa.Table.from_batches([batch]).select(records.SCHEMA.names).cast(records.SCHEMA)
            found = merge_spans([found, records.spans_of(rows)]) if expected is not None else found
            last = table.project(batch, parquet.schema_arrow) if all_columns else rows
        if expected is not None and (difference := span_difference(expected, found)):
            raise SinkError(
                f"a file of the archive holds other records than were written: {table.bucket.url(file.key)}",
                got=difference, hint=RESTORE_HINT,
            )  # fmt: skip
        if last is not None:
            yield last


def spans_of_file(table: ArchiveTable, file: ArchiveFile) -> Spans:
    """The records of a file by partition, as its metadata says; they are read if that says nothing.

    Raises:
        SinkError: The file is damaged or missing.
    """
    if not file.has_deletes:
        with _open_parquet(table, file) as parquet:
            if (spans := _written_spans(parquet)) is not None:
                return spans
    return merge_spans(map(records.spans_of, read_batches(table, file)))


def _written_spans(parquet: pq.ParquetFile) -> Spans | None:
    """What a file says of its records; None for one of another program."""
    text = (parquet.metadata.metadata or {}).get(SPANS.encode())
    return {name: Span(*numbers) for name, numbers in json.loads(text).items()} if text else None


@contextmanager
def _open_parquet(table: ArchiveTable, file: ArchiveFile) -> Iterator[Any]:
    """Open a data file; SinkError with its URL if it is missing, not readable, or another one than was written."""
    url = table.bucket.url(file.key)
    try:
        with table.bucket.open_input(file.key) as source:
            with _readable(url), pq.ParquetFile(source, page_checksum_verification=True) as parquet:
                if missing := [name for name in records.SCHEMA.names if name not in parquet.schema_arrow.names]:
                    raise pa.ArrowInvalid(f"the columns are not those of an archive: {', '.join(missing)} missing")
                if (found := (source.size(), parquet.metadata.num_rows)) != (file.size, file.rows):
                    raise SinkError(
                        f"a file of the archive is not the one that was written: {url}",
                        got=f"{found[0]:,} bytes and {found[1]:,} records; the table says {file.size:,} and "
                        f"{file.rows:,}",
                        hint=RESTORE_HINT,
                    )
                yield parquet
    except ObjectNotFound as e:
        e.restate(f"a file of the archive is missing: {url}")
        raise


@contextmanager
def _readable(url: str) -> Iterator[None]:
    """Raise what Parquet says within the block of a file; errors of the store are left as they are."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as e:
        if isinstance(e, OSError) and "AWS Error" in str(e):
            raise
        raise SinkError(f"a file of the archive cannot be read: {url}", got=str(e)[:300], hint=RESTORE_HINT) from e


def check_hour(table: ArchiveTable, hour: ArchiveHour, spans: Sequence[Spans]) -> None:
    """Compare an hour that was closed with the records that its files had then. spans: of these.

    Raises:
        SinkError: They are others.
    """
    if hour.closed and (difference := span_difference(hour.closed.spans, _of_partitions(hour.closed, spans))):
        raise SinkError(
            f"hour {hour.name} of table {table.name} has other records than when it was closed",
            got=difference,
            hint="look for what changed the table, and write the missing rows back, of its snapshot "
            f"{hour.closed.snapshot} if that is kept; do not roll the table back",
        )  # fmt: skip


def _of_partitions(closed: ClosedHour, spans: Sequence[Spans]) -> Spans:
    """The records of the partitions that an hour had when it was closed."""
    return {name: span for name, span in merge_spans(spans).items() if name in closed.spans}
