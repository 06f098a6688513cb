"""What one run of a backfill is to do, and how far it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from penstock.archive.layout import Span
from penstock.errors import BackfillError
from penstock.model.archive import Archive
from penstock.model.backfill import Backfill
from penstock.model.input import Input
from penstock.model.stream import Stream

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Timestamps = Literal["original", "now"]


@dataclass(frozen=True)
class BackfillJob:
    """One interval of a backfill, brought into one topic. Who does the same job again takes up the one before.

    source: an archive other than the declared one, for records that are written as they are. begin: None from where
    the source begins. target: the topic. rate: records a second, 0 for no bound. timestamps: of records that are
    written as they are, their own or those of now. unclosed: whether hours may still be open. again: names the request
    to do once more what was done before; whoever goes on with that request gives the same name.
    """

    backfill: Backfill
    begin: datetime | None
    end: datetime
    target: str
    source: Archive | None = None
    rate: int = 0
    dry: bool = False
    timestamps: Timestamps = "original"
    unclosed: bool = False
    again: str = ""

    def __post_init__(self) -> None:
        if self.begin is not None and self.begin >= self.end:
            raise BackfillError(
                f"backfill {self.name}: its interval is empty",
                got=f"from {self.begin:%Y-%m-%dT%H:%M} to {self.end:%Y-%m-%dT%H:%M}",
                hint="let it end after it begins; the end is not part of it",
            )

    @property
    def name(self) -> str:
        return self.backfill.name

    @property
    def archive(self) -> Archive | None:
        """The archive it reads; None if it reads a collection."""
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
    def _reads(self) -> Input:
        """How its first stream reads the archived topic."""
        return next(iter(self.streams[0].sources.values()))

    @property
    def uses_record_timestamp(self) -> bool:
        """Whether the rows are made by a stream that goes by its records' own timestamps."""
        return bool(self.streams) and self._reads.uses_record_timestamp

    @property
    def ahead(self) -> timedelta:
        """How far ahead of its own timestamp a record's event time may lie."""
        return timedelta(0) if self.uses_record_timestamp else self._reads.max_ahead or timedelta(0)

    @property
    def id(self) -> str:
        """What is written at once by one only: the key of its mark."""
        begin = f"{utc_text(self.begin)}" if self.begin else ""
        source = f" {self.source.name}" if self.source else ""
        return f"{self.name}{source} {begin}..{utc_text(self.end)} -> {self.target}"

    @property
    def row(self) -> str:
        """What its figures are kept under."""
        return f"{self.id} (dry)" if self.dry else self.id

    @property
    def mark(self) -> str:
        return f"backfill {self.id}"

    @property
    def hash(self) -> str:
        """Names its folder and its transactions."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class BackfillMarker:
    """The mark of a job: which records of the source were taken, and how many of the rows are written.

    upto: by `topic/partition`, what was taken of the source. after: the offsets behind what an earlier job of the same
    interval has written as it was. ids: the broker's ids of the source's topics. code: what made the rows. first: of
    the target's partitions, where the first row may lie. rows: all there are; written: how many are. verified: whether
    the target was found to hold them. again: the request to do it once more, if it was one. job: whose it is. target:
    the broker's id of the target. making: how often rows of the same records were made before, and lost. left_out: how
    many records of the source give no row.
    """

    upto: Mapping[str, Span]
    after: Mapping[str, int]
    ids: Mapping[str, str]
    code: str
    first: Mapping[int, int]
    rows: int
    written: int = 0
    verified: bool = False
    again: str = ""
    job: str = ""
    target: str = ""
    making: int = 0
    left_out: int = 0

    @property
    def run(self) -> str:
        """Names what is written, in a header of each record."""
        of = [_spans_to_json(self.upto), dict(self.after), self.code, self.again, self.job]
        made = json.dumps([*of, self.making] if self.making else of, sort_keys=True)
        return hashlib.sha256(made.encode()).hexdigest()[:12]

    def behind(self, written: int) -> BackfillMarker:
        return replace(self, written=written)

    def value(self) -> bytes:
        return json.dumps({**asdict(self), "upto": _spans_to_json(self.upto)}, sort_keys=True).encode()

    @classmethod
    def read(cls, data: bytes | None) -> BackfillMarker | None:
        if data is None:
            return None
        found: dict[str, Any] = json.loads(data)
        return cls(
            {place: Span(*numbers) for place, numbers in found["upto"].items()}, found["after"], found["ids"],
            found["code"], {int(p): at for p, at in found["first"].items()}, found["rows"], found["written"],
            found["verified"], found["again"],
            found["job"], found.get("target", ""), found.get("making", 0), found.get("left_out", 0),
        )  # fmt: skip


def _spans_to_json(spans: Mapping[str, Span]) -> dict[str, list[int]]:
    return {place: [s.rows, s.first, s.last, s.sum] for place, s in spans.items()}


def utc_text(at: datetime) -> str:
    """A time in UTC, to the minute unless it has seconds."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}".removesuffix(":00")


def epoch_ms(at: datetime) -> int:
    """Epoch ms; a float of seconds would lose one now and then."""
    return (at - EPOCH) // timedelta(milliseconds=1)
