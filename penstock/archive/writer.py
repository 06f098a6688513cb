"""Writes the batches of an archive's stream into its table, each record exactly once.

A record is identified by topic, partition and offset, and the state of the archive has the position of each partition.
A batch is written in these steps, and may fail after each of them:

1. Records before the positions are left out, since they are archived. So a batch that is repeated with other limits or
   another number adds no duplicates.
2. One data file for each partition of an hour of event time is written, under a new name. After a failure here no
   snapshot has it.
3. The files are committed, with the positions after them (`penstock.archive.table`). After a failure here the batch is
   repeated, and step 1 leaves all of it out.

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

from penstock.archive import records
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.decoded import row_decoder
from penstock.archive.hour_closer import HourCloser, read_topic_ends
from penstock.archive.stream import ArchiveOutput
from penstock.archive.table import ArchiveTable
from penstock.errors import LeaseLost
from penstock.model.output import NO_COMMIT, CommitMarker, Offsets

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from penstock.archive.archive_file import ArchiveFile
    from penstock.archive.state import ArchiveState, Spans
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
        SinkError: The catalog or the object store refuses.
        Wait: One of them does not answer.
    """
    [output] = outputs
    assert isinstance(output, ArchiveOutput)
    writer = ArchiveWriter(output, ArchiveTable.create(output))
    writer.start_closer(HourCloser(writer, output, partial(read_topic_ends, bootstrap=owner.bootstrap)))
    return writer


class ArchiveWriter:
    """The only writer of an archive. Hold `lock` to change its table.

    Attributes:
        open_hours: Hours with records that they did not have when they were closed last.
    """

    def __init__(self, output: ArchiveOutput, table: ArchiveTable) -> None:
        self.counters = ArchiveCounters()
        self.lock = threading.RLock()
        self.table, self.closed_hours = table, ClosedHours.of(output)
        self._output, self._decode = output, row_decoder(output)
        self._claim = table.claim()
        self._unknown = False
        self._lost: LeaseLost | None = None
        self._closer: HourCloser | None = None
        self.open_hours = self.find_open_hours()

    @property
    def state(self) -> ArchiveState:
        return self.table.state

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
            self.look_again()
            state = self._known_state(mark)
            given = records.SCHEMA.empty_table() if batch is None else records.to_archive_schema(batch)
            files = [
                (hour, *self.table.write_file(hour, [part], values))
                for hour, rows_of_hour in records.split_by_hour(self._decode(self._not_archived(state, given)))
                for values, part in self.table.split(rows_of_hour)
            ]
            self.counters.files += len(files)
            spans = [one for *_, one in files]
            positions = _positions_after(state.positions, spans, mark, self._output.topics_read)
            begins = _begin_offsets(state, mark, positions)
            # Before the commit, which may be executed though it fails.
            self.open_hours |= {hour for hour, *_ in files}
            if files or (state.ids, positions, begins) != (self.state.ids, self.state.positions, self.state.begins):
                self.commit(replace(state, positions=positions, begins=begins), [entry for _, entry, _ in files])
            written = sum(span.rows for one in spans for span in one.values())
            self.counters.written += written
            self.counters.duplicates += given.num_rows - written
            return written

    def commit(self, state: ArchiveState, added: Sequence[DataFile] = (), removed: Sequence[ArchiveFile] = ()) -> None:
        """Commit a change of the table. Hold the lock since the state was read, behind `look_again`.

        Raises:
            LeaseLost: There is a newer writer. All later calls raise it too.
            Wait: The outcome is unknown; the next call of `look_again` finds it out.
        """
        self._unknown = True
        try:
            self.table.commit(replace(state, claim=self._claim), added, removed)
        except LeaseLost as e:
            self._lost = e
            raise
        self._unknown = False

    def close(self) -> None:
        if self._closer is not None:
            self._closer.stop()

    def look_again(self, *, always: bool = False) -> None:
        """Read the table after a commit that failed, as it may have been executed. Hold the lock.

        Args:
            always: Also after a commit that succeeded, to see whether there is a newer writer.

        Raises:
            LeaseLost: There is a newer writer.
        """
        if self._lost is not None:
            raise self._lost
        if self._unknown or always:
            try:
                self.table.refresh_as(self._claim)
            except LeaseLost as e:
                self._lost = e
                raise
            self._unknown = False

    def find_open_hours(self) -> set[str]:
        """The hours that have other records than when they were closed last."""
        closed, rows = self.closed_hours.read(), dict[str, int]()
        for file in self.table.files():
            rows[file.hour] = rows.get(file.hour, 0) + file.rows
        return {hour for hour, count in rows.items() if hour not in closed or closed[hour].records != count}

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
    known: Offsets, spans: Sequence[Spans], mark: CommitMarker, topics: Sequence[str]
) -> dict[str, dict[int, int]]:
    """The positions after the records of some files and after the batch of a marker. `topics` are those that the
    archive reads."""
    positions = {**{topic: {} for topic in topics if topic in mark.offsets}, **{t: dict(p) for t, p in known.items()}}
    ends = [(name, span.last + 1) for one in spans for name, span in one.items()]
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
