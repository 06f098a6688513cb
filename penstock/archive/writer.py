"""Writes the batches of an archive's stream into the object store, each record exactly once.

A record is identified by topic, partition and offset, and the state of the archive has the position of each partition.
A batch is written in these steps, and may fail after each of them:

1. Records before the positions are left out, since they are archived. So a batch that is repeated with other limits or
   another number adds no duplicates.
2. One Parquet file for each hour of event time is written, under new names. After a failure here the files are not
   referenced.
3. The state that refers to the files, with the positions after them, is put as one object, which S3 does atomically.
   After a failure here the batch is repeated, and step 1 leaves all of it out.
4. The claims of newer writers are listed (`penstock.archive.state_log`). If there is one, the batch is not written: the
   newer writer may not have seen the state, and writes the batch itself.

The archive has no commit marker, since positions are more precise. The engine repeats the last batch of an output
without markers, and lets it write in a thread of its own (`penstock.engine.commit.async_writer`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive import layout, parquet
from penstock.archive.hour_closer import HourCloser, read_topic_ends
from penstock.archive.layout import ArchiveFile, ArchiveState
from penstock.archive.state_log import StateLog
from penstock.archive.stream import ArchiveOutput
from penstock.errors import LeaseLost, SinkError
from penstock.model.output import NO_COMMIT, CommitMarker, Offsets
from penstock.object_store import endpoint
from penstock.object_store.bucket import Bucket

if TYPE_CHECKING:
    from penstock.model.output import Output, WriterOwner


@dataclass
class ArchiveCounters:
    """Counters since the writer was opened. `duplicates` are records that were already archived."""

    written: int = 0
    duplicates: int = 0
    files: int = 0
    closed: int = 0


def open_archive(owner: WriterOwner, outputs: Sequence[Output]) -> ArchiveWriter:
    """Open the writer of an archive; its hours are closed until it is closed.

    Raises:
        SinkError: The bucket or the access key is wrong.
        Wait: The store does not answer.
    """
    [output] = outputs
    assert isinstance(output, ArchiveOutput)
    writer = ArchiveWriter(output, archive_bucket(output.bucket, output.prefix))
    writer.start_closer(HourCloser(writer, output, partial(read_topic_ends, bootstrap=owner.bootstrap)))
    return writer


def archive_bucket(bucket: str, prefix: str) -> Bucket:
    """A folder of a bucket in the configured object store.

    Raises:
        SinkError: No object store is configured.
    """
    s3 = endpoint.find_endpoint()
    if s3 is None:
        raise SinkError(
            "no object store is configured",
            got=f"bucket {bucket}",
            hint="set PENSTOCK_S3_URL, or start a store on this machine with `penstock up`",
        )
    return Bucket(s3, bucket, prefix)


class ArchiveWriter:
    """The only writer of an archive. Hold `lock` to change its state."""

    def __init__(self, output: ArchiveOutput, store: Bucket) -> None:
        self.counters = ArchiveCounters()
        self.lock = threading.RLock()
        self.store = store
        store.ensure_exists()
        self._output = output
        self._state_log = StateLog(store)
        self._serial = 0
        self._lost: LeaseLost | None = None
        self._closer: HourCloser | None = None

    @property
    def state(self) -> ArchiveState:
        return self._state_log.state

    @property
    def claim(self) -> str:
        return self._state_log.claim

    def start_closer(self, closer: HourCloser) -> None:
        """Start to close hours, until `close`."""
        self._closer = closer
        closer.start()

    def committed(self) -> CommitMarker:
        """Always NO_COMMIT: the state has offsets, not batches."""
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:
        """Archive the records of a batch that are new; see `penstock.model.output.Writer`.

        Returns:
            Their number.
        """
        batch = rows.get(self._output.name)
        with self.lock:
            state = self._known_state(mark)
            records = parquet.SCHEMA.empty_table() if batch is None else parquet.to_archive_schema(batch)
            by_hour = parquet.split_by_hour(self._not_archived(state, records))
            files = [(hour, self.write_file(hour, table)) for hour, table in by_hour]
            positions = _positions_after(state.positions, [file for _, file in files], mark, self._output.topics_read)
            begins = _begin_offsets(state, mark, positions)
            if files or (state.ids, positions, begins) != (self.state.ids, self.state.positions, self.state.begins):
                hours = dict(state.open)
                for hour, file in files:
                    hours[hour] = (*hours.get(hour, ()), file)
                self.commit(replace(state, open=hours, positions=positions, begins=begins))
            written = sum(file.rows for _, file in files)
            self.counters.written += written
            self.counters.duplicates += records.num_rows - written
            return written

    def write_file(self, hour: str, table: pa.Table) -> ArchiveFile:
        """Write records of an hour under a new name."""
        data, key = parquet.to_parquet(table), self.new_file_name(hour)
        self.store.put(key, data)
        self.counters.files += 1
        return ArchiveFile(key, len(data), parquet.spans_of(table))

    def new_file_name(self, hour: str) -> str:
        """A name that was never used for a file of this hour."""
        return f"{layout.hour_folder(hour)}/{self.claim}-{self.next_serial():09}.parquet"

    def next_serial(self) -> int:
        """A number that no object of this writer has. Thread-safe."""
        with self.lock:
            self._serial += 1
            return self._serial

    def commit(self, state: ArchiveState) -> None:
        """Make a state the valid one.

        Raises:
            LeaseLost: There is a newer writer. All later calls raise it too.
        """
        if self._lost is not None:
            raise self._lost
        # A put that failed may have been executed, so its number is not used again.
        self._state_log.state = replace(self._state_log.state, number=self._state_log.state.number + 1)
        try:
            self._state_log.put(replace(state, number=self._state_log.state.number))
        except LeaseLost as e:
            self._lost = e
            raise

    def close(self) -> None:
        if self._closer is not None:
            self._closer.stop()

    def _known_state(self, mark: CommitMarker) -> ArchiveState:
        """The state, without the positions of topics that were recreated."""
        state = self.state
        recreated = {topic for topic, topic_id in mark.topic_ids.items() if state.ids.get(topic, topic_id) != topic_id}
        ids = {topic: topic_id for topic, topic_id in mark.topic_ids.items() if topic in self._output.topics_read}
        positions = {t: p for t, p in state.positions.items() if t not in recreated}
        known = tuple(sorted({*state.recreated, *recreated}))
        return replace(state, ids={**state.ids, **ids}, positions=positions, recreated=known)

    def _not_archived(self, state: ArchiveState, rows: pa.Table) -> pa.Table:
        for topic, offsets in state.positions.items():
            for partition, position in offsets.items():
                in_partition = (pc.field("topic") == topic) & (pc.field("partition") == partition)
                rows = rows.filter(~(in_partition & (pc.field("offset") < position)))
        return rows


def _positions_after(
    known: Offsets, files: Sequence[ArchiveFile], mark: CommitMarker, topics: Sequence[str]
) -> dict[str, dict[int, int]]:
    """The positions after some files and after the batch of a marker. `topics` are those that the archive reads."""
    positions = {**{topic: {} for topic in topics if topic in mark.offsets}, **{t: dict(p) for t, p in known.items()}}
    ends = [(name, span.last + 1) for file in files for name, span in file.spans.items()]
    for name, position in ends:
        topic, _, partition = name.rpartition("/")
        offsets = positions.setdefault(topic, {})
        offsets[int(partition)] = max(offsets.get(int(partition), 0), position)
    for topic, offsets in positions.items():
        for number, position in mark.offsets.get(topic, {}).items():
            offsets[number] = max(offsets.get(number, 0), position)
    return positions


def _begin_offsets(known: ArchiveState, mark: CommitMarker, positions: Offsets) -> dict[str, dict[int, int]]:
    """The offsets from which the archive has all records of each partition, after the batch of a marker.

    A batch that does not start at the end of the batch before lacks records that were deleted or skipped. For a
    partition that an earlier version has archived the offset is unknown.
    """
    begins = {topic: dict(offsets) for topic, offsets in known.begins.items()}
    for topic in positions.keys() & mark.start_offsets.keys():
        for p in positions[topic]:
            start, position = mark.start_offsets[topic].get(p, 0), known.positions.get(topic, {}).get(p)
            # Records that an earlier topic of this name lacked stay missing.
            if position is None or (start > position and p in begins.get(topic, {})):
                begins.setdefault(topic, {})[p] = max(start, begins.get(topic, {}).get(p, 0))
    return begins
