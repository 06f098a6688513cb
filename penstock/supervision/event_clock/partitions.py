"""Which partitions of streams and archives are closed: the events that Airflow is to get.

What is closed follows from what is written. The commit marker of a stream has the watermark of its last batch, which is
in the transaction of the rows; a table of each archive names its closed hours. So it does not matter
when this is asked, by whom, and what was killed before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import KafkaException

from penstock.catalog import Partitioned, PartitionedArchive, PartitionedStream
from penstock.control import Control
from penstock.errors import BrokerError, PenstockError, optional_packages
from penstock.kafka.commit_marker import CommitMarkerReader
from penstock.model.output import CommitMarker
from penstock.model.output_mode import millis
from penstock.model.partition import partition_key

if TYPE_CHECKING:
    from penstock.archive.closed_hours import ClosedHours

log = logging.getLogger(__name__)

# The row of an archive that says that its earlier hours are recorded, also if there were none.
BASELINE = ("", 0)
# Seconds between two looks at the states of archives, which have all their hours.
ARCHIVES_EVERY = 30.0


class MarkerReader(Protocol):
    """Reads the newest commit marker of each stream."""

    def read(self) -> Mapping[str, bytes]: ...

    def close(self) -> None: ...


class PartitionWatch:
    """Records closed partitions in the control database. Not thread-safe; `close` when done.

    Args:
        declared: What declares partitions.
        control: The control database.
        bootstrap: The brokers.
        markers: Reads commit markers; by default from the brokers.
        read_closed: Reads the closed hours of an archive, with their revisions; by default from its table.
        clock: Seconds.
    """

    def __init__(
        self,
        declared: Iterable[Partitioned],
        control: Control,
        bootstrap: str,
        markers: MarkerReader | None = None,
        read_closed: Callable[[PartitionedArchive], Mapping[datetime, int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control, self._read_closed = control, read_closed or _closed_hours
        entries = list(declared)
        self._streams = [one for one in entries if isinstance(one, PartitionedStream)]
        self._archives = [one for one in entries if isinstance(one, PartitionedArchive)]
        self._markers = markers or CommitMarkerReader(bootstrap, [stream.name for stream in self._streams])
        self._marks: dict[str, int] = {}
        self._resets: dict[str, tuple[str, str]] = {}
        """Of each stream, the reset and the last partition that are recorded."""
        self._earlier: dict[str, list[str]] = {}
        """Of each stream, the resets before the last one that are recorded."""
        self._revisions: dict[str, dict[str, int]] = {}
        self._errors: dict[str, str] = {}
        self._clock, self._archives_at = clock, float("-inf")

    def look(self) -> int:
        """Record the partitions that were closed since the last look; returns how many were new.

        What cannot be read is read at the next look, and does not hold up the others.

        Raises:
            ControlError: The control database does not answer.
            BrokerError: The commit markers cannot be read.
        """
        new = 0
        if self._clock() - self._archives_at >= ARCHIVES_EVERY:
            self._archives_at = self._clock()
            new = sum(self._look_at_archive(archive) for archive in self._archives)
        try:
            values = self._markers.read() if self._streams else {}
        except KafkaException as e:
            raise BrokerError("commit markers cannot be read", got=e.args[0]) from e
        return new + sum(self._look_at_stream(s, values[s.name]) for s in self._streams if s.name in values)

    def close(self) -> None:
        self._markers.close()

    def _look_at_stream(self, stream: PartitionedStream, value: bytes) -> int:
        try:
            marker = CommitMarker.read(value)
            mark = marker.watermark_ms - millis(stream.delay)
            closed = stream.partitions.last_closed(mark)
            self._errors.pop(stream.name, None)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as e:
            if stream.name not in self._errors:
                log.warning("the watermark of stream %s is not known: its commit marker: %s", stream.name, e)
            self._errors[stream.name] = str(e)
            return 0
        recomputed = self._look_at_earlier_resets(stream, marker) if marker.earlier_resets else 0
        recomputed += self._look_at_reset(stream, marker, closed) if marker.reset_id else 0
        # A stream that was reset begins with an earlier watermark, or with none.
        if mark <= self._marks.get(stream.name, 0):
            return recomputed
        last = self._control.last_partition(stream.name)
        if last is None:
            # Nothing says when its first window was.
            self._control.record_partitions(stream.name, [(closed, 1)], "known", marker.reset_id)
            keys = []
        else:
            keys = stream.partitions.closed_after(last, mark)
        new = self._control.record_partitions(stream.name, [(key, 1) for key in keys], reset_id=marker.reset_id)
        if new:
            self._control.prune_partitions(stream.name)
        if not keys or closed == keys[-1]:
            self._marks[stream.name] = mark
        return recomputed + new

    def _look_at_earlier_resets(self, stream: PartitionedStream, marker: CommitMarker) -> int:
        """Record what resets had closed once more before the last one, if nobody looked then."""
        ids = [reset_id for reset_id, *_ in marker.earlier_resets]
        if self._earlier.get(stream.name) == ids:
            return 0
        recorded = self._control.recorded_resets(stream.name, [*ids, *filter(None, [marker.reset_id])])
        new = 0
        # What a later one has changed too is recorded under that alone.
        if marker.reset_id not in recorded:
            newest = max((at for at, reset_id in enumerate(ids) if reset_id in recorded), default=0)
            for reset_id, floor, watermark in marker.earlier_resets[newest:]:
                last = stream.partitions.last_closed(watermark - millis(stream.delay))
                first = "" if floor is None else stream.partitions.last_closed(floor)
                keys = self._control.partition_revisions(stream.name, first, last)
                new += self._control.renew_partitions(stream.name, keys, reset_id)
        self._earlier[stream.name] = ids
        return new

    def _look_at_reset(self, stream: PartitionedStream, marker: CommitMarker, closed: str) -> int:
        """Record what a reset stream has closed once more, up to a partition: its windows were computed again."""
        reset_id, recorded = self._resets.get(stream.name, ("", ""))
        if reset_id != marker.reset_id:
            recorded = "" if marker.reset_floor is None else stream.partitions.last_closed(marker.reset_floor)
        elif closed <= recorded:
            return 0
        # What is closed first since the reset is recorded as computed by it.
        keys = self._control.partition_revisions(stream.name, recorded, closed)
        new = self._control.renew_partitions(stream.name, keys, marker.reset_id)
        self._resets[stream.name] = (marker.reset_id, max(recorded, closed))
        return new

    def _look_at_archive(self, archive: PartitionedArchive) -> int:
        try:
            hours = self._read_closed(archive)
        except PenstockError as e:
            if self._errors.get(archive.name) != e.what:
                log.warning("the closed hours of archive %s are not known: %s", archive.name, e)
            self._errors[archive.name] = e.what
            return 0
        self._errors.pop(archive.name, None)
        closed = {partition_key(hour): revision for hour, revision in hours.items()}
        if archive.name not in self._revisions:
            self._revisions[archive.name] = self._control.partition_revisions(archive.name)
        recorded = self._revisions[archive.name]
        new = [(key, revision) for key, revision in sorted(closed.items()) if recorded.get(key, 0) < revision]
        if not recorded:
            self._control.record_partitions(archive.name, [*new, BASELINE], "known")
            count = 0
        else:
            count = self._control.record_partitions(archive.name, new) if new else 0
        self._revisions[archive.name] = {**recorded, **dict(new), BASELINE[0]: 0}
        return count


def _closed_hours(archive: PartitionedArchive) -> Mapping[datetime, int]:
    # Arrow and pyiceberg cost memory, and most projects have no archive with partitions.
    from penstock.archive.state import hour_start

    return {hour_start(hour): one.revision for hour, one in _table_of(archive.table).read().items()}


@cache
def _table_of(name: str) -> ClosedHours:
    """Kept, so that its rows are read again only when there are others."""
    with optional_packages():
        from penstock.archive.closed_hours import ClosedHours
    return ClosedHours(name)
