"""Verifies an archive: reads every file again, and compares counts and hashes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive import records
from penstock.archive.reader import ArchiveHour, check_hour, read_batches, read_hours
from penstock.archive.state import Spans, merge_spans
from penstock.errors import SinkError

if TYPE_CHECKING:
    from penstock.archive.closed_hours import ClosedHours
    from penstock.archive.table import ArchiveTable


@dataclass(frozen=True)
class VerifyFinding:
    """What is wrong, and what to do."""

    what: str
    hint: str


@dataclass(frozen=True)
class HourVerification:
    """The result for one hour."""

    hour: str
    closed: bool
    files: int
    size: int
    rows: int
    findings: tuple[VerifyFinding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def verify_archive(
    table: ArchiveTable, closed: ClosedHours, start: datetime | None = None, end: datetime | None = None
) -> Iterator[HourVerification]:
    """Verify each hour of an interval.

    Raises:
        SinkError: The table cannot be read.
    """
    for hour in read_hours(table, closed, start, end):
        yield _verify_hour(table, hour)


def _closed_part(hour: ArchiveHour, rows: pa.Table) -> pa.Table:
    """The records that an hour may have had when it was closed last: those that came later have larger offsets."""
    for name, span in hour.closed.spans.items() if hour.closed else ():
        topic, _, partition = name.rpartition("/")
        here = (pc.field("topic") == topic) & (pc.field("partition") == int(partition))
        rows = rows.filter(~(here & (pc.field("offset") > span.last)))
    return rows


def _verify_hour(table: ArchiveTable, hour: ArchiveHour) -> HourVerification:
    errors: list[SinkError] = []
    spans: list[Spans] = []
    for file in hour.files:
        try:
            parts = (_closed_part(hour, part) for part in read_batches(table, file))
            spans.append(merge_spans(map(records.spans_of, parts)))
        except SinkError as e:
            errors.append(e)
    # Of a topic that was recreated, later records may have smaller offsets.
    if not errors and not table.state.recreated:
        try:
            check_hour(table, hour, spans)
        except SinkError as e:
            errors.append(e)
    size, found = (
        sum(file.size for file in hour.files),
        tuple(VerifyFinding(f"{e.what}; got: {e.got}", e.hint) for e in errors),
    )
    return HourVerification(hour.name, hour.is_closed, len(hour.files), size, hour.rows, found)
