"""The records of an interval in an archive, and whether they are all that there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive import reading
from penstock.archive.layout import HOUR, File, Span, State, added, begins
from penstock.archive.reading import Hour
from penstock.archive.states import latest
from penstock.archive.writer import store_of
from penstock.backfill.job import Job, minute, ms
from penstock.backfill.patience import Waits, patiently
from penstock.backfill.source import Told, put
from penstock.errors import BackfillError, NotYet
from penstock.kafka.admin import admin, end_offsets, offsets_at, partitions
from penstock.objects.store import Gone

T = TypeVar("T")
U = TypeVar("U")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Objects that are asked for at once: most of the time is the way to the store.
AT_ONCE = 8


class Archived:
    """An archive's records of an interval, and others of its hours. NotYet if the archive has not come to the
    interval's end, BackfillError if it has only a part of what is asked for.

    Hours are those of the archive's event time. A stream that goes by its records' own timestamps is given each hour
    that holds one of the interval, wherever it lies; another one's event time must be the archive's, which is seen when
    its windows are computed (`penstock.engine.recompute`).
    """

    def __init__(self, job: Job, bootstrap: str, waits: Waits) -> None:
        archive = job.archive
        assert archive is not None
        self._job, self._waits = job, waits
        self._store = store_of(archive.bucket, archive.prefix)
        state = self._asked(lambda: latest(self._store))
        inside = reading.names(state, job.begin, job.end)
        # Where an archive begins only all of its manifests say.
        names = state.hours if job.streams and (job.by_own_time or not job.unclosed) else inside
        every = self._each(lambda name: reading.sound(self._store, state, name), names)
        if job.streams and not job.unclosed:
            self._begins(every)
        if job.by_own_time:
            self._hours = [hour for hour, has in zip(every, self._each(self._has, every), strict=True) if has]
        else:
            self._hours = [hour for hour in every if hour.name in inside]
        files = [file for hour in self._hours for file in hour.files]
        self.files, self.rows = len(files), sum(file.rows for file in files)
        self.spans: Mapping[str, Span] = added(file.spans for file in files)
        self.ids = state.ids
        topic = archive.reads[0].name
        self.nothing = f"nothing is in archive {archive.name} for this interval: topic {topic} had no record then"
        if not job.unclosed:
            _closed(job, [hour for hour in every if hour.name in inside])
            known = _come_to(job, state.positions, bootstrap)
            if not files:
                _was_there(job, state, known=known)

    def fetch(self, folder: Path, told: Told) -> list[Path]:
        found = []
        for name, file in ((hour.name, file) for hour in self._hours for file in hour.files):
            path = folder / file.key.replace("/", "_")
            if not path.exists():
                put(path, self._asked(partial(self._table, name, file)))
            found.append(path)
            told(file.rows)
        return found

    def _table(self, hour: str, file: File) -> pa.Table:
        try:
            return reading.table(self._store, file)
        except Gone as e:
            now = reading.hour_of(self._store, latest(self._store), hour)
            if file.key in {one.key for one in now.files}:
                raise
            raise NotYet(
                f"backfill {self._job.name}: a file of the archive was joined with others while it was read",
                got=self._store.place(file.key), fix="run it again: it goes on where it was",
            ) from e  # fmt: skip

    def _begins(self, every: Sequence[Hour]) -> None:
        """See that no window is computed again for which there were records before the archive began: windows of a part
        of their records would replace those of all."""
        first = dict[str, tuple[int, File]]()
        for file in (file for hour in every for file in hour.files):
            for place, span in file.spans.items():
                if place not in first or span.first < first[place][0]:
                    first[place] = (span.first, file)
        # What was sent before lies no further ahead than the stream takes.
        ahead = self._job.ahead
        for place, (offset, file) in sorted(first.items()):
            if not offset or self._job.begin is None:
                continue
            begin = self._job.begin - ahead
            bounds = self._asked(partial(reading.times, self._store, file))
            if bounds is not None and bounds[1] <= begin:
                continue
            if (at := self._at(file, place, offset)) > begin:
                raise BackfillError(
                    f"backfill {self._job.name}: the archive began in the middle of {place.rpartition('/')[0]}, and "
                    "windows of a part of their records would replace those of all",
                    got=f"{place} from offset {offset} on, at {minute(at)}, in {self._store.place(file.key)}",
                    fix=f"let the interval begin at {minute(_hour_after(at + ahead))}, or take what is there: "
                    "--unclosed",
                )

    def _at(self, file: File, place: str, offset: int) -> datetime:
        """The timestamp of a record."""
        topic, _, partition = place.rpartition("/")
        rows = self._asked(partial(reading.table, self._store, file))
        here = (pc.field("topic") == topic) & (pc.field("partition") == int(partition)) & (pc.field("offset") == offset)
        [at] = rows.filter(here)["timestamp"].to_pylist()
        return at or EPOCH

    def _has(self, hour: Hour) -> bool:
        """Whether one of its records may have a timestamp within the interval. By whole hours: which files they are in
        changes when they are joined."""
        begin, end = self._job.begin, self._job.end
        for file in hour.files:
            found = reading.times(self._store, file)
            if found is None or (found[0] < end and (begin is None or begin <= found[1])):
                return True
        return False

    def _asked(self, ask: Callable[[], T]) -> T:
        return patiently(ask, self._waits)

    def _each(self, ask: Callable[[U], T], given: Sequence[U]) -> list[T]:
        """The answer to each, in order."""
        pool, ended = ThreadPoolExecutor(AT_ONCE), Event()
        try:
            return list(pool.map(lambda one: patiently(partial(ask, one), self._waits, ended), given))
        finally:
            # Who is asked to end, or met an error, waits for none of the others.
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _hour_after(at: datetime) -> datetime:
    return EPOCH - (EPOCH - at) // HOUR * HOUR


def _closed(job: Job, hours: Sequence[Hour]) -> None:
    open_ = [hour.name for hour in hours if not hour.closed]
    if open_ and job.archive:
        raise NotYet(
            f"backfill {job.name}: hours of archive {job.archive.name} are open, so more may come",
            got=f"{len(open_)}: {', '.join(open_[:5])}",
            fix=f"wait until they are closed, {job.archive.wait} after their last record, or take what is there: "
            "--unclosed",
        )


def _was_there(job: Job, state: State, *, known: bool) -> None:
    """See that an archive that has nothing of an interval would have, if there had been something. known: whether its
    topic is there, up to whose end it has come."""
    archive = job.archive
    assert archive is not None
    if not state.hours:
        raise NotYet(
            f"backfill {job.name}: archive {archive.name} holds nothing yet",
            got=f"bucket {archive.bucket}, prefix {archive.prefix!r}",
            fix=f"see that it runs: penstock streams show {archive.name}; or that it lies there",
        )
    first, last = state.hours[0], state.hours[-1]
    before, behind = job.end <= begins(first), job.begin is not None and job.begin >= begins(last) + HOUR
    if before or (behind and not known):
        raise BackfillError(
            f"backfill {job.name}: nothing is in archive {archive.name} for this interval: "
            + ("it begins later" if before else "it ended before, and its topic is not there"),
            got=f"{minute(job.begin) if job.begin else ''}..{minute(job.end)}; it has hours from {first} to {last}",
            fix="take an interval within, or what is there: --unclosed",
        )


def _come_to(job: Job, positions: Mapping[str, Mapping[int, int]], bootstrap: str) -> bool:
    """See that all records that the topic got before the interval's end are archived; whether there is that topic."""
    archive = job.archive
    assert archive is not None
    topic = archive.reads[0].name
    client = admin(bootstrap)
    places = {(topic, p): ms(job.end) for p in range(partitions(client, bootstrap).get(topic, 0))}
    if not places:
        # The archive outlives its topic.
        return False
    if job.end > datetime.now(UTC):
        raise NotYet(
            f"backfill {job.name}: its interval ends in the future",
            got=f"{job.end:%Y-%m-%dT%H:%M}",
            fix="let it end in the past, or take what is there: --unclosed",
        )
    at, ends = offsets_at(client, places, bootstrap), end_offsets(client, places, bootstrap)
    have = positions.get(topic, {})
    short = []
    for _, p in sorted(places):
        until = at.get((topic, p))
        wanted = ends.get((topic, p), 0) if until is None else until
        if wanted and have.get(p, 0) < wanted:
            short.append(f"{topic}[{p}] up to {have.get(p, 0)} of {wanted}")
    if short:
        raise NotYet(
            f"backfill {job.name}: archive {archive.name} has not come to the end of the interval",
            got=", ".join(short[:5]),
            fix=f"see that it runs and wait: penstock streams show {archive.name}; or take what is there: --unclosed",
        )
    return True
