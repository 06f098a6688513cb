"""What lies where in an archive, and what its objects of JSON say.

::

    <prefix>/date=2026-01-31/hour=23/00000004-9f3c01-000000017.parquet   records; they count where they are named
    <prefix>/_penstock/claims/00000004-9f3c01                            who opened it, in order
    <prefix>/_penstock/states/00000004-9f3c01-000000017.json.gz          what is archived; the greatest name counts
    <prefix>/_penstock/hours/date=2026-01-31/hour=23/…json               manifests of closed hours

A name begins with its writer's claim: a number above all that were there, and something random. So no two writers ever
write one object, and none is written over.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.errors import SinkError

META_FOLDER = "_penstock"
CLAIMS, STATES, HOURS = f"{META_FOLDER}/claims", f"{META_FOLDER}/states", f"{META_FOLDER}/hours"
HOUR = timedelta(hours=1)
HASH_MODULUS = 2**64


@dataclass(frozen=True)
class Span:
    """The records of one partition: how many, the first and last offset, and the sum of their hashes modulo 2^64."""

    rows: int
    first: int
    last: int
    sum: int

    def __add__(self, other: Span) -> Span:
        first, last = min(self.first, other.first), max(self.last, other.last)
        return Span(self.rows + other.rows, first, last, (self.sum + other.sum) % HASH_MODULUS)


Spans = Mapping[str, Span]
"""By `topic/partition`."""


def merge_spans(spans: Iterable[Spans]) -> dict[str, Span]:
    """All together."""
    found: dict[str, Span] = {}
    for one in spans:
        for place, span in one.items():
            found[place] = found[place] + span if place in found else span
    return found


@dataclass(frozen=True)
class ArchiveFile:
    """A Parquet file. key: below the archive's prefix."""

    key: str
    size: int
    spans: Spans

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans.values())


@dataclass(frozen=True)
class ClosedHour:
    """Where the manifest of a closed hour is, and what it comes to. at: when it was closed, epoch seconds."""

    key: str
    revision: int
    rows: int
    size: int
    files: int
    at: float


@dataclass(frozen=True)
class HourManifest:
    """A closed hour: its files, and what they hold together."""

    archive: str
    hour: str
    revision: int
    spans: Spans
    files: tuple[ArchiveFile, ...]

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans.values())

    def write(self) -> bytes:
        return to_gzip_json(
            {**asdict(self), "spans": _spans_to_json(self.spans), "files": [_file_to_json(f) for f in self.files]}
        )

    @classmethod
    def read(cls, data: bytes, place: str) -> HourManifest:
        """SinkError if it is none."""
        with_it = from_gzip_json(data, place)
        try:
            return cls(
                str(with_it["archive"]), str(with_it["hour"]), int(with_it["revision"]),
                _spans_from_json(with_it["spans"]), tuple(_file_from_json(f) for f in with_it["files"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise invalid_object(place, e) from e


@dataclass(frozen=True)
class ArchiveState:
    """All that an archive holds: the greatest one counts, and nothing that it does not name.

    claim, number: whose state it is, and which. positions: by topic and partition, the offset behind the last record
    archived; ids: the broker's ids of the topics. begins: the offset from which on, up to the position, the archive was
    given all records; of partitions of which it is known. open: files by hour that no manifest has; closed: by hour.
    garbage: objects that nothing names any more, and since when, epoch seconds.
    """

    claim: str = ""
    number: int = 0
    positions: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    open: Mapping[str, tuple[ArchiveFile, ...]] = field(default_factory=dict)
    closed: Mapping[str, ClosedHour] = field(default_factory=dict)
    garbage: Mapping[str, float] = field(default_factory=dict)
    begins: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{STATES}/{self.claim}-{self.number:09}.json.gz"

    def follows(self, **changes: Any) -> ArchiveState:
        """The next one of the same writer."""
        return replace(self, number=self.number + 1, **changes)

    @property
    def hours(self) -> list[str]:
        return sorted({*self.open, *self.closed})

    def write(self) -> bytes:
        hours = {hour: [_file_to_json(f) for f in files] for hour, files in self.open.items()}
        return to_gzip_json({**asdict(self), "open": hours})

    @classmethod
    def read(cls, data: bytes, place: str) -> ArchiveState:
        """SinkError if it is none."""
        found = from_gzip_json(data, place)
        try:
            return cls(
                str(found["claim"]), int(found["number"]),
                _offsets_from_json(found["positions"]),
                dict(found["ids"]),
                {hour: tuple(_file_from_json(f) for f in files) for hour, files in found["open"].items()},
                {hour: ClosedHour(**one) for hour, one in found["closed"].items()},
                dict(found["garbage"]),
                _offsets_from_json(found.get("begins", {})),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise invalid_object(place, e) from e


def invalid_object(place: str, e: object) -> SinkError:
    return SinkError(
        f"{place} is not what an archive writes",
        got=f"{type(e).__name__}: {e}",
        hint="bring the object back from a version or backup of the bucket; nothing was changed",
    )


def to_gzip_json(data: object) -> bytes:
    return gzip.compress(json.dumps(data, sort_keys=True).encode(), mtime=0)


def from_gzip_json(data: bytes, place: str) -> dict[str, Any]:
    try:
        found = json.loads(gzip.decompress(data))
    except (OSError, EOFError, ValueError) as e:
        raise invalid_object(place, e) from e
    if not isinstance(found, dict):
        raise invalid_object(place, type(found).__name__)
    return found


def _file_to_json(file: ArchiveFile) -> dict[str, Any]:
    return {"key": file.key, "size": file.size, "spans": _spans_to_json(file.spans)}


def _file_from_json(given: Mapping[str, Any]) -> ArchiveFile:
    return ArchiveFile(str(given["key"]), int(given["size"]), _spans_from_json(given["spans"]))


def _spans_to_json(spans: Spans) -> dict[str, list[int]]:
    return {place: [s.rows, s.first, s.last, s.sum] for place, s in spans.items()}


def _offsets_from_json(given: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    return {topic: {int(p): int(at) for p, at in parts.items()} for topic, parts in given.items()}


def _spans_from_json(given: Mapping[str, Any]) -> dict[str, Span]:
    return {str(place): Span(*map(int, numbers)) for place, numbers in given.items()}


def hour_of(at: datetime) -> str:
    """The name of the hour that a time lies in: `2026-01-31T23`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H")


def hour_start(hour: str) -> datetime:
    return datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC)


def hour_end(hour: str) -> datetime:
    """The last moment of an hour: behind the last hour of all there is no other."""
    return hour_start(hour) + (HOUR - datetime.resolution)


def hour_folder(hour: str) -> str:
    """Where the records of an hour lie."""
    date, _, number = hour.partition("T")
    return f"date={date}/hour={number}"


def manifest_name(hour: str, claim: str, revision: int) -> str:
    return f"{HOURS}/{hour_folder(hour)}/{claim}-{revision:06}.json.gz"


def claim_of_name(name: str) -> str:
    """The claim that a name begins with, and the random part of it."""
    return "-".join(name.rpartition("/")[2].split("-")[:2])


def claim_number(claim: str) -> int:
    """Which claim it is; 0 for what is none."""
    head = claim.partition("-")[0]
    return int(head) if head.isdecimal() else 0
