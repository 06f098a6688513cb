"""The cursor from which a capture's polls read, and the greatest plausible cursor at a time."""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock.capture.output.page_records import column_index
from penstock.capture.output.position import Position, SkippedTransactions
from penstock.capture.polling.keyset_queries import PageQueries
from penstock.capture.polling.low_watermark import LowWatermark
from penstock.capture.source.base import ZONED, SourceDatabase, SourcePage
from penstock.capture.source.open_transactions import TransactionSnapshot
from penstock.model.capture import Capture

log = logging.getLogger(__name__)

# A server's list of transactions may be slightly old, and MariaDB's has whole seconds.
LEAST_OVERLAP = timedelta(seconds=1.5)
# A time as text, as SQLite has it.
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:(?P<separator>[ T])\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?")
# The greatest difference of a local time from UTC.
WIDEST_ZONE = timedelta(hours=14)


def _subtract(at: datetime, step: timedelta) -> datetime:
    """A time minus a duration; the first time of the calendar if that is earlier."""
    first = datetime.min.replace(tzinfo=at.tzinfo)
    return at - step if at - first > step else first


class CursorTracker:
    """The cursors of one capture.

    Attributes:
        mark: The low watermark.
        blind: Whether all sessions were visible once and are not any more.
    """

    def __init__(self, capture: Capture, low: Any) -> None:
        self._capture = capture
        self._overlap = max(capture.overlap, LEAST_OVERLAP)
        self.mark = LowWatermark(self._overlap.total_seconds(), low)
        # The database's clock when it was last read, and this process's monotonic time after that.
        self._read: tuple[float, float] | None = None
        # The clock and the highest cursor before the clock was set back.
        self._ahead: tuple[float, Any] | None = None
        self._opened = True
        # The last snapshot with all sessions.
        self._complete: TransactionSnapshot | None = None
        self.blind = False

    @property
    def spent(self) -> bool:
        """Whether rows of the low watermark itself need not be read again; never for numbers and days."""
        return self.mark.spent and isinstance(self.mark.value, datetime)

    def will_be_polled(self, cursor: Any) -> bool:
        """Whether the next poll reads a row of this cursor."""
        low = self.mark.value
        return low is None or cursor is None or (cursor > low if self.spent else cursor >= low)

    def highest(self, page: SourcePage, now: float) -> Any:
        """The highest cursor of a page that is not in the future; None if there is none.

        A cursor in the future would hide all other rows until then; its row is read again at each poll.
        """
        at = column_index(self._capture, page, self._capture.cursor)
        limit = self.limit(page.rows[-1][at], page.columns[at][1], now) if page.rows else None
        for row in reversed(page.rows):
            if limit is None or row[at] <= limit:
                return row[at]
        return None

    def limit(self, sample: Any, kind: str, now: float) -> Any:
        """The latest plausible cursor, in the type and form of a sample; None for cursors that are no times."""
        iso = ISO_TIME.fullmatch(sample) if isinstance(sample, str) else None
        if not iso and not isinstance(sample, date):
            return None
        limit = datetime.fromtimestamp(now, UTC) + self._overlap
        if isinstance(sample, datetime) and kind.startswith(ZONED):
            return limit if sample.tzinfo else limit.replace(tzinfo=None)
        # Without a zone it may be any local time.
        plain = (limit + WIDEST_ZONE).replace(tzinfo=None)
        if iso:
            return plain.isoformat(iso["separator"]) if iso["separator"] else plain.date().isoformat()
        if not isinstance(sample, datetime):
            return plain.date()
        clock, top = self._ahead or (now, None)
        # The highest cursor before the clock was set back bounds the present one.
        return min(plain, top - timedelta(seconds=clock - now)) if now < clock and isinstance(top, datetime) else plain

    def top(self, database: SourceDatabase, pages: PageQueries, now: float) -> Any:
        """The highest cursor of the table that is not in the future; None if there is none."""
        page = database.page(pages.highest())
        high = page.rows[0][0] if page.rows else None
        limit = self.limit(high, page.columns[0][1], now)
        return high if limit is None or high <= limit else database.value(pages.highest(limit))

    def drop_passed_low(self, database: SourceDatabase, pages: PageQueries, position: Position) -> Position:
        """Drop the low watermark if the table may be another one, and all its cursors are lower: all rows are read.

        The cursors of later changes would be lower, too. Only times with a zone grow in whatever table they are.
        """
        low, kind = self.mark.value, dict(position.columns).get(self._capture.cursor, "")
        if isinstance(low, datetime) and kind.startswith(ZONED):
            return position
        # Polls of the table before may have read higher cursors than there are now.
        self.mark.reset_to(low)
        if low is None:
            return position
        top = self.top(database, pages, database.clock())
        with suppress(TypeError):
            if top is not None and top >= low:
                return position
        log.warning("capture %s: all cursors are lower than %s now; all rows are read", self._capture.name, low)
        self.mark.reset_to(None)
        skipped = position.skipped and replace(position.skipped, low=None)
        return replace(position, low=None, catch_up=None, skipped=skipped)

    def check_clock_at_start(self, now: float, kind: str, previous: float) -> str:
        """Lower a low watermark that is in the future, since the clock was set back while the capture did not run.

        Args:
            now: The database's clock, epoch seconds.
            kind: Type of the cursor's column.
            previous: The clock when the position was written; 0 if that is unknown.

        Returns:
            A message that says so; empty if the clock was not set back.
        """
        low = self.mark.value
        if low is None:
            return ""
        if not (isinstance(low, datetime) and kind.startswith(ZONED)):
            step = timedelta(seconds=previous - now)
            if self._read or step <= self._overlap:
                return ""
            # The time of a number is unknown, and a day is too coarse.
            self.mark.reset_to(_subtract(low, step + self._overlap) if isinstance(low, datetime) else low)
            return self._clock_message(step)
        clock = datetime.fromtimestamp(now, UTC).replace(tzinfo=UTC if low.tzinfo else None)
        if low <= clock + self._overlap:
            return ""
        self.mark.reset_to(clock - self._overlap)
        return self._clock_message(low - clock)

    def clock(self, database: SourceDatabase) -> tuple[float, str]:
        """Read the database's clock; lower the low watermark if it was set back since the last read.

        Returns:
            The clock, and a message if it was set back, else an empty one.
        """
        asked_at = time.monotonic()
        now = database.clock()
        previous, self._read = self._read, (now, time.monotonic())
        if previous is None:
            return now, ""
        # The time that passed here and not there, without the unknown duration of the requests.
        step = timedelta(seconds=asked_at - previous[1] - (now - previous[0]))
        if step <= self._overlap:
            return now, ""
        if self._ahead is None or previous[0] > self._ahead[0]:
            self._ahead = previous[0], self.mark.top
        low = self.mark.value
        self.mark.reset_to(_subtract(low, step + self._overlap) if isinstance(low, datetime) else low)
        return now, self._clock_message(step)

    def _clock_message(self, step: timedelta) -> str:
        rounded = timedelta(seconds=round(step.total_seconds()))
        reason = f"the database's clock was set back by {rounded}"
        log.warning("capture %s: %s; table and topic are compared", self._capture.name, reason)
        return reason

    def check_visibility(
        self, transactions: TransactionSnapshot, position: Position
    ) -> tuple[TransactionSnapshot, Position]:
        """Correct a snapshot of transactions in which not all sessions are visible.

        If all were visible before, e.g. until a privilege was revoked, all transactions that were open then or began
        later may still be open.

        Returns:
            The snapshot for the poll, and the position with whether all sessions are visible.
        """
        was_blind, self.blind = self.blind, position.sees_all and not transactions.complete
        if transactions.complete:
            if was_blind:
                # Polls that ended in the meantime had no complete snapshot after them.
                self.mark.reset_to(self.mark.value)
            self._complete = transactions
            return transactions, replace(position, sees_all=True)
        if not self.blind:
            return transactions, position
        if self._complete is None:
            self._complete = TransactionSnapshot(position.clock or transactions.now, None)
        starts = (self._complete.now, self._complete.oldest, transactions.oldest)
        return replace(transactions, oldest=min(at for at in starts if at is not None)), position

    def apply_hold(self, transactions: TransactionSnapshot, position: Position) -> tuple[float | None, Position]:
        """The start of the oldest transaction to wait for, and the position with the skipped transactions."""
        # With a long interval a poll sees a transaction late.
        bound = transactions.now - (self._capture.hold + self._capture.every).total_seconds()
        skipped = position.skipped
        if skipped and self._opened:
            # The starts of open transactions are lost with the process before: all that began until now are skipped.
            skipped = replace(skipped, until=max(skipped.until, transactions.now))
            position = replace(position, skipped=skipped)
        self._opened = False
        if transactions.oldest is None or transactions.oldest >= bound:
            return transactions.oldest, position
        if skipped is None:
            if not self.blind:
                log.warning(
                    "capture %s: a transaction is open for %.0f s; polls no longer wait for it, and rows since its "
                    "start are read again when it has ended. hint: end the transaction",
                    self._capture.name,
                    transactions.now - transactions.oldest,
                )
            skipped = SkippedTransactions(self.mark.value, bound)
        return bound, replace(position, skipped=replace(skipped, until=max(skipped.until, bound)))
