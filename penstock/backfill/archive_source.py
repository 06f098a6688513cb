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

from penstock.archive import parquet, reader
from penstock.archive.hour_closer import read_topic_ends, unarchived
from penstock.archive.layout import HOUR, ArchiveFile, ArchiveState, Span, hour_end, hour_start, merge_spans
from penstock.archive.reader import ArchiveHour
from penstock.archive.state_log import latest_state
from penstock.archive.writer import archive_bucket
from penstock.backfill.job import BackfillJob, utc_text
from penstock.backfill.retry import OnWait, retry_while_away
from penstock.backfill.skipped_records import SkippedRecords
from penstock.backfill.source import OnFile, write_file
from penstock.errors import BackfillError, InputNotReady
from penstock.object_store.bucket import ObjectNotFound

T = TypeVar("T")
U = TypeVar("U")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Objects that are asked for at once: most of the time is the way to the store.
CONCURRENT_READS = 8
# Seconds between two looks at how far an archive is, for which it may stand still, and that it is waited for in all.
POLL_INTERVAL, STALL_TIMEOUT, CATCH_UP_TIMEOUT = 1.0, 30.0, 600.0


class ArchiveSource:
    """An archive's records of an interval, and others of its hours. InputNotReady if the archive has not come to where
    its topic ends now, BackfillError if it has only a part of what is asked for.

    Hours are those of the archive's event time. A stream that goes by its records' own timestamps is given each hour
    that holds one of the interval, wherever it lies; another one's event time must be the archive's, which is seen when
    its windows are computed (`penstock.engine.operations.recompute`).
    """

    def __init__(self, job: BackfillJob, bootstrap: str, waits: OnWait) -> None:
        archive = job.archive
        assert archive is not None
        self._job, self._waits = job, waits
        self._store = archive_bucket(archive.bucket, archive.prefix)
        state, known = self._state(), False
        if not job.unclosed:
            state, known = self._come_to(state, bootstrap)
        inside = reader.hours_between(state, job.begin, job.end)
        # Where an archive begins only all of its manifests say.
        whole = not job.unclosed and (bool(job.streams) or job.begin is None)
        names = state.hours if whole or job.uses_record_timestamp else inside
        every = self._each(lambda name: reader.read_consistent_hour(self._store, state, name), names)
        if whole:
            self._begins(every, state)
        if job.uses_record_timestamp:
            self._hours = [hour for hour, has in zip(every, self._each(self._has, every), strict=True) if has]
        else:
            self._hours = [hour for hour in every if hour.name in inside]
        files = [file for hour in self._hours for file in hour.files]
        self.files, self.rows = len(files), sum(file.rows for file in files)
        self.spans: Mapping[str, Span] = merge_spans(file.spans for file in files)
        self.ids, self.left_out = state.ids, SkippedRecords()
        topic = archive.reads[0].name
        self.nothing = f"nothing is in archive {archive.name} for this interval: topic {topic} had no record then"
        if not job.unclosed:
            _check_closed(job, [hour for hour in every if hour.name in inside])
            if not files:
                _check_coverage(job, state, known=known)

    def fetch(self, folder: Path, told: OnFile) -> list[Path]:
        found = []
        for name, file in ((hour.name, file) for hour in self._hours for file in hour.files):
            path = folder / file.key.replace("/", "_")
            if not path.exists():
                write_file(path, self._asked(partial(self._table, name, file)))
            found.append(path)
            told(file.rows)
        return found

    def _table(self, hour: str, file: ArchiveFile) -> pa.Table:
        try:
            return reader.read_file(self._store, file)
        except ObjectNotFound as e:
            now = reader.read_hour(self._store, latest_state(self._store), hour)
            if file.key in {one.key for one in now.files}:
                raise
            raise InputNotReady(
                f"backfill {self._job.name}: a file of the archive was joined with others while it was read",
                got=self._store.url(file.key), hint="run it again: it goes on where it was",
            ) from e  # fmt: skip

    def _state(self) -> ArchiveState:
        return self._asked(lambda: latest_state(self._store))

    def _come_to(self, state: ArchiveState, bootstrap: str) -> tuple[ArchiveState, bool]:
        """The state once all is archived that the topic holds now, and whether the topic is there.

        InputNotReady if that does not come.

        Timestamps do not tell where a topic was at the interval's end: a producer may stamp a record ahead or behind.
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
        still = max(STALL_TIMEOUT, 3 * archive.every.total_seconds())
        began = moved = time.monotonic()
        while short := unarchived(state, ends):
            if (now := time.monotonic()) - moved >= still or now - began >= CATCH_UP_TIMEOUT:
                break
            self._waits(f"the archive comes to where its topic is: {', '.join(short[:5])}")
            time.sleep(POLL_INTERVAL)
            before, state = state, self._state()
            moved = time.monotonic() if state.positions != before.positions else moved
        else:
            return state, True
        raise InputNotReady(
            f"backfill {self._job.name}: archive {archive.name} has not come to the end of its topic",
            got=", ".join(short[:5]),
            hint=f"see that it runs and wait: penstock streams show {archive.name}; or take what is there: --unclosed",
        )

    def _begins(self, every: Sequence[ArchiveHour], state: ArchiveState) -> None:
        """See that no window or sum is of a part of the records that there were, because the archive began later or has
        a gap: it would replace that of all."""
        files = [file for hour in every for file in hour.files]
        firsts = {place: span.first for place, span in merge_spans(file.spans for file in files).items()}
        begins = firsts | {f"{topic}/{p}": at for topic, parts in state.begins.items() for p, at in parts.items()}
        for place, start in sorted(begins.items()):
            if not start:
                continue
            topic = place.rpartition("/")[0]
            if self._job.begin is None:
                raise BackfillError(
                    f"backfill {self._job.name}: the archive does not have all records of {topic} from its first on, "
                    "and what is made of a part of them would be taken for the whole",
                    got=f"{place} without a gap from offset {start} on",
                    hint="count what is missing from elsewhere, or take what is there: --unclosed",
                )
            if (found := self._first(place, start, files)) is None:
                continue
            file, offset = found
            # What was sent before lies no further ahead than the stream takes.
            begin = self._job.begin - (ahead := self._job.max_ahead)
            bounds = self._asked(partial(reader.timestamp_range, self._store, file))
            if bounds is not None and bounds[1] <= begin:
                continue
            if (at := self._at(file, place, offset)) > begin:
                raise BackfillError(
                    f"backfill {self._job.name}: the archive began in the middle of {topic}, and "
                    "windows of a part of their records would replace those of all",
                    got=f"{place} from offset {offset} on, at {utc_text(at)}, in {self._store.url(file.key)}",
                    hint=f"let the interval begin at {utc_text(_first_hour_after(at, ahead))}, or take what is there: "
                    "--unclosed",
                )

    def _first(self, place: str, start: int, files: Sequence[ArchiveFile]) -> tuple[ArchiveFile, int] | None:
        """The first record of a partition from an offset on, and the file it lies in; None if there is none."""
        found: tuple[ArchiveFile, int] | None = None
        for file in sorted((f for f in files if place in f.spans), key=lambda f: f.spans[place].first):
            span = file.spans[place]
            if span.last < start or (found and span.first >= found[1]):
                continue
            offset = span.first
            if offset < start:
                offset = min(n for n in self._of(file, place)["offset"].to_pylist() if n is not None and n >= start)
            found = (file, offset) if found is None or offset < found[1] else found
        return found

    def _at(self, file: ArchiveFile, place: str, offset: int) -> datetime:
        """The timestamp of a record."""
        rows = self._of(file, place)
        [at] = rows.filter(pc.field("offset") == offset)["timestamp"].cast(pa.int64()).to_pylist()
        return parquet.clamped_time(at or 0)

    def _of(self, file: ArchiveFile, place: str) -> pa.Table:
        """The records of a file that are of one partition."""
        topic, _, partition = place.rpartition("/")
        rows = self._asked(partial(reader.read_file, self._store, file))
        return rows.filter((pc.field("topic") == topic) & (pc.field("partition") == int(partition)))

    def _has(self, hour: ArchiveHour) -> bool:
        """Whether one of its records may have a timestamp within the interval. By whole hours: which files they are in
        changes when they are joined."""
        begin, end = self._job.begin, self._job.end
        for file in hour.files:
            found = reader.timestamp_range(self._store, file)
            if found is None or (found[0] < end and (begin is None or begin <= found[1])):
                return True
        return False

    def _asked(self, ask: Callable[[], T]) -> T:
        return retry_while_away(ask, self._waits)

    def _each(self, ask: Callable[[U], T], given: Sequence[U]) -> list[T]:
        """The answer to each, in order."""
        pool, ended = ThreadPoolExecutor(CONCURRENT_READS), Event()
        try:
            return list(pool.map(lambda one: retry_while_away(partial(ask, one), self._waits, ended), given))
        finally:
            # Who is asked to end, or met an error, waits for none of the others.
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _first_hour_after(at: datetime, ahead: timedelta) -> datetime:
    """The first whole hour that begins so long behind a time; the last of the calendar if there is none."""
    whole = -((EPOCH - at - ahead) // HOUR * HOUR)
    return EPOCH + min(whole, hour_start("9999-12-31T23") - EPOCH)


def _check_closed(job: BackfillJob, hours: Sequence[ArchiveHour]) -> None:
    open_ = [hour.name for hour in hours if not hour.closed]
    if open_ and job.archive:
        raise InputNotReady(
            f"backfill {job.name}: hours of archive {job.archive.name} are open, so more may come",
            got=f"{len(open_)}: {', '.join(open_[:5])}",
            hint=f"wait until they are closed, {job.archive.close_delay} after their last record, or take what is "
            "there: --unclosed",
        )


def _check_coverage(job: BackfillJob, state: ArchiveState, *, known: bool) -> None:
    """See that an archive that has nothing of an interval would have, if there had been something. known: whether its
    topic is there, up to whose end it has come."""
    archive = job.archive
    assert archive is not None
    if not state.hours:
        raise InputNotReady(
            f"backfill {job.name}: archive {archive.name} holds nothing yet",
            got=f"bucket {archive.bucket}, prefix {archive.prefix!r}",
            hint=f"see that it runs: penstock streams show {archive.name}; or that it lies there",
        )
    first, last = state.hours[0], state.hours[-1]
    before, behind = job.end <= hour_start(first), job.begin is not None and job.begin > hour_end(last)
    if before or (behind and not known):
        raise BackfillError(
            f"backfill {job.name}: nothing is in archive {archive.name} for this interval: "
            + ("it begins later" if before else "it ended before, and its topic is not there"),
            got=f"{utc_text(job.begin) if job.begin else ''}..{utc_text(job.end)}; it has hours from {first} to {last}",
            hint="take an interval within, or what is there: --unclosed",
        )
