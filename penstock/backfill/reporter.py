"""Reports a run to the control database, for the operator page."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.backfill.job import BackfillJob, epoch_ms
from penstock.backfill.progress import BackfillStatus
from penstock.control.repositories.backfills import BackfillCounts, BackfillRepository
from penstock.errors import ControlError

log = logging.getLogger(__name__)


def control_reporter(control: BackfillRepository, job: BackfillJob, owner: str) -> Callable[[BackfillStatus], None]:
    """Returns the function that reports the status of a run; a control database that fails does not stop the run."""
    started = False

    def report(status: BackfillStatus) -> None:
        nonlocal started
        remaining_ms = None if status.seconds_left is None else int(status.seconds_left * 1000)
        try:
            if not started:
                begin = None if job.begin is None else epoch_ms(job.begin)
                control.begin_backfill(
                    job.status_key,
                    name=job.name,
                    target=job.target,
                    owner=owner,
                    begin=begin,
                    end=epoch_ms(job.end),
                    dry=job.dry_run,
                )
                started = True
            counts: BackfillCounts = {
                "files": status.files, "files_done": status.files_done, "rows": status.rows,
                "rows_done": status.rows_done, "verified": status.verified,
            }  # fmt: skip
            if status.state == "done" or status.state == "failed" or status.state == "stopped":
                control.end_backfill(job.status_key, status.state, status.why, **counts)
                return
            control.report_backfill(
                job.status_key,
                state=status.state,
                why=status.why,
                rate=status.rate,
                remaining_ms=remaining_ms,
                **counts,
            )
        except ControlError as e:
            log.warning("backfill %s: its progress could not be reported: %s", job.id, e)

    return report
