"""The job of a backfill run, and its commit marker."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from penstock.archive.state import Span
from penstock.errors import BackfillError
from penstock.model.archive import Archive
from penstock.model.backfill import Backfill
from penstock.model.input import Input
from penstock.model.stream import Stream
from penstock.model.topic import COMMITS

log = logging.getLogger(__name__)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Fields of a marker that are written as they are.
MARKER_FIELDS = ("rows", "written", "verified", "again", "job", "target_id", "generation", "skipped")
Timestamps = Literal["original", "now"]


@dataclass(frozen=True)
class BackfillJob:
    """One interval of a backfill and its target. A run of the same job resumes an unfinished one.

    Attributes:
        backfill: The declaration.
        begin: Start of the interval; None for the start of the source.
        end: End of the interval, exclusive.
        target: The topic.
        source: An archive in place of the declared one, for records that are copied.
        rate: Records per second; 0 for no limit.
        dry_run: Whether nothing is written.
        timestamps: Whether copied records keep their timestamps.
        unclosed: Whether hours may still be open.
        as_of: The archive or the table is read as it was at this time; None for the present.
        again: Id of a request to write all rows once more; a run with the same id resumes it.
    """

    backfill: Backfill
    begin: datetime | None
    end: datetime
    target: str
    source: Archive | None = None
    rate: int = 0
    dry_run: bool = False
    timestamps: Timestamps = "original"
    unclosed: bool = False
    again: str = ""
    as_of: datetime | None = None

    def __post_init__(self) -> None:
        if self.begin is not None and self.begin >= self.end:
            raise BackfillError(
                f"backfill {self.name}: its interval is empty",
                got=f"from {self.begin:%Y-%m-%dT%H:%M} to {self.end:%Y-%m-%dT%H:%M}",
                hint="the end is exclusive and must be after the start",
            )

    @property
    def name(self) -> str:
        return self.backfill.name

    @property
    def archive(self) -> Archive | None:
        """The archive it reads; None if it reads another store."""
        if self.source is not None:
            return self.source
        return self.backfill.source if isinstance(self.backfill.source, Archive) else None

    @property
    def replays(self) -> bool:
        """Whether records are written as they are."""
        return self.backfill.copies_records

    @property
    def streams(self) -> Sequence[Stream]:
        """The streams whose transforms make the rows, in order; none where no stream does."""
        target = self.backfill.target
        return (*self.backfill.via, target) if isinstance(target, Stream) else ()

    @property
    def _first_input(self) -> Input:
        """How its first stream reads the archived topic."""
        return next(iter(self.streams[0].sources.values()))

    @property
    def uses_record_timestamp(self) -> bool:
        """Whether the rows are made by a stream that goes by its records' own timestamps."""
        return bool(self.streams) and self._first_input.uses_record_timestamp

    @property
    def max_ahead(self) -> timedelta:
        """How far a record's event time may be ahead of its timestamp."""
        return timedelta(0) if self.uses_record_timestamp else self._first_input.max_ahead or timedelta(0)

    @property
    def id(self) -> str:
        """Names it in messages."""
        return self._id(f" as of {utc_text(self.as_of)}" if self.as_of else "")

    def _id(self, as_of: str) -> str:
        begin = f"{utc_text(self.begin)}" if self.begin else ""
        source = f" {self.source.name}" if self.source else ""
        return f"{self.name}{source} {begin}..{utc_text(self.end)}{as_of} -> {self.target}"

    @property
    def _written_id(self) -> str:
        """What is written at once by one only, and compared with what was written last.

        Rows replace those of the same keys, of whatever time the source was read; unchanged records replace nothing.
        """
        return self.id if self.replays else self._id("")

    @property
    def status_key(self) -> str:
        """The key of its row in the control database."""
        return f"{self.id} (dry)" if self.dry_run else self.id

    @property
    def marker_key(self) -> str:
        return f"backfill {self._written_id}"

    def parse_marker(self, data: bytes | None) -> BackfillMarker | None:
        """As `BackfillMarker.read`; an invalid marker counts as none if all rows are to be written again."""
        try:
            return BackfillMarker.read(data)
        except BackfillError as e:
            if not self.again:
                raise
            log.warning("backfill %s: %s", self.id, e)
            return None

    @property
    def short_hash(self) -> str:
        """Identifies its folder and its transactional id."""
        return hashlib.sha256(self._written_id.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class BackfillMarker:
    """The commit marker of a job.

    Attributes:
        source_spans: the records read, by `topic/partition`.
        after_offsets: offsets after the records that an earlier job of the interval wrote unchanged.
        topic_ids: the broker's ids of the source's topics.
        code: hash of the code that computed the rows.
        first_offsets: by target partition, the first offset at which a row may be.
        rows: how many rows there are.
        written: how many of them are written.
        verified: whether the target was verified.
        again: id of the request to write everything once more, if any.
        job: the job's id.
        target_id: the broker's id of the target.
        generation: how often the rows of the same records were computed again because they were lost.
        skipped: records of the source that give no row.
    """

    source_spans: Mapping[str, Span]
    after_offsets: Mapping[str, int]
    topic_ids: Mapping[str, str]
    code: str
    first_offsets: Mapping[int, int]
    rows: int
    written: int = 0
    verified: bool = False
    again: str = ""
    job: str = ""
    target_id: str = ""
    generation: int = 0
    skipped: int = 0

    @property
    def run(self) -> str:
        """Identifies the written rows, in a header of each record."""
        of = [_spans_to_json(self.source_spans), dict(self.after_offsets), self.code, self.again, self.job]
        identity = json.dumps([*of, self.generation] if self.generation else of, sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()[:12]

    def with_written(self, written: int) -> BackfillMarker:
        return replace(self, written=written)

    def value(self) -> bytes:
        return json.dumps({**asdict(self), "source_spans": _spans_to_json(self.source_spans)}, sort_keys=True).encode()

    @classmethod
    def read(cls, data: bytes | None) -> BackfillMarker | None:
        """Parse a marker; None if there is none.

        Raises:
            BackfillError: The marker is invalid.
        """
        if data is None:
            return None
        try:
            fields: dict[str, Any] = json.loads(data)
            return cls(
                {partition: Span(*numbers) for partition, numbers in fields["source_spans"].items()},
                fields["after_offsets"],
                fields["topic_ids"],
                fields["code"],
                {int(p): offset for p, offset in fields["first_offsets"].items()},
                **{name: fields[name] for name in MARKER_FIELDS},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise BackfillError(
                f"a commit marker of a backfill in topic {COMMITS.name} cannot be read",
                got=f"{type(e).__name__}: {e} in {data[:200].decode(errors='replace')}",
                hint="it was written by another version of Penstock; to write all rows once more: --again",
            ) from e


def _spans_to_json(spans: Mapping[str, Span]) -> dict[str, list[int]]:
    return {partition: [s.rows, s.first, s.last, s.sum] for partition, s in spans.items()}


def utc_text(at: datetime) -> str:
    """A time in UTC, to the minute unless it has seconds."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}".removesuffix(":00")


def epoch_ms(at: datetime) -> int:
    """Epoch ms; a float of seconds would lose one now and then."""
    return (at - EPOCH) // timedelta(milliseconds=1)
