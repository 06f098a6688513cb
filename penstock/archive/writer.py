"""Writes the batches of an archive's stream into the object store, each record exactly once.

A record is known by its topic, partition and offset, and the state of the archive says up to which offset each
partition is archived. A batch is written in this order, and may be cut off anywhere:

1. Records below the state's positions are left out: they are archived already. So a batch that comes again, cut
   otherwise or under another number, adds nothing twice.
2. A Parquet file for each hour of event time, under names that nobody has used. Cut off here, they are named by
   nothing, and count nowhere.
3. The state that names them, with the positions behind them, as one new object: S3 shows an object whole or not at all.
   Cut off behind it, the batch comes again, and 1 leaves all of it out.
4. A look for newer writers (`penstock.archive.state_log`). If there is one, the batch is not written: the newer writer
   may not have seen the state, and the batch comes again by it.

The store keeps no mark of batches, for positions say more: the engine gives an output without marks its last batch
again, and lets it write in a thread of its own, so that a slow store keeps nobody waiting
(`penstock.engine.commit.async_writer`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive import layout, parquet
from penstock.archive.hour_closer import HourCloser, broker_topic_ends
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
    """Counters since the writer was opened. duplicates: records that were archived already."""

    written: int = 0
    duplicates: int = 0
    files: int = 0
    closed: int = 0


def open_archive(owner: WriterOwner, outputs: Sequence[Output]) -> ArchiveWriter:
    """The writer of an archive. SinkError if its bucket or key is wrong, Wait if its store is away."""
    [output] = outputs
    assert isinstance(output, ArchiveOutput)
    writer = ArchiveWriter(output, archive_bucket(output.bucket, output.prefix))
    writer.start_closer(HourCloser(writer, output, broker_topic_ends(owner.bootstrap)))
    return writer


def archive_bucket(bucket: str, prefix: str) -> Bucket:
    """SinkError if nobody has said where the object store is."""
    found = endpoint.find_endpoint()
    if found is None:
        raise SinkError(
            "nobody has said where the object store is",
            got=f"bucket {bucket}",
            hint="set PENSTOCK_S3_URL, or start one here: make up",
        )
    return Bucket(found, bucket, prefix)


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

    def start_closer(self, keeper: HourCloser) -> None:
        """Starts to close hours while batches are written."""
        self._closer = keeper
        keeper.start()

    def committed(self) -> CommitMarker:
        """NO_COMMIT: what is archived is known by offsets, not by batches."""
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:
        """Archive what is new of a batch; how many records. As `penstock.model.output.Writer` says."""
        given = rows.get(self._output.name)
        with self.lock:
            known = self._known_state(mark)
            fresh = (
                ()
                if given is None
                else parquet.split_by_hour(self._not_archived(known, parquet.to_archive_schema(given)))
            )
            found = [(hour, self.write_file(hour, table)) for hour, table in fresh]
            positions = _positions_after(known.positions, [file for _, file in found], mark, self._output.topics_read)
            begins = _begin_offsets(known, mark, positions)
            if found or (known.ids, positions, begins) != (self.state.ids, self.state.positions, self.state.begins):
                hours = dict(known.open)
                for hour, file in found:
                    hours[hour] = (*hours.get(hour, ()), file)
                self.commit(replace(known, open=hours, positions=positions, begins=begins))
            written = sum(file.rows for _, file in found)
            self._count(given, written)
            return written

    def write_file(self, hour: str, table: pa.Table) -> ArchiveFile:
        """Write records of an hour under a new name."""
        data, key = parquet.to_parquet(table), self.new_file_name(hour)
        self.store.put(key, data)
        self.counters.files += 1
        return ArchiveFile(key, len(data), parquet.spans_of(table))

    def new_file_name(self, hour: str) -> str:
        """A name that no file of this hour has, nor ever had."""
        return f"{layout.hour_folder(hour)}/{self.claim}-{self.next_serial():09}.parquet"

    def next_serial(self) -> int:
        """Returns a number that no object of this writer has."""
        # Two threads name objects.
        with self.lock:
            self._serial += 1
            return self._serial

    def commit(self, state: ArchiveState) -> None:
        """Let a state count. LeaseLost, from then on, if there is a newer writer."""
        if self._lost is not None:
            raise self._lost
        # A put that failed may yet have been done: its number is never used again.
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
        """The state, without the positions of topics that were deleted and made again."""
        state = self.state
        anew = {topic for topic, given in mark.topic_ids.items() if state.ids.get(topic, given) != given}
        ids = {
            **state.ids,
            **{topic: given for topic, given in mark.topic_ids.items() if topic in self._output.topics_read},
        }
        return replace(state, ids=ids, positions={t: p for t, p in state.positions.items() if t not in anew})

    def _not_archived(self, known: ArchiveState, rows: pa.Table) -> pa.Table:
        """The records that are not archived."""
        for topic, parts in known.positions.items():
            for partition, at in parts.items():
                here = (pc.field("topic") == topic) & (pc.field("partition") == partition)
                rows = rows.filter(~(here & (pc.field("offset") < at)))
        return rows

    def _count(self, given: pa.Table | None, written: int) -> None:
        self.counters.written += written
        self.counters.duplicates += (0 if given is None else given.num_rows) - written


def _positions_after(
    known: Offsets, files: Sequence[ArchiveFile], mark: CommitMarker, topics: Sequence[str]
) -> dict[str, dict[int, int]]:
    """The positions behind some files, and behind the batch of a mark. topics: that the archive reads."""
    found = {**{topic: {} for topic in topics if topic in mark.offsets}, **{t: dict(p) for t, p in known.items()}}
    reached = [(name, span.last + 1) for file in files for name, span in file.spans.items()]
    for name, at in reached:
        topic, _, partition = name.rpartition("/")
        parts = found.setdefault(topic, {})
        parts[int(partition)] = max(parts.get(int(partition), 0), at)
    for topic, parts in found.items():
        for number, at in mark.offsets.get(topic, {}).items():
            parts[number] = max(parts.get(number, 0), at)
    return found


def _begin_offsets(known: ArchiveState, mark: CommitMarker, positions: Offsets) -> dict[str, dict[int, int]]:
    """From where on the archive has all of each partition, behind the batch of a mark.

    A batch that does not begin where the one before ended leaves records out, which were removed or passed over. Of a
    partition that an earlier version has archived it is not known.
    """
    found = {topic: dict(parts) for topic, parts in known.begins.items()}
    for topic in positions.keys() & mark.start_offsets.keys():
        for p in positions[topic]:
            start, at = mark.start_offsets[topic].get(p, 0), known.positions.get(topic, {}).get(p)
            # What an earlier topic of the name lacked stays missing.
            if at is None or (start > at and p in found.get(topic, {})):
                found.setdefault(topic, {})[p] = max(start, found.get(topic, {}).get(p, 0))
    return found
