"""Verifies an archive: reads every file again, and compares counts and hashes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

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


def _verify_hour(table: ArchiveTable, hour: ArchiveHour) -> HourVerification:
    errors: list[SinkError] = []
    spans: list[Spans] = []
    for file in hour.files:
        try:
            spans.append(merge_spans(map(records.spans_of, read_batches(table, file))))
        except SinkError as e:
            errors.append(e)
    if not errors:
        try:
            check_hour(table, hour, spans)
        except SinkError as e:
            errors.append(e)
    if hour.closed and hour.rows < hour.closed.records:
        what = (
            f"hour {hour.name} of table {table.name} has {hour.rows:,} records, and {hour.closed.records:,} when closed"
        )
        hint = f"look for what deleted them, and go back to snapshot {hour.closed.snapshot}"
        errors.append(SinkError(what, got=hour.rows, hint=hint))
    size, found = (
        sum(file.size for file in hour.files),
        tuple(VerifyFinding(f"{e.what}; got: {e.got}", e.hint) for e in errors),
    )
    return HourVerification(hour.name, hour.is_closed, len(hour.files), size, hour.rows, found)
