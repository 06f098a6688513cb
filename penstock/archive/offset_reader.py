"""Reads the records of a topic in an archive by their offsets, into Parquet files on the local disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from penstock.archive import parquet, reader
from penstock.archive.layout import ArchiveFile, ArchiveState, Span, merge_spans
from penstock.archive.state_log import latest_state
from penstock.archive.writer import archive_bucket
from penstock.errors import SinkError
from penstock.object_store.bucket import Bucket, ObjectNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from penstock.archive.stream import ArchiveOutput

# Files that are fetched and compared at once: neither holds Python's lock.
CONCURRENT_FILES = 4
# Times that a manifest or a file may be missing because the archive was joined meanwhile.
ATTEMPTS = 3


@dataclass(frozen=True)
class OffsetRange:
    """The records of a partition from an offset to before another one."""

    start: int
    end: int

    def overlaps(self, span: Span) -> bool:
        return span.first < self.end and span.last >= self.start

    def contains(self, span: Span) -> bool:
        return self.start <= span.first and span.last < self.end


class ArchivedTopic:
    """The records of one topic in an archive, as of the last `refresh`. It is a
    `penstock.model.record_reader.RecordReader`.

    Args:
        store: The archive's folder of a bucket.
        topic: The topic.

    Raises:
        SinkError: The archive cannot be read.
        Wait: The store does not answer.
    """

    def __init__(self, store: Bucket, topic: str) -> None:
        self._store, self._topic = store, topic
        self._state = ArchiveState()
        # By manifest: reopened hours get a new one.
        self._closed: dict[str, tuple[ArchiveFile, ...]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read what the archive holds now."""
        self._state = latest_state(self._store)

    @property
    def topic_id(self) -> str:
        """The broker's id of the topic; empty if nothing of it is archived, or records of two topics of this name."""
        return "" if self._topic in self._state.recreated else self._state.ids.get(self._topic, "")

    @property
    def begins(self) -> Mapping[int, int]:
        """By partition, the offset from which on all records are archived up to `ends`."""
        return self._state.begins.get(self._topic, {})

    @property
    def ends(self) -> Mapping[int, int]:
        """By partition, the offset after the last archived record."""
        return self._state.positions.get(self._topic, {})

    def first_offsets(self, since: int) -> dict[int, int]:
        """By partition, an offset before which no record has an event time of the archive at `since`, epoch ms, or
        later; partitions without such records are missing."""
        start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=since)
        names = reader.hours_between(self._state, start)
        spans = merge_spans(file.spans for name in names for file in self._hour(name))
        return {p: span.first for p in self.ends if (span := spans.get(f"{self._topic}/{p}")) is not None}

    def fetch(self, starts: Mapping[int, int], ends: Mapping[int, int], folder: Path, cache: Path) -> list[Path]:
        """Write the records between some offsets as Parquet files with the columns of an archive. Each file of the
        archive is compared with what the archive says of it.

        Args:
            starts: The first offsets, by partition.
            ends: The next offsets behind the last ones; at most `ends` of the archive.
            folder: Where the files are written.
            cache: For files of the archive that later calls need, too.

        Raises:
            SinkError: A file is missing, or does not hold what the archive says.
            Wait: The store does not answer.
        """
        ranges = {f"{self._topic}/{p}": OffsetRange(starts.get(p, 0), end) for p, end in ends.items()}
        for attempt in range(ATTEMPTS):
            try:
                files = list(self._files(ranges))
                targets = [folder / f"{n}" for n in range(len(files))]
                with ThreadPoolExecutor(CONCURRENT_FILES, "archive") as pool:
                    paths = pool.map(lambda file, target: self._fetch(file, ranges, target, cache), files, targets)
                    return list(filter(None, paths))
            except ObjectNotFound:
                if attempt == ATTEMPTS - 1:
                    raise
                self._closed.clear()
                self.refresh()
        raise AssertionError

    def _files(self, ranges: Mapping[str, OffsetRange]) -> Iterator[ArchiveFile]:
        for name in self._state.hours:
            for file in self._hour(name):
                if any(place in ranges and ranges[place].overlaps(span) for place, span in file.spans.items()):
                    yield file

    def _hour(self, name: str) -> tuple[ArchiveFile, ...]:
        closed = self._state.closed.get(name)
        if closed and closed.key not in self._closed:
            manifest = reader.read_consistent_hour(self._store, self._state, name).manifest
            self._closed[closed.key] = manifest.files if manifest else ()
        return (*(self._closed[closed.key] if closed else ()), *self._state.open.get(name, ()))

    def _fetch(self, file: ArchiveFile, ranges: Mapping[str, OffsetRange], target: Path, cache: Path) -> Path | None:
        """The records of a file that are in the ranges, in a file of their own; None if there are none."""
        own = self._download(file, cache)
        path = target.with_suffix(".parquet")
        if all(place in ranges and ranges[place].contains(span) for place, span in file.spans.items()):
            own.replace(path)
            return path
        wanted = reduce(or_, (self._in_range(place, one) for place, one in ranges.items()))
        rows = 0
        with pq.ParquetWriter(path, parquet.SCHEMA, compression="zstd") as writer:
            for batch in pads.dataset(own, schema=parquet.SCHEMA, format="parquet").to_batches(filter=wanted):
                if batch.num_rows:
                    writer.write_batch(batch, row_group_size=parquet.ROW_GROUP_ROWS)
                    rows += batch.num_rows
        # Records of later offsets are of later calls.
        if all(place in ranges and span.last < ranges[place].end for place, span in file.spans.items()):
            own.unlink()
        return path if rows else None

    def _in_range(self, place: str, one: OffsetRange) -> pads.Expression:
        topic, _, partition = place.rpartition("/")
        offset = pads.field("offset")
        return (
            (pads.field("topic") == topic)
            & (pads.field("partition") == int(partition))
            & (offset >= one.start)
            & (offset < one.end)
        )

    def _download(self, file: ArchiveFile, cache: Path) -> Path:
        """A local copy of a file, whose records were compared with what the archive says."""
        path = cache / file.key.replace("/", "_")
        if path.exists():
            return path
        fresh, url = path.with_suffix(".fresh"), self._store.url(file.key)
        # A joined file has 128 MB.
        fresh.write_bytes(self._store.get(file.key))
        try:
            spans = merge_spans(map(parquet.spans_of, parquet.read_tables(fresh)))
        except pa.ArrowException as e:
            raise SinkError(
                f"a file of the archive cannot be read: {url}", got=str(e)[:300], hint=reader.RESTORE_HINT
            ) from e
        reader.check_spans(file, spans, url)
        return fresh.replace(path)


def open_topic(output: ArchiveOutput, topic: str) -> ArchivedTopic:
    """The records of a topic in an archive; see `penstock.model.output.Output.reader`."""
    return ArchivedTopic(archive_bucket(output.bucket, output.prefix), topic)
