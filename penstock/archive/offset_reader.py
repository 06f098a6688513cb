"""Reads the records of a topic in an archive by their offsets, into Parquet files on the local disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow.dataset as pads
import pyarrow.parquet as pq

from penstock.archive import records
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.reader import read_batches, read_hours, spans_of_file
from penstock.archive.state import EPOCH, ArchiveState, merge_spans
from penstock.archive.table import ArchiveTable
from penstock.object_store.bucket import ObjectNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.archive.archive_file import ArchiveFile
    from penstock.archive.state import Spans
    from penstock.archive.stream import ArchiveOutput

    Ranges = Mapping[int, tuple[int, int]]
    """By partition, the first offset and the one behind the last."""

# Files that are fetched and compared at once: neither holds Python's lock.
CONCURRENT_FILES = 4
# Times that a file may be missing because the archive was joined meanwhile.
ATTEMPTS = 3


class ArchivedTopic:
    """The records of one topic in an archive, as of the last `refresh`. It is a
    `penstock.model.record_reader.RecordReader`.

    Args:
        output: The archive.
        topic: The topic.

    Raises:
        SinkError: The archive cannot be read.
        Wait: The catalog or the store does not answer.
    """

    def __init__(self, output: ArchiveOutput, topic: str) -> None:
        self._output, self._topic, self._closed = output, topic, ClosedHours.of(output)
        self._table: ArchiveTable | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read what the archive holds now."""
        if self._table is None:
            self._table = ArchiveTable.find(self._output)
        else:
            self._table.refresh()
        self._state = self._table.state if self._table else ArchiveState()

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
        if self._table is None:
            return {}
        table, spans, files = self._table, list["Spans"](), list["ArchiveFile"]()
        for hour in read_hours(table, self._closed, EPOCH + timedelta(milliseconds=since)):
            if hour.closed and hour.is_closed:
                spans.append(hour.closed.spans)
            else:
                files += hour.files
        with ThreadPoolExecutor(CONCURRENT_FILES, "archive") as pool:
            merged = merge_spans([*spans, *pool.map(lambda file: spans_of_file(table, file), files)])
        return {p: span.first for p in self.ends if (span := merged.get(f"{self._topic}/{p}")) is not None}

    def fetch(self, starts: Mapping[int, int], ends: Mapping[int, int], folder: Path, cache: Path) -> list[Path]:
        """Write the records between some offsets as Parquet files with the columns of an archive. Each file of the
        archive is compared with what it says of its records.

        Args:
            starts: The first offsets, by partition.
            ends: The next offsets behind the last ones; at most `ends` of the archive.
            folder: Where the files are written.
            cache: For files of the archive that later calls need, too.

        Raises:
            SinkError: A file is missing, or does not hold what was written.
            Wait: The catalog or the store does not answer.
        """
        ranges = {p: (starts.get(p, 0), end) for p, end in ends.items()}
        assert self._table is not None
        for attempt in range(ATTEMPTS):
            try:
                files = self._table.files(where=self._where(ranges))
                with ThreadPoolExecutor(CONCURRENT_FILES, "archive") as pool:
                    paths = pool.map(
                        lambda file, n: self._fetch(file, ranges, folder / f"{n}.parquet", cache),
                        files, range(len(files)),
                    )  # fmt: skip
                    return list(filter(None, paths))
            except ObjectNotFound:
                if attempt == ATTEMPTS - 1:
                    raise
                self.refresh()
        raise AssertionError

    def _where(self, ranges: Ranges) -> str:
        parts = (f"(partition = {p} AND offset >= {first} AND offset < {end})" for p, (first, end) in ranges.items())
        return f"topic = '{self._topic}' AND ({' OR '.join(parts)})"

    def _fetch(self, file: ArchiveFile, ranges: Ranges, target: Path, cache: Path) -> Path | None:
        """The records of a file that are in the ranges, in a file of their own; None if there are none."""
        assert self._table is not None
        spans = spans_of_file(self._table, file)
        places = {f"{self._topic}/{p}": one for p, one in ranges.items()}
        found = {name: (span, *places[name]) for name, span in spans.items() if name in places}
        if not any(span.first < end and span.last >= first for span, first, end in found.values()):
            return None
        is_whole = len(found) == len(spans)
        own = self._download(file, cache)
        if is_whole and all(first <= span.first and span.last < end for span, first, end in found.values()):
            return own.replace(target)
        wanted = reduce(or_, (self._in_range(p, *one) for p, one in ranges.items()))
        rows = 0
        with pq.ParquetWriter(target, records.SCHEMA, compression="zstd") as writer:
            for batch in pads.dataset(own, schema=records.SCHEMA, format="parquet").to_batches(filter=wanted):
                if batch.num_rows:
                    writer.write_batch(batch, row_group_size=records.ROW_GROUP_ROWS)
                    rows += batch.num_rows
        # Records of later offsets are of later calls.
        if is_whole and all(span.last < end for span, _, end in found.values()):
            own.unlink()
        if not rows:
            target.unlink()
        return target if rows else None

    def _in_range(self, partition: int, first: int, end: int) -> pads.Expression:
        offset = pads.field("offset")
        return (
            (pads.field("topic") == self._topic)
            & (pads.field("partition") == partition)
            & (offset >= first)
            & (offset < end)
        )

    def _download(self, file: ArchiveFile, cache: Path) -> Path:
        """A local copy of the records of a file, which were compared with what it says."""
        assert self._table is not None
        path = cache / file.key.replace("/", "_")
        if path.exists():
            return path
        fresh = path.with_suffix(".fresh")
        with pq.ParquetWriter(fresh, records.SCHEMA, compression="lz4") as writer:
            for part in read_batches(self._table, file):
                writer.write_table(part, row_group_size=records.ROW_GROUP_ROWS)
        return fresh.replace(path)


def open_topic(output: ArchiveOutput, topic: str) -> ArchivedTopic:
    """The records of a topic in an archive; see `penstock.model.output.Output.reader`."""
    return ArchivedTopic(output, topic)
