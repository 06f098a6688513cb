"""Reads the records of an archive as Arrow tables, and compares each file with its entry in the state or manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive import layout
from penstock.archive import parquet as records
from penstock.archive.hour_closer import read_manifest
from penstock.archive.layout import ArchiveFile, ArchiveState, HourManifest, Span, Spans, merge_spans
from penstock.archive.state_log import latest_state
from penstock.errors import SinkError
from penstock.object_store.bucket import Bucket, ObjectNotFound

RESTORE_HINT = "restore the object from a version or backup of the bucket"


@dataclass(frozen=True)
class ArchiveHour:
    """An hour of an archive.

    Attributes:
        name: The hour.
        manifest: None if the hour was never closed.
        late_files: Files that are not in the manifest.
    """

    name: str
    manifest: HourManifest | None
    late_files: tuple[ArchiveFile, ...]

    @property
    def files(self) -> tuple[ArchiveFile, ...]:
        return (*(self.manifest.files if self.manifest else ()), *self.late_files)

    @property
    def closed(self) -> bool:
        return self.manifest is not None and not self.late_files

    @property
    def spans(self) -> Spans:
        return merge_spans(
            [*([self.manifest.spans] if self.manifest else []), *(file.spans for file in self.late_files)]
        )

    @property
    def inconsistencies(self) -> tuple[str, ...]:
        """Contradictions within the manifest; normally empty."""
        duplicates = [key for key, count in Counter(file.key for file in self.files).items() if count > 1]
        texts = [f"{key} is listed more than once, so its records would count more than once" for key in duplicates]
        if self.manifest and (
            difference := span_difference(self.manifest.spans, merge_spans(f.spans for f in self.manifest.files))
        ):
            texts.append(f"the totals of the manifest differ from those of its files: {difference}")
        return tuple(texts)


def hours_between(state: ArchiveState, start: datetime | None = None, end: datetime | None = None) -> list[str]:
    """The hours of a state that overlap an interval."""
    return [
        hour
        for hour in state.hours
        if (end is None or layout.hour_start(hour) < end) and (start is None or start <= layout.hour_end(hour))
    ]


def read_hour(store: Bucket, state: ArchiveState, name: str) -> ArchiveHour:
    """Read the manifest of an hour.

    Raises:
        SinkError: The manifest is invalid, or contradicts the state.
    """
    closed = state.closed.get(name)
    manifest = read_manifest(store, closed) if closed else None
    if (
        closed
        and manifest
        and (manifest.hour, manifest.revision, manifest.rows) != (name, closed.revision, closed.rows)
    ):
        raise SinkError(
            f"the manifest {store.url(closed.key)} is not that of hour {name}",
            got=f"hour {manifest.hour}, revision {manifest.revision}, {manifest.rows} rows; the state has revision "
            f"{closed.revision}, {closed.rows} rows",
            hint=RESTORE_HINT,
        )
    return ArchiveHour(name, manifest, tuple(state.open.get(name, ())))


def read_consistent_hour(store: Bucket, state: ArchiveState, name: str) -> ArchiveHour:
    """As `read_hour`; SinkError also if the manifest contradicts itself."""
    hour = read_hour(store, state, name)
    if hour.inconsistencies:
        closed = state.closed.get(name)
        raise SinkError(
            f"the manifest of hour {name} contradicts itself: {store.url(closed.key if closed else state.name)}",
            got="; ".join(hour.inconsistencies)[:300],
            hint=RESTORE_HINT,
        )
    return hour


def read_interval(store: Bucket, start: datetime, end: datetime) -> Iterator[tuple[str, pa.Table]]:
    """Read the present records of an interval, each exactly once.

    Yields:
        An hour and the records of one of its files, as `records.SCHEMA`. A file is yielded after it is verified.

    Raises:
        SinkError: A file is not as the archive says, or is missing. If files were joined in the meantime, start again
            at that hour.
    """
    state = latest_state(store)
    for name in hours_between(state, start, end):
        for file in read_consistent_hour(store, state, name).files:
            yield name, read_file(store, file)


def read_file(store: Bucket, file: ArchiveFile) -> pa.Table:
    """Read and verify the records of a file.

    Raises:
        SinkError: They differ from what the archive says.
    """
    url = store.url(file.key)
    with _open_file(store, file) as source:
        table = pa.concat_tables([records.SCHEMA.empty_table(), *records.read_tables(source)])
    check_spans(file, records.spans_of(table), url)
    return table


def check_spans(file: ArchiveFile, spans: Spans, url: str) -> None:
    """Raise SinkError if a file holds other records than the archive says. spans: of its records."""
    if difference := span_difference(file.spans, spans):
        raise SinkError(
            f"a file of the archive holds other records than were written: {url}", got=difference, hint=RESTORE_HINT
        )


def timestamp_range(store: Bucket, file: ArchiveFile) -> tuple[datetime, datetime] | None:
    """The first and last `timestamp` of a file's records by its Parquet footer; None if that has no statistics."""
    index = records.SCHEMA.get_field_index("timestamp")
    with _open_file(store, file) as source, pq.ParquetFile(source) as parquet:
        groups = [parquet.metadata.row_group(n) for n in range(parquet.num_row_groups)]
        statistics: list[Any] = [group.column(index).statistics for group in groups if group.num_rows]
        if any(column is None or not column.has_min_max for column in statistics):
            return None
        # The raw values: Python's datetime has no room for some of them.
        first, last = min(s.min_raw for s in statistics), max(s.max_raw for s in statistics)
        return records.clamped_time(first), records.clamped_time(last)


@contextmanager
def _open_file(store: Bucket, file: ArchiveFile) -> Iterator[Any]:
    """Open a file of an archive; SinkError with its URL if it is missing or not readable."""
    url = store.url(file.key)
    try:
        with store.open_input(file.key) as source:
            yield source
    except ObjectNotFound as e:
        e.restate(f"a file of the archive is missing: {url}")
        raise
    except (pa.ArrowException, OSError) as e:
        raise SinkError(f"a file of the archive cannot be read: {url}", got=str(e)[:300], hint=RESTORE_HINT) from e


def span_difference(expected: Spans, actual: Spans) -> str:
    """The first difference of two sets of records as text; empty if there is none."""
    for partition in sorted({*expected, *actual}):
        stated, read = expected.get(partition), actual.get(partition)
        if stated != read:
            return f"{partition}: {_span_text(read)}; expected {_span_text(stated)}"
    return ""


def _span_text(span: Span | None) -> str:
    if span is None:
        return "none"
    return f"{span.rows} records, offsets {span.first} to {span.last}, sum {span.sum:016x}"
