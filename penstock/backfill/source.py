"""What a backfill reads, brought to the disk file by file and held against what the source says of it.

Every file has the columns of an archive (`penstock.archive.records`). One that is there whole has its final name, so a
run that is taken up again fetches only what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import bson
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from penstock.archive import reading, records
from penstock.archive.layout import HOUR, Span, added, begins
from penstock.archive.reading import Hour
from penstock.archive.states import latest
from penstock.archive.writer import store_of
from penstock.backfill.job import Job, ms
from penstock.declare.backfill import Collection
from penstock.declare.stream import Stream
from penstock.errors import BackfillError, NotYet, SinkError
from penstock.kafka.admin import admin, end_offsets, offsets_at, partitions
from penstock.sinks import connections

# Documents of one file.
DOCUMENTS = 50_000
SERVER_MS = 10_000
PLAIN = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME

Told = Callable[[int], None]
"""Is told of each file that is there, with its records."""


class Source(Protocol):
    """files, rows: how many there are, 0 if that is not known before they are read. spans: what is read, by place; the
    whole of it, or nothing before `fetch`. ids: the broker's ids of the topics that were archived."""

    files: int
    rows: int
    spans: Mapping[str, Span]
    ids: Mapping[str, str]

    def fetch(self, folder: Path, told: Told) -> list[Path]:
        """Bring it to the disk."""


def source_of(job: Job, bootstrap: str) -> Source:
    if job.archive is not None:
        return Archived(job, bootstrap)
    assert isinstance(job.backfill.source, Collection)
    return Documents(job.backfill.source)


class Archived:
    """An archive's records of an interval, and some around it in its hours. NotYet if the archive has not come to the
    interval's end."""

    def __init__(self, job: Job, bootstrap: str) -> None:
        archive = job.archive
        assert archive is not None
        self._store = store_of(archive.bucket, archive.prefix)
        state = latest(self._store)
        names = reading.names(state, *_read(job))
        self._hours = [reading.hour_of(self._store, state, name) for name in names]
        files = [file for hour in self._hours for file in hour.files]
        self.files, self.rows = len(files), sum(file.rows for file in files)
        self.spans: Mapping[str, Span] = added(file.spans for file in files)
        self.ids = state.ids
        if not job.unclosed:
            _begins(job, state.hours, self._hours)
            _closed(job, self._hours)
            _come_to(job, state.positions, bootstrap)

    def fetch(self, folder: Path, told: Told) -> list[Path]:
        found = []
        for file in (file for hour in self._hours for file in hour.files):
            path = folder / file.key.replace("/", "_")
            if not path.exists():
                _put(path, reading.table(self._store, file))
            found.append(path)
            told(file.rows)
        return found


def _read(job: Job) -> tuple[datetime | None, datetime]:
    """The interval that is read. A stream may go by another event time than the archive of its records, and says itself
    which of them it takes."""
    more = HOUR if isinstance(job.backfill.target, Stream) else timedelta(0)
    return job.begin and job.begin - more, job.end + more


def _begins(job: Job, every: list[str], hours: list[Hour]) -> None:
    """See that no window is computed again of what the archive has of its first hour, if it may have begun within."""
    first = [hour for hour in hours if hour.name == every[0]]
    cut = sorted(place for hour in first for place, span in hour.spans.items() if span.first)
    if cut and job.archive and isinstance(job.backfill.target, Stream):
        raise BackfillError(
            f"backfill {job.name}: archive {job.archive.name} may have begun in the middle of hour {first[0].name}, "
            "and windows of a part of their records would replace those of all",
            got=f"{cut[0]} from offset {first[0].spans[cut[0]].first} on",
            fix="let the interval begin an hour later, or take what is there: --unclosed",
        )


def _closed(job: Job, hours: list[Hour]) -> None:
    open_ = [hour.name for hour in hours if not hour.closed and begins(hour.name) < job.end]
    if open_ and job.archive:
        raise NotYet(
            f"backfill {job.name}: hours of archive {job.archive.name} are open, so more may come",
            got=f"{len(open_)}: {', '.join(open_[:5])}",
            fix=f"wait until they are closed, {job.archive.wait} after their last record, or take what is there: "
            "--unclosed",
        )


def _come_to(job: Job, positions: Mapping[str, Mapping[int, int]], bootstrap: str) -> None:
    """See that all records that the topic got before the interval's end are archived."""
    archive = job.archive
    assert archive is not None
    topic = archive.reads[0].name
    client = admin(bootstrap)
    places = {(topic, p): ms(job.end) for p in range(partitions(client, bootstrap).get(topic, 0))}
    if not places:
        # The archive outlives its topic.
        return
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


class Documents:
    """A collection's documents in order of their ids, as records: key the id as text, value the document as JSON."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self.files = self.rows = 0
        self.spans: Mapping[str, Span] = {}
        self.ids: Mapping[str, str] = {}

    def fetch(self, folder: Path, told: Told) -> list[Path]:
        if not (url := connections.url("mongodb")):
            raise SinkError(
                "nobody has said where MongoDB is",
                got=self._collection.place,
                fix='set PENSTOCK_MONGODB_URL, or start one here: make up STORES="mongodb"',
            )
        found: list[Path] = []
        try:
            made: MongoClient[dict[str, Any]] = MongoClient(url, serverSelectionTimeoutMS=SERVER_MS, tz_aware=True)
            with closing(made) as client:
                self.rows = client[self._collection.database][self._collection.name].estimated_document_count()
                for number, rows in enumerate(self._tables(client)):
                    # Nothing says what a document was when it was read before: so all are read anew.
                    path = folder / f"{number:06}.parquet"
                    _put(path, rows)
                    self.spans = added([self.spans, records.spans_of(rows)])
                    found.append(path)
                    told(rows.num_rows)
        except PyMongoError as e:
            raise SinkError(
                f"MongoDB does not give {self._collection.place}",
                got=str(e)[:300],
                fix="see that it runs and that the user may read the collection; then run it again",
            ) from e
        self.files, self.rows = len(found), sum(span.rows for span in self.spans.values())
        return found

    def _tables(self, client: MongoClient[dict[str, Any]]) -> Iterator[pa.Table]:
        cursor = client[self._collection.database][self._collection.name].find().sort("_id", 1)
        at, held = 0, list[dict[str, Any]]()
        for document in cursor:
            held.append(document)
            if len(held) == DOCUMENTS:
                yield self._table(held, at)
                at, held = at + len(held), []
        if held:
            yield self._table(held, at)

    def _table(self, documents: list[dict[str, Any]], at: int) -> pa.Table:
        count = len(documents)
        given: dict[str, Any] = {
            "topic": pa.repeat(self._collection.place, count),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "offset": pa.array(range(at, at + count)),
            "key": pa.array([str(document.get("_id")).encode() for document in documents]),
            "value": pa.array([orjson.dumps(d, default=_plain, option=PLAIN) for d in documents]),
        }
        columns = [
            given[field.name].cast(field.type) if field.name in given else pa.nulls(count, field.type)
            for field in records.SCHEMA
        ]
        return pa.Table.from_arrays(columns, schema=records.SCHEMA)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return ms(value)
    if isinstance(value, Decimal | bson.Decimal128 | bson.ObjectId):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(type(value).__name__)


def _put(path: Path, rows: pa.Table) -> None:
    """Write a file, which has its name only once it is whole."""
    made = path.with_suffix(".part")
    pq.write_table(rows, made, compression="lz4", row_group_size=records.ROWS)
    made.replace(path)
