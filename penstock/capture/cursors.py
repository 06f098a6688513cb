"""From which cursor a capture's polls read, and up to which one a cursor can be true."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock.capture.database import ZONED, Moment, Page
from penstock.capture.low import LowMark
from penstock.capture.position import Debt, Position
from penstock.capture.records import place
from penstock.declare.capture import Capture

log = logging.getLogger(__name__)

# What a database shows of its transactions may be a moment old, and MariaDB's has whole seconds.
LEAST_OVERLAP = timedelta(seconds=1.5)
# Local times differ from UTC by so much at most.
WIDEST_ZONE = timedelta(hours=14)


class Cursors:
    """The cursors of one capture. mark: its low mark; low: where that was when the capture stopped."""

    def __init__(self, capture: Capture, low: Any) -> None:
        self._capture = capture
        self._overlap = max(capture.overlap, LEAST_OVERLAP)
        self.mark = LowMark(self._overlap.total_seconds(), low)
        # The database's clock when the last poll had ended.
        self._ended: float | None = None

    @property
    def spent(self) -> bool:
        """Whether rows of the low mark itself need not be read again: a number or a day may be drawn for long."""
        return self.mark.spent and isinstance(self.mark.value, datetime)

    def to_be_polled(self, cursor: Any) -> bool:
        """Whether the next poll reads a row of this cursor."""
        low = self.mark.value
        return low is None or cursor is None or (cursor > low if self.spent else cursor >= low)

    def highest(self, page: Page, now: float) -> Any:
        """The highest cursor of a page, None if it has none. A time that is yet to come counts for nothing.

        A row that says so would hide all others until then. It is read again at each poll.
        """
        at = place(self._capture, page, self._capture.cursor)
        limit = self.limit(page.rows[-1][at], page.columns[at][1], now) if page.rows else None
        for row in reversed(page.rows):
            if limit is None or row[at] <= limit:
                return row[at]
        return None

    def limit(self, sample: Any, kind: str, now: float) -> Any:
        """The last time a cursor may truly have, in the form of a sample; None for cursors that are no times."""
        if not isinstance(sample, date):
            return None
        limit = datetime.fromtimestamp(now, UTC) + self._overlap
        if isinstance(sample, datetime) and kind.startswith(ZONED):
            return limit if sample.tzinfo else limit.replace(tzinfo=None)
        # Without a zone it may be anybody's local time.
        plain = (limit + WIDEST_ZONE).replace(tzinfo=None)
        return plain if isinstance(sample, datetime) else plain.date()

    def not_ahead(self, now: float, kind: str) -> None:
        """Lower a low mark that is yet to come: the clock was set back, perhaps while nobody polled.

        kind: the type of the cursor's column.
        """
        low = self.mark.value
        if not isinstance(low, datetime) or not kind.startswith(ZONED):
            return
        here = datetime.fromtimestamp(now, UTC).replace(tzinfo=UTC if low.tzinfo else None)
        if low > here + self._overlap:
            name = self._capture.name
            log.warning("capture %s: its low mark %s is yet to come, so the clock was set back", name, low)
            self.mark.back_to(here - self._overlap)

    def set_back(self, now: float) -> None:
        """A cursor without a zone goes back by as much as the clock was seen to."""
        low, step = self.mark.value, timedelta(seconds=(self._ended or now) - now)
        if step > self._overlap and isinstance(low, datetime):
            log.warning("capture %s: the database's clock was set back by %s", self._capture.name, step)
            self.mark.back_to(low - step - self._overlap)
        self._ended = now

    def held(self, moment: Moment, position: Position) -> tuple[float | None, Position]:
        """The oldest transaction to wait for, and the position with what is owed to those no longer waited for."""
        bound = moment.now - self._capture.hold.total_seconds()
        debt = position.debt
        if moment.oldest is None or moment.oldest >= bound:
            return moment.oldest, position
        if debt is None:
            log.warning(
                "capture %s: a transaction is open for %.0f s; it is no longer waited for, and what lies behind its "
                "beginning is read again when it has ended. To mend it: end the transaction",
                self._capture.name,
                moment.now - moment.oldest,
            )
        return bound, replace(position, debt=Debt(debt.low if debt else self.mark.value, bound))
