"""Tells the control database of a run, for the operator page."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.backfill.job import BackfillJob, epoch_ms
from penstock.backfill.progress import BackfillStatus
from penstock.control.repositories.backfills import BackfillRepository
from penstock.errors import ControlError

log = logging.getLogger(__name__)


def control_reporter(control: BackfillRepository, job: BackfillJob, owner: str) -> Callable[[BackfillStatus], None]:
    """What a run tells its figures. A control database that is away keeps no run from going on."""
    begun = False

    def tell(now: BackfillStatus) -> None:
        nonlocal begun
        left = None if now.seconds_left is None else int(now.seconds_left * 1000)
        try:
            if not begun:
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
                begun = True
            if now.state == "done" or now.state == "failed" or now.state == "stopped":
                control.end_backfill(
                    job.status_key, now.state, now.why, files=now.files, files_done=now.files_done, rows=now.rows,
                    rows_done=now.rows_done, verified=now.verified,
                )  # fmt: skip
                return
            control.report_backfill(
                job.status_key, state=now.state, why=now.why, files=now.files, files_done=now.files_done, rows=now.rows,
                rows_done=now.rows_done, verified=now.verified, rate=now.rate, remaining_ms=left,
            )  # fmt: skip
        except ControlError as e:
            log.warning("backfill %s: the control database is not told of it: %s", job.id, e)

    return tell
