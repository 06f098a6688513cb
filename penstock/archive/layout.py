"""Names and JSON formats of an archive's objects.

::

    <prefix>/date=2026-01-31/hour=23/00000004-9f3c01-000000017.parquet   records; valid if the state refers to it
    <prefix>/_penstock/claims/00000004-9f3c01                            one object for each writer
    <prefix>/_penstock/states/00000004-9f3c01-000000017.json.gz          what is archived; the greatest name is valid
    <prefix>/_penstock/hours/date=2026-01-31/hour=23/…json               manifests of closed hours

A name starts with the claim of its writer: a number greater than all before, and a random part. So two writers never
write the same object, and no object is overwritten.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.errors import SinkError

META_FOLDER = "_penstock"
CLAIMS, STATES, HOURS = f"{META_FOLDER}/claims", f"{META_FOLDER}/states", f"{META_FOLDER}/hours"
HOUR = timedelta(hours=1)
HASH_MODULUS = 2**64


@dataclass(frozen=True)
class Span:
    """Records of one partition: their number, first and last offset, and the sum of their hashes modulo 2^64."""

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
    """The union of records that do not overlap."""
    merged: dict[str, Span] = {}
    for by_partition in spans:
        for partition, span in by_partition.items():
            merged[partition] = merged[partition] + span if partition in merged else span
    return merged


@dataclass(frozen=True)
class ArchiveFile:
    """A Parquet file. `key` is relative to the archive's prefix."""

    key: str
    size: int
    spans: Spans

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans.values())


@dataclass(frozen=True)
class ClosedHour:
    """Reference to the manifest of a closed hour, with its totals. `at` is when it was closed, in epoch seconds."""

    key: str
    revision: int
    rows: int
    size: int
    files: int
    at: float


@dataclass(frozen=True)
class HourManifest:
    """The manifest of a closed hour: its files, and the sum of their records."""

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
    def read(cls, data: bytes, url: str) -> HourManifest:
        """Parse an object; SinkError if it is invalid."""
        fields = from_gzip_json(data, url)
        try:
            return cls(
                str(fields["archive"]), str(fields["hour"]), int(fields["revision"]),
                _spans_from_json(fields["spans"]), tuple(_file_from_json(f) for f in fields["files"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise invalid_object(url, e) from e


@dataclass(frozen=True)
class ArchiveState:
    """The contents of an archive. The state with the greatest name is valid.

    Attributes:
        claim: The claim of its writer.
        number: Number of the state among those of its writer.
        positions: Offset after the last archived record, by topic and partition.
        ids: Topic ids by topic.
        open: Files that no manifest contains, by hour.
        closed: Manifests by hour.
        garbage: Objects that are no longer referenced, and since when, in epoch seconds.
        begins: Offset from which the archive was given all records up to the position. Partitions for which it is
            unknown are missing.
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

    @property
    def hours(self) -> list[str]:
        return sorted({*self.open, *self.closed})

    def write(self) -> bytes:
        hours = {hour: [_file_to_json(f) for f in files] for hour, files in self.open.items()}
        return to_gzip_json({**asdict(self), "open": hours})

    @classmethod
    def read(cls, data: bytes, url: str) -> ArchiveState:
        """Parse an object; SinkError if it is invalid."""
        fields = from_gzip_json(data, url)
        try:
            return cls(
                str(fields["claim"]), int(fields["number"]),
                _offsets_from_json(fields["positions"]),
                dict(fields["ids"]),
                {hour: tuple(_file_from_json(f) for f in files) for hour, files in fields["open"].items()},
                {hour: ClosedHour(**hour_fields) for hour, hour_fields in fields["closed"].items()},
                dict(fields["garbage"]),
                _offsets_from_json(fields.get("begins", {})),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise invalid_object(url, e) from e


def invalid_object(url: str, cause: object) -> SinkError:
    return SinkError(
        f"{url} is no valid object of an archive",
        got=f"{type(cause).__name__}: {cause}",
        hint="restore the object from a version or backup of the bucket; nothing was changed",
    )


def to_gzip_json(data: object) -> bytes:
    return gzip.compress(json.dumps(data, sort_keys=True).encode(), mtime=0)


def from_gzip_json(data: bytes, url: str) -> dict[str, Any]:
    try:
        content = json.loads(gzip.decompress(data))
    except (OSError, EOFError, ValueError) as e:
        raise invalid_object(url, e) from e
    if not isinstance(content, dict):
        raise invalid_object(url, type(content).__name__)
    return content


def _file_to_json(file: ArchiveFile) -> dict[str, Any]:
    return {"key": file.key, "size": file.size, "spans": _spans_to_json(file.spans)}


def _file_from_json(fields: Mapping[str, Any]) -> ArchiveFile:
    return ArchiveFile(str(fields["key"]), int(fields["size"]), _spans_from_json(fields["spans"]))


def _spans_to_json(spans: Spans) -> dict[str, list[int]]:
    return {partition: [s.rows, s.first, s.last, s.sum] for partition, s in spans.items()}


def _offsets_from_json(offsets: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    return {topic: {int(p): int(offset) for p, offset in partitions.items()} for topic, partitions in offsets.items()}


def _spans_from_json(spans: Mapping[str, Any]) -> dict[str, Span]:
    return {str(partition): Span(*map(int, numbers)) for partition, numbers in spans.items()}


def hour_of(at: datetime) -> str:
    """The hour of a time, as `2026-01-31T23`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H")


def hour_start(hour: str) -> datetime:
    return datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC)


def hour_end(hour: str) -> datetime:
    """The last microsecond of an hour; its exclusive end would overflow for the last hour of year 9999."""
    return hour_start(hour) + (HOUR - datetime.resolution)


def hour_folder(hour: str) -> str:
    """The folder of an hour's records."""
    date, _, number = hour.partition("T")
    return f"date={date}/hour={number}"


def manifest_name(hour: str, claim: str, revision: int) -> str:
    return f"{HOURS}/{hour_folder(hour)}/{claim}-{revision:06}.json.gz"


def claim_of_name(name: str) -> str:
    """The claim that a name starts with: number and random part."""
    return "-".join(name.rpartition("/")[2].split("-")[:2])


def claim_number(claim: str) -> int:
    """The number of a claim; 0 if it is none."""
    head = claim.partition("-")[0]
    return int(head) if head.isdecimal() else 0
