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
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter

from penstock.errors import SinkError

T = TypeVar("T")

META_FOLDER = "_penstock"
CLAIMS, STATES, HOURS = f"{META_FOLDER}/claims", f"{META_FOLDER}/states", f"{META_FOLDER}/hours"
HOUR = timedelta(hours=1)
HASH_MODULUS = 2**64


class Span(NamedTuple):
    """Records of one partition: their number, first and last offset, and the sum of their hashes modulo 2^64."""

    rows: int
    first: int
    last: int
    sum: int

    def union(self, other: Span) -> Span:
        """Of records that do not overlap."""
        first, last = min(self.first, other.first), max(self.last, other.last)
        return Span(self.rows + other.rows, first, last, (self.sum + other.sum) % HASH_MODULUS)


Spans = Mapping[str, Span]
"""By `topic/partition`."""


def merge_spans(spans: Iterable[Spans]) -> dict[str, Span]:
    """The union of records that do not overlap."""
    merged: dict[str, Span] = {}
    for by_partition in spans:
        for partition, span in by_partition.items():
            merged[partition] = merged[partition].union(span) if partition in merged else span
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
        return _to_object(self)

    @classmethod
    def read(cls, data: bytes, url: str) -> HourManifest:
        """Parse an object; SinkError if it is invalid."""
        return _from_object(cls, data, url)


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
        recreated: Topics of which records are archived from before they were deleted and created again: an offset may
            be of two records.
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
    recreated: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{STATES}/{self.claim}-{self.number:09}.json.gz"

    @property
    def hours(self) -> list[str]:
        return sorted({*self.open, *self.closed})

    def write(self) -> bytes:
        return _to_object(self)

    @classmethod
    def read(cls, data: bytes, url: str) -> ArchiveState:
        """Parse an object; SinkError if it is invalid."""
        # Missing in the states of earlier versions.
        return _from_object(cls, data, url, optional={"begins", "recreated"})


# Built once: each takes a millisecond or two.
_ADAPTERS: Mapping[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (HourManifest, ArchiveState)}


def _to_object(value: object) -> bytes:
    return to_gzip_json(_ADAPTERS[type(value)].dump_python(value, mode="json"))


def _from_object(kind: type[T], data: bytes, url: str, optional: Set[str] = frozenset()) -> T:
    try:
        content = json.loads(gzip.decompress(data))
        if missing := {field.name for field in fields(kind)} - optional - {*content}:  # type: ignore[arg-type]
            raise ValueError(f"without {', '.join(sorted(missing))}")
        value: T = _ADAPTERS[kind].validate_python(content)
    except (OSError, EOFError, ValueError, TypeError) as e:
        raise SinkError(
            f"{url} is no valid object of an archive",
            got=f"{type(e).__name__}: {e}",
            hint="restore the object from a version or backup of the bucket; nothing was changed",
        ) from e
    return value


def to_gzip_json(data: object) -> bytes:
    return gzip.compress(json.dumps(data, sort_keys=True).encode(), mtime=0)


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
