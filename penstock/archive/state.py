"""What a writer knows of its archive: kept with each commit of the table, so that both change together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pydantic import TypeAdapter

from penstock.errors import SinkError

HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
class ArchiveState:
    """What an archive holds.

    Attributes:
        claim: Number of its newest writer, and a random part.
        positions: Offset after the last archived record, by topic and partition.
        ids: Topic ids by topic.
        begins: Offset from which the archive was given all records up to the position. Partitions for which it is
            unknown are missing.
        recreated: Topics of which records are archived from before they were deleted and created again: an offset may
            be of two records.
    """

    claim: tuple[int, str] = (0, "")
    positions: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    recreated: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def read(cls, text: str, where: str) -> ArchiveState:
        """Parse a table's property.

        Raises:
            SinkError: It is no state.
        """
        try:
            return _ADAPTER.validate_json(text)
        except ValueError as e:
            raise SinkError(
                f"the property of table {where} that says what is archived is invalid",
                got=text[:200],
                hint="restore the property from an earlier metadata file of the table; nothing was changed",
            ) from e


_ADAPTER = TypeAdapter(ArchiveState)


def hour_of(number: int) -> str:
    """The name of an hour, as `2026-01-31T23`, by its number since 1970, as Iceberg's transform gives it."""
    return f"{EPOCH + number * HOUR:%Y-%m-%dT%H}"


def hour_start(hour: str) -> datetime:
    return datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC)


def hour_end(hour: str) -> datetime:
    """The last microsecond of an hour; its exclusive end would overflow for the last hour of year 9999."""
    return hour_start(hour) + (HOUR - datetime.resolution)


def span_difference(expected: Spans, actual: Spans) -> str:
    """The first difference of two sets of records as text; empty if there is none."""
    for partition in sorted({*expected, *actual}):
        stated, read = expected.get(partition), actual.get(partition)
        if stated != read:
            return f"{partition}: {_span_text(read)}; expected {_span_text(stated)}"
    return ""


def _span_text(span: Span | None) -> str:
    if span is None:
        return "none"
    return f"{span.rows} records, offsets {span.first} to {span.last}, sum {span.sum:016x}"


def first_of_hour(at: datetime) -> datetime:
    """The start of the hour of a time."""
    return at.replace(minute=0, second=0, microsecond=0)


def last_of_hour(end: datetime) -> datetime:
    """The last microsecond of the hour of the last microsecond before a time."""
    last = end - datetime.resolution
    return hour_end(f"{last:%Y-%m-%dT%H}")
