"""The records of an interval in an archive, and whether they are all that there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive import reader, records
from penstock.archive.archive_file import ArchiveFile
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.hour_closer import read_topic_ends, unarchived
from penstock.archive.reader import ArchiveHour
from penstock.archive.state import HOUR, ArchiveState, Span, Spans, hour_end, hour_start, merge_spans
from penstock.archive.stream import output_of
from penstock.archive.table import ArchiveTable
from penstock.backfill.job import BackfillJob, utc_text
from penstock.backfill.retry import OnWait, retry_while_away
from penstock.backfill.skipped_records import SkippedRecords
from penstock.backfill.source import OnFile, write_file
from penstock.errors import BackfillError, InputNotReady
from penstock.object_store.bucket import ObjectNotFound

T = TypeVar("T")
U = TypeVar("U")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Concurrent requests to the store.
CONCURRENT_READS = 8
# Seconds between two reads of the state, without progress of the archive, and for all of the wait.
POLL_INTERVAL, STALL_TIMEOUT, CATCH_UP_TIMEOUT = 1.0, 30.0, 600.0


class ArchiveSource:
    """An archive's records of an interval, and other records of the same hours.

    Hours are those of the archive's event time. A stream that uses the records' timestamps gets every hour with such a
    record of the interval. Any other stream must have the archive's event time, which is checked when its windows are
    computed (`penstock.engine.operations.recompute`).

    Raises:
        InputNotReady: The archive has not reached the present end of its topic.
        BackfillError: The archive has only a part of the records.
    """

    def __init__(self, job: BackfillJob, bootstrap: str, waits: OnWait) -> None:
        archive = job.archive
        assert archive is not None
        self._job, self._waits = job, waits
        output = output_of(archive)
        self._table = self._retry(lambda: ArchiveTable.find(output))
        if job.as_of and self._table:
            self._table = self._table.as_of(job.as_of)
        state, has_topic = self._state(), False
        if not job.unclosed:
            state, has_topic = self._wait_for_topic_end(state, bootstrap)
        # Where an archive begins only all of its hours say.
        needs_all = not job.unclosed and (bool(job.streams) or job.begin is None)
        bounds = (None, None) if needs_all or job.uses_record_timestamp else (job.begin, job.end)
        hours = self._retry(partial(self._read_hours, ClosedHours.of(output), *bounds))
        in_interval = [hour for hour in hours if _overlap(hour.name, job.begin, job.end)]
        self._hours = list(filter(self._has_timestamps, hours)) if job.uses_record_timestamp else in_interval
        read = {file.key: file for hour in (hours if needs_all else self._hours) for file in hour.files}
        self._spans: Mapping[str, Spans] = dict(zip(read, self._map(self._spans_of, list(read.values())), strict=True))
        for hour in self._hours:
            assert self._table
            if hour.is_closed:
                reader.check_hour(self._table, hour, [self._spans[file.key] for file in hour.files])
        if needs_all:
            self._check_begin(hours, state)
        files = [file for hour in self._hours for file in hour.files]
        self.files, self.rows = len(files), sum(file.rows for file in files)
        self.spans: Mapping[str, Span] = merge_spans(self._spans[file.key] for file in files)
        self.ids, self.skipped_records = state.ids, SkippedRecords()
        topic = archive.reads[0].name
        self.empty_text = f"nothing is in archive {archive.name} for this interval: topic {topic} had no record then"
        if not job.unclosed:
            _check_closed(job, in_interval)
            if not files:
                self._check_coverage(has_topic=has_topic)

    def fetch(self, folder: Path, on_file: OnFile) -> list[Path]:
        paths = []
        for file in (file for hour in self._hours for file in hour.files):
            path = folder / file.key.replace("/", "_")
            if not path.exists():
                write_file(path, self._retry(partial(self._read_file, file)))
            paths.append(path)
            on_file(file.rows)
        return paths

    def _read_file(self, file: ArchiveFile) -> pa.Table:
        return self._of_file(reader.read_file, file)

    def _spans_of(self, file: ArchiveFile) -> Spans:
        return self._of_file(reader.spans_of_file, file)

    def _of_file(self, read: Callable[[ArchiveTable, ArchiveFile], T], file: ArchiveFile) -> T:
        assert self._table
        try:
            return read(self._table, file)
        except ObjectNotFound as e:
            self._table.refresh()
            if file.key in {current.key for current in self._table.files_of_hour(file.hour)}:
                raise
            raise InputNotReady(
                f"backfill {self._job.name}: a file of the archive was joined with others while it was read",
                got=self._table.bucket.url(file.key), hint="run it again: it is resumed",
            ) from e  # fmt: skip

    def _read_hours(self, closed: ClosedHours, start: datetime | None, end: datetime | None) -> list[ArchiveHour]:
        return reader.read_hours(self._table, closed, start, end) if self._table else []

    def _state(self) -> ArchiveState:
        """What is archived now."""
        if self._table is None:
            return ArchiveState()
        self._retry(self._table.refresh)
        return self._table.state

    def _wait_for_topic_end(self, state: ArchiveState, bootstrap: str) -> tuple[ArchiveState, bool]:
        """Wait until all records that the topic has now are archived.

        Timestamps cannot show where the topic was at the end of the interval, since producers set them.

        Returns:
            The state, and whether the topic exists.

        Raises:
            InputNotReady: The archive does not reach that end.
        """
        archive = self._job.archive
        assert archive is not None
        ends = read_topic_ends([archive.reads[0].name], bootstrap)
        if not ends[1]:
            # The archive outlives its topic.
            return state, False
        if self._job.end > datetime.now(UTC):
            raise InputNotReady(
                f"backfill {self._job.name}: its interval ends in the future",
                got=f"{self._job.end:%Y-%m-%dT%H:%M}",
                hint="let it end in the past, or take what is there: --unclosed",
            )
        stall_timeout = max(STALL_TIMEOUT, 3 * archive.every.total_seconds())
        started = moved = time.monotonic()
        while gaps := unarchived(state, ends):
            if (now := time.monotonic()) - moved >= stall_timeout or now - started >= CATCH_UP_TIMEOUT:
                break
            self._waits(f"the archive comes to where its topic is: {', '.join(gaps[:5])}")
            time.sleep(POLL_INTERVAL)
            previous, state = state, self._state()
            moved = time.monotonic() if state.positions != previous.positions else moved
        else:
            return state, True
        raise InputNotReady(
            f"backfill {self._job.name}: archive {archive.name} has not come to the end of its topic",
            got=", ".join(gaps[:5]),
            hint=f"see that it runs and wait: penstock streams show {archive.name}; or take what is there: --unclosed",
        )

    def _check_begin(self, hours: Sequence[ArchiveHour], state: ArchiveState) -> None:
        """Refuse an archive that lacks records of the interval, because it began later or has a gap.

        A window of a part of its records would replace that of all.
        """
        files = [file for hour in hours for file in hour.files]
        spans = merge_spans(self._spans[file.key] for file in files)
        firsts = {partition: span.first for partition, span in spans.items()}
        begins = firsts | {
            f"{topic}/{p}": offset for topic, partitions in state.begins.items() for p, offset in partitions.items()
        }
        for partition, start in sorted(begins.items()):
            if not start:
                continue
            topic = partition.rpartition("/")[0]
            if self._job.begin is None:
                raise BackfillError(
                    f"backfill {self._job.name}: the archive does not have all records of {topic} from its first on, "
                    "and what is made of a part of them would be taken for the whole",
                    got=f"{partition} without a gap from offset {start} on",
                    hint="count what is missing from elsewhere, or take what is there: --unclosed",
                )
            if (first := self._first_record(partition, start, files)) is None:
                continue
            file, offset = first
            # What was sent before lies no further ahead than the stream takes.
            begin = self._job.begin - (ahead := self._job.max_ahead)
            if file.timestamps is not None and file.timestamps[1] <= begin:
                continue
            if (first_time := self._timestamp_of(file, partition, offset)) > begin:
                raise BackfillError(
                    f"backfill {self._job.name}: the archive began in the middle of {topic}, and "
                    "windows of a part of their records would replace those of all",
                    got=f"{partition} from offset {offset} on, at {utc_text(first_time)}, "
                    f"in {file.task.file.file_path}",
                    hint=f"let the interval begin at {utc_text(_first_whole_hour(first_time, ahead))}, or take the "
                    "present records: --unclosed",
                )

    def _first_record(self, partition: str, start: int, files: Sequence[ArchiveFile]) -> tuple[ArchiveFile, int] | None:
        """The first record of a partition from an offset on, and the file it lies in; None if there is none."""
        first: tuple[ArchiveFile, int] | None = None
        holding = [file for file in files if partition in self._spans[file.key]]
        for file in sorted(holding, key=lambda file: self._spans[file.key][partition].first):
            span = self._spans[file.key][partition]
            if span.last < start or (first and span.first >= first[1]):
                continue
            offset = span.first
            if offset < start:
                offset = min(
                    n for n in self._records_of(file, partition)["offset"].to_pylist() if n is not None and n >= start
                )
            first = (file, offset) if first is None or offset < first[1] else first
        return first

    def _timestamp_of(self, file: ArchiveFile, partition: str, offset: int) -> datetime:
        """The timestamp of a record."""
        rows = self._records_of(file, partition)
        stamps = rows.filter(pc.field("offset") == offset)["timestamp"].cast(pa.int64()).to_pylist()
        # Of a topic that was recreated two records may have one offset.
        return records.clamped_time(max(at or 0 for at in stamps))

    def _records_of(self, file: ArchiveFile, partition: str) -> pa.Table:
        """The records of a file that are of one partition."""
        topic, _, partition = partition.rpartition("/")
        rows = self._retry(partial(self._read_file, file))
        return rows.filter((pc.field("topic") == topic) & (pc.field("partition") == int(partition)))

    def _has_timestamps(self, hour: ArchiveHour) -> bool:
        """Whether a record of an hour may have a timestamp in the interval."""
        begin, end = self._job.begin, self._job.end
        times = [file.timestamps for file in hour.files]
        return any(one is None or (one[0] < end and (begin is None or begin <= one[1])) for one in times)

    def _check_coverage(self, *, has_topic: bool) -> None:
        """Refuse an interval outside of the archive: it may have had records that were not archived.

        Args:
            has_topic: Whether the topic exists, up to whose end it is archived.
        """
        job, archive = self._job, self._job.archive
        assert archive is not None
        hours = self._retry(lambda: [file.hour for file in self._table.files()] if self._table else [])
        if not hours:
            raise InputNotReady(
                f"backfill {job.name}: archive {archive.name} holds nothing yet",
                got=f"bucket {archive.bucket}, prefix {archive.prefix!r}",
                hint=f"see that it runs: penstock streams show {archive.name}; or that it lies there",
            )
        first, last = hours[0], hours[-1]
        is_before, is_after = job.end <= hour_start(first), job.begin is not None and job.begin > hour_end(last)
        if is_before or (is_after and not has_topic):
            raise BackfillError(
                f"backfill {job.name}: nothing is in archive {archive.name} for this interval: "
                + ("it begins later" if is_before else "it ended before, and its topic is not there"),
                got=f"{utc_text(job.begin) if job.begin else ''}..{utc_text(job.end)}; it has hours from {first} to "
                f"{last}",
                hint="take an interval within, or what is there: --unclosed",
            )

    def _retry(self, ask: Callable[[], T]) -> T:
        return retry_while_away(ask, self._waits)

    def _map(self, ask: Callable[[U], T], items: Sequence[U]) -> list[T]:
        """The results for all items, in order."""
        pool, stop = ThreadPoolExecutor(CONCURRENT_READS), Event()
        try:
            return list(pool.map(lambda item: retry_while_away(partial(ask, item), self._waits, stop), items))
        finally:
            # After an error or a signal the other calls are not waited for.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _first_whole_hour(at: datetime, ahead: timedelta) -> datetime:
    """The first whole hour at least `ahead` after a time; the last hour of the calendar if there is none."""
    from_epoch = -((EPOCH - at - ahead) // HOUR * HOUR)
    return EPOCH + min(from_epoch, hour_start("9999-12-31T23") - EPOCH)


def _check_closed(job: BackfillJob, hours: Sequence[ArchiveHour]) -> None:
    open_ = [hour.name for hour in hours if not hour.is_closed]
    if open_ and job.archive:
        raise InputNotReady(
            f"backfill {job.name}: hours of archive {job.archive.name} are open, so more may come",
            got=f"{len(open_)}: {', '.join(open_[:5])}",
            hint=f"wait until they are closed, {job.archive.close_delay} after their last record, or take what is "
            "there: --unclosed",
        )


def _overlap(hour: str, begin: datetime | None, end: datetime) -> bool:
    return hour_start(hour) < end and (begin is None or begin <= hour_end(hour))
