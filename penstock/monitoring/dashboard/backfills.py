"""States of runs of backfills, their meaning and remedies."""

from __future__ import annotations

from penstock.control.repositories.backfills import BackfillRow
from penstock.monitoring.dashboard.alarms import run_alarm, silence
from penstock.monitoring.dashboard.model import BackfillRunView

RUN_STATES = {
    "running": "It reads and writes records.",
    "waiting": "It waits and continues by itself; the reason says for what.",
    "verifying": "Everything is written; the result is compared with the source.",
    "silent": "It has not reported for too long: its process died.",
    "failed": "It ended with an error. Records that it wrote stay.",
    "stopped": "It was ended before it was done. Records that it wrote stay.",
    "done": "It is complete.",
}
# The same sentences as in docs/operations.md.
RUN_REMEDIES = {
    "running": "",
    "waiting": "wait; if it stays, fix what the reason names",
    "verifying": "",
    "silent": "run it again: it continues where it was",
    "failed": "fix the reason, then run it again: it continues where it was",
    "stopped": "run it again if it is still needed: it continues where it was",
    "done": "",
}


def run_view(row: BackfillRow, now: int) -> BackfillRunView:
    """A run as the page shows it."""
    silent = silence(row, now)
    goes_on = row.ended_at is None and not silent
    return BackfillRunView(
        row.run,
        row.name,
        row.begin,
        row.end,
        row.target,
        row.dry,
        state="silent" if silent else row.state,
        why=silent or row.why,
        alarm=run_alarm(row, now),
        files=row.files,
        files_done=row.files_done,
        rows=row.rows,
        rows_done=row.rows_done,
        done=_done(row),
        rate=row.rate if goes_on else None,
        remaining_ms=row.remaining_ms if goes_on else None,
        verified=row.verified,
        attempts=row.attempts,
        owner=row.owner,
        started_at=row.started_at,
        took_ms=max(0, (row.ended_at or row.reported_at) - row.started_at),
        reported_age_ms=max(0, now - row.reported_at),
        ended_age_ms=None if row.ended_at is None else max(0, now - row.ended_at),
    )


def _done(row: BackfillRow) -> float | None:
    if row.state == "done":
        return 1.0
    # Rows are more exact: files differ in size.
    done, of = (row.rows_done, row.rows) if row.rows else (row.files_done, row.files)
    return min(1.0, done / of) if of else None
