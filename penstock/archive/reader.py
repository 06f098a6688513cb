"""Reads an archive: the records of some hours as Arrow tables, each file held against what the archive says of it."""

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

RESTORE_HINT = "bring the object back from a version or backup of the bucket"


@dataclass(frozen=True)
class ArchiveHour:
    """An hour of an archive. manifest: None while it was never closed; late_files: files that the manifest lacks."""

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
        """Contradictions within the manifest; normally none."""
        twice = [key for key, count in Counter(file.key for file in self.files).items() if count > 1]
        found = [f"{key} is named more than once, so its records would count more than once" for key in twice]
        if self.manifest and (
            why := span_difference(self.manifest.spans, merge_spans(f.spans for f in self.manifest.files))
        ):
            found.append(f"the manifest says other than its files: {why}")
        return tuple(found)


def hours_between(state: ArchiveState, start: datetime | None = None, end: datetime | None = None) -> list[str]:
    """The hours of a state that lie, in part at least, in an interval."""
    return [
        hour
        for hour in state.hours
        if (end is None or layout.hour_start(hour) < end) and (start is None or start <= layout.hour_end(hour))
    ]


def read_hour(store: Bucket, state: ArchiveState, name: str) -> ArchiveHour:
    """SinkError if the hour's manifest is none, or says other than the state."""
    closed = state.closed.get(name)
    manifest = read_manifest(store, closed) if closed else None
    if (
        closed
        and manifest
        and (manifest.hour, manifest.revision, manifest.rows) != (name, closed.revision, closed.rows)
    ):
        raise SinkError(
            f"the manifest {store.url(closed.key)} is not that of hour {name}",
            got=f"hour {manifest.hour}, revision {manifest.revision}, {manifest.rows} rows; named are revision "
            f"{closed.revision}, {closed.rows} rows",
            hint=RESTORE_HINT,
        )
    return ArchiveHour(name, manifest, tuple(state.open.get(name, ())))


def read_consistent_hour(store: Bucket, state: ArchiveState, name: str) -> ArchiveHour:
    """An hour whose files can be read; SinkError too if its manifest names one twice, or other records than they."""
    found = read_hour(store, state, name)
    if found.inconsistencies:
        closed = state.closed.get(name)
        raise SinkError(
            f"what the archive says of hour {name} cannot be: {store.url(closed.key if closed else state.name)}",
            got="; ".join(found.inconsistencies)[:300],
            hint=RESTORE_HINT,
        )
    return found


def read_interval(store: Bucket, start: datetime, end: datetime) -> Iterator[tuple[str, pa.Table]]:
    """The hours of an interval with the records of each of their files, `records.SCHEMA`, as of now.

    Each record once. A file is given only when all of it is as the archive says; SinkError if it is not, with the
    object's name, and where one is gone: begin again at that hour, if the archive was joined meanwhile.
    """
    state = latest_state(store)
    for name in hours_between(state, start, end):
        for file in read_consistent_hour(store, state, name).files:
            yield name, read_file(store, file)


def read_file(store: Bucket, file: ArchiveFile) -> pa.Table:
    """The records of a file. SinkError if they are not what the archive says of them."""
    place = store.url(file.key)
    with _open_file(store, file) as source:
        found = pa.concat_tables([records.SCHEMA.empty_table(), *records.read_tables(source)])
    if why := span_difference(file.spans, records.spans_of(found)):
        raise SinkError(
            f"a file of the archive holds other records than were written: {place}", got=why, hint=RESTORE_HINT
        )
    return found


def timestamp_range(store: Bucket, file: ArchiveFile) -> tuple[datetime, datetime] | None:
    """The first and last `timestamp` of a file's records, by its footer alone; None if that does not say."""
    column = records.SCHEMA.get_field_index("timestamp")
    with _open_file(store, file) as source, pq.ParquetFile(source) as parquet:
        groups = [parquet.metadata.row_group(n) for n in range(parquet.num_row_groups)]
        found: list[Any] = [group.column(column).statistics for group in groups if group.num_rows]
        if any(one is None or not one.has_min_max for one in found):
            return None
        # As the file has them: not every one is a time that Python knows.
        return records.clamped_time(min(one.min_raw for one in found)), records.clamped_time(
            max(one.max_raw for one in found)
        )


@contextmanager
def _open_file(store: Bucket, file: ArchiveFile) -> Iterator[Any]:
    """A file of an archive. SinkError with its place if it is gone, or no such file."""
    place = store.url(file.key)
    try:
        with store.open_input(file.key) as source:
            yield source
    except ObjectNotFound as e:
        e.restate(f"a file of the archive is gone: {place}")
        raise
    except (pa.ArrowException, OSError) as e:
        raise SinkError(f"a file of the archive cannot be read: {place}", got=str(e)[:300], hint=RESTORE_HINT) from e


def span_difference(said: Spans, found: Spans) -> str:
    """How what was found differs from what was said; empty if it does not."""
    for place in sorted({*said, *found}):
        one, other = said.get(place), found.get(place)
        if one != other:
            return f"{place}: {_span_text(other)}; said are {_span_text(one)}"
    return ""


def _span_text(span: Span | None) -> str:
    if span is None:
        return "none"
    return f"{span.rows} records, offsets {span.first} to {span.last}, sum {span.sum:016x}"
