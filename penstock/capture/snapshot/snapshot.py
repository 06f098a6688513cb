"""The snapshot of a capture: all rows of the table in order of key, before its polls begin."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import ClassVar

from penstock.capture.output.position import KeyRange, SnapshotProgress
from penstock.capture.polling.cursors import CursorTracker
from penstock.capture.session import CaptureSession
from penstock.capture.snapshot.parallel_readers import RangeReaders, split_key_ranges
from penstock.capture.source.base import SourceError
from penstock.settings import settings

log = logging.getLogger(__name__)


class SnapshotRun:
    """Takes or resumes the snapshot. Snapshot and polls start from the same low watermark."""

    # Rows from which several readers are faster.
    LARGE: ClassVar[int] = 200_000

    def __init__(self, session: CaptureSession, cursors: CursorTracker) -> None:
        self._session, self._cursors = session, cursors
        self._readers: RangeReaders | None = None

    def step(self, progress: SnapshotProgress) -> float:
        """Do the next piece of work; returns the seconds until the next one is due."""
        session = self._session
        if not progress.ranges and not self._may_begin():
            session.metrics.state = "waiting"
            return 0.2
        session.metrics.state = "snapshot"
        low = self._cursors.mark.value
        if not progress.ranges:
            progress = self._split()
            session.position = replace(session.position, snapshot=progress, low=low)
        if self._readers is None:
            self._readers = RangeReaders(
                session.capture, session.database, low, session.PAGE, progress.ranges,
                settings().snapshot_readers, session.encoder,
            )  # fmt: skip
        try:
            page = self._readers.next()
        except SourceError as e:
            if e.refused and self._cannot_ask(progress):
                # The key's columns were altered: the snapshot starts again when the capture is opened again.
                session.commit([], replace(session.position, snapshot=SnapshotProgress()))
            raise
        session.hook("after read")
        records = session.without_oversized(page.records)
        keys, values = records.keys, records.values
        session.metrics.read += len(keys)
        session.set_columns(page.columns)
        for row in page.again[: session.last_values.room]:
            session.last_values.note(keys[row], values[row])
        progress = replace(progress, ranges=self._readers.left, rows=progress.rows + len(keys))
        session.commit(
            zip(keys, values, strict=True), replace(session.position, snapshot=progress if progress.ranges else None)
        )
        if not progress.ranges:
            session.index.mark_in_sync()
            self.close()
        session.metrics.rows, session.metrics.total = progress.rows, progress.total
        session.metrics.changed += len(keys)
        return 0.0

    def _split(self) -> SnapshotProgress:
        """A snapshot of several ranges if the table is large, and the database counts its rows in time."""
        session, total = self._session, 0
        ranges: tuple[KeyRange, ...] = (KeyRange(),)
        try:
            total = int(session.database.value(session.pages.count()) or 0)
            if total >= self.LARGE:
                ranges = split_key_ranges(session.database, session.pages, total, settings().snapshot_readers)
        except SourceError as e:
            if not e.timed_out:
                raise
            log.warning("capture %s: one reader reads the snapshot, since %s", session.capture.name, e)
        return SnapshotProgress(ranges, 0, total)

    def _cannot_ask(self, progress: SnapshotProgress) -> bool:
        """Whether the database refuses to compare its key with a bound of the remaining ranges."""
        for bound in (
            bound for key_range in progress.ranges for bound in (key_range.behind, key_range.upto) if bound is not None
        ):
            try:
                self._session.database.value(self._session.pages.has(bound))
            except SourceError as e:
                if e.refused:
                    return True
        return False

    def close(self) -> None:
        if self._readers:
            self._readers.close()
            self._readers = None

    def _may_begin(self) -> bool:
        """Whether all transactions have ended that may commit a row below the cursor at which polls will start.

        It is the rule of the low watermark, with the present highest cursor in the place of a poll's.
        """
        session, mark = self._session, self._cursors.mark
        transactions, session.position = self._cursors.check_visibility(
            session.database.transactions(), session.position
        )
        if mark.value is None and not mark.has_candidates:
            high = self._cursors.top(session.database, session.pages, transactions.now)
            if high is None:
                return True
            mark.poll_ended(transactions.now, transactions.oldest, self._cursors.clock(session.database)[0], high)
            return False
        oldest, session.position = self._cursors.apply_hold(transactions, session.position)
        mark.poll_ended(transactions.now, oldest, self._cursors.clock(session.database)[0], None)
        session.metrics.waits_for = (
            f"transactions that began before {transactions.oldest:.0f}" if transactions.oldest else ""
        )
        return mark.value is not None
