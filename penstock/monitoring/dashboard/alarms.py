"""What is wrong with the time, the records or the store of a stream that runs well otherwise, and with backfills."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.control import ProgressRow
from penstock.control.repositories.backfills import BackfillRow
from penstock.monitoring.humanize import duration, first_line

LATELY_MS = 10 * 60 * 1000
# Two hosts' clocks differ by so much without harm.
AHEAD_MS = 10_000
# Of what a sink writes: a store that is busy for a moment has less of it sent again.
AGAIN = 0.1
# For so many ms something that is past is told of.
PAST_FOR = 3_600_000
# A run of a backfill reports every few seconds, whatever it does.
SILENT_MS = 120_000


def alarms(row: ProgressRow, before: Mapping[str, int] | None, now: int) -> list[str]:
    """A sentence for each. before: the counts `late` and `dead` of LATELY_MS ago, None if nothing is known of then."""
    sentences = []
    if row.watermark is not None and (ahead := row.watermark - now) > AHEAD_MS:
        sentences.append(f"its watermark is {duration(ahead)} ahead of the clock; until then records are late")
    for name, what in (("late", "late records"), ("dead", "dead letters")):
        if before is not None and (rise := getattr(row, name) - before[name]) > 0:
            sentences.append(f"{what} in the last {duration(LATELY_MS)}: {rise:,}")
    retried, written = ((row.store or {}).get(name, 0.0) for name in ("retried_per_s", "written_per_s"))
    if retried > AGAIN * written:
        sentences.append(f"its store is too busy: of {written:,.0f} documents per second, {retried:,.0f} are retried")
    return sentences


def silence(row: BackfillRow, now: int) -> str:
    """Of a run of a backfill that has not ended and says nothing: since when; else empty."""
    silent_ms = now - row.reported_at
    if row.ended_at is not None or silent_ms <= SILENT_MS:
        return ""
    return f"its process has not reported for {duration(silent_ms)}; run it again: it continues where it was"


def run_alarm(row: BackfillRow, now: int) -> str:
    """What is wrong with a run of a backfill, for an hour; empty if nothing is."""
    if now - (row.ended_at or row.reported_at) > PAST_FOR:
        return ""
    failed = f"failed: {first_line(row.why) or 'no error was reported'}" if row.state == "failed" else ""
    return silence(row, now) or failed
