"""In which state a run of a backfill is, what that means and what to do about it. Pure."""

from __future__ import annotations

from penstock.control.repositories.backfills import BackfillRow
from penstock.monitoring.dashboard.alarms import run_alarm, silence
from penstock.monitoring.dashboard.model import BackfillRunView

RUN_STATES = {
    "running": "It reads and writes.",
    "waiting": "It is held up, and goes on by itself; the reason says for what it waits.",
    "verifying": "All is written; what was written is compared with what was to be.",
    "silent": "Nothing was heard of it for longer than may be: its process died.",
    "failed": "It ended with an error. What it had written by then stays.",
    "stopped": "Somebody ended it before it was done. What it had written by then stays.",
    "done": "It came to its end.",
}
# The sentences of docs/operations.md, for where that file cannot be opened.
RUN_REMEDIES = {
    "running": "",
    "waiting": "wait; if it stays, mend what the reason names",
    "verifying": "",
    "silent": "run it again: it goes on where it was",
    "failed": "read the reason and mend it, then run it again: it goes on where it was",
    "stopped": "run it again, if it is still wanted: it goes on where it was",
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
    # Rows say more: files are not of one size.
    done, of = (row.rows_done, row.rows) if row.rows else (row.files_done, row.files)
    return min(1.0, done / of) if of else None
