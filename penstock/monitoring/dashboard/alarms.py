"""Alarms about the time, the records or the store of a stream that runs, and about runs of backfills."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.control import ProgressRow
from penstock.control.repositories.backfills import BackfillRow
from penstock.monitoring.humanize import duration, first_line

LATELY_MS = 10 * 60 * 1000
# Clocks of two hosts may differ by this.
AHEAD_MS = 10_000
# Share of a sink's documents that are retried; a store that is busy for a moment stays below.
RETRIED = 0.1
# How long a past error is shown.
PAST_FOR = 3_600_000
# A run of a backfill reports every few seconds.
SILENT_MS = 120_000


def alarms(row: ProgressRow, before: Mapping[str, int] | None, now: int) -> list[str]:
    """A sentence for each alarm. before: the counts `late` and `dead` of LATELY_MS ago, None if unknown."""
    sentences = []
    if row.watermark is not None and (ahead := row.watermark - now) > AHEAD_MS:
        sentences.append(f"its watermark is {duration(ahead)} ahead of the clock; until then records are late")
    for name, what in (("late", "late records"), ("dead", "dead letters")):
        if before is not None and (rise := getattr(row, name) - before[name]) > 0:
            sentences.append(f"{what} in the last {duration(LATELY_MS)}: {rise:,}")
    if row.store:
        retried, written = (row.store.get(name, 0.0) for name in ("retried_per_s", "written_per_s"))
        if retried > RETRIED * written:
            sentences.append(
                f"its store is too busy: of {written:,.0f} documents per second, {retried:,.0f} are retried"
            )
    return sentences


def silence(row: BackfillRow, now: int) -> str:
    """The alarm about a run of a backfill that has not ended and does not report; else empty."""
    silent_ms = now - row.reported_at
    if row.ended_at is not None or silent_ms <= SILENT_MS:
        return ""
    return f"its process has not reported for {duration(silent_ms)}; run it again: it continues where it was"


def run_alarm(row: BackfillRow, now: int) -> str:
    """The alarm about a run of a backfill, for an hour; empty if there is none."""
    if now - (row.ended_at or row.reported_at) > PAST_FOR:
        return ""
    failed = f"failed: {first_line(row.why) or 'no error was reported'}" if row.state == "failed" else ""
    return silence(row, now) or failed
