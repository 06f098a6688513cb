"""The cursor from which a poll must read so that no commit is missed, in whatever order transactions commit.

A row gets its cursor while its transaction is open, and becomes visible when that commits. So a row that becomes
visible later may have a smaller cursor than rows that were read before. A poller that continues after the last cursor
it read loses such rows.

The rule: take the newest poll that **ended at least `overlap` before the oldest open transaction began**, and `overlap`
before now. The highest cursor that it read is the low watermark, and the next poll reads from that value on, the value
included. Proof: a row that was not read yet belongs to a transaction that is open now or begins later. In both cases
the transaction began after the end of that poll, so its cursor is greater than all cursors that the poll read. This
also holds for a transaction that began during the poll, since only the end of the poll counts.

The start of a transaction is known from queries of the server's transactions. Some engines report only when it touched
its first row, and the statement may have begun before. So a poll counts only if there was a query **within `overlap`
after its end**. A transaction that had assigned a cursor by that end then either still ran the statement, and the query
shows it; or had touched a row, so its reported start is less than `overlap` after that end; or had ended, and the next
poll reads its rows.

The only requirement for cursors is that later ones are greater; `overlap` compensates for clocks that differ or step
back by less. All times are epoch seconds of the database's clock.

Rows of the low watermark itself are read at each poll, since another row may get the same value: for a time, within the
resolution and the differences of the clocks. If all transactions that began until then have ended before a poll, that
poll was the last one that must read them: the low watermark is `spent`. Otherwise a table whose rows were all changed
by one statement, and so have one cursor, would be read completely at each poll.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

# A column may store times in whole seconds.
WHOLE_SECOND = 1.0


@dataclass
class LowWatermark:
    """The low watermark of one capture.

    Attributes:
        value: The cursor; None until a poll qualifies, and then all rows are read.
        spent: All rows of this very cursor, if it is a time, have been read.
        needs_look: The transactions must be queried as soon as a poll has ended, since the next query may be too late.
    """

    overlap: float
    value: Any = None
    spent: bool = False
    needs_look: bool = True
    # (end, highest cursor) of polls: those with a query of transactions after them, and those still without.
    _ended: deque[tuple[float, Any]] = field(default_factory=deque)
    _waiting: deque[tuple[float, Any]] = field(default_factory=deque)
    # End of the first poll that read `value`.
    _since: float | None = None

    @property
    def has_candidates(self) -> bool:
        """Whether there is a poll that may still qualify."""
        return bool(self._ended or self._waiting)

    @property
    def top(self) -> Any:
        """The highest cursor of all polls that may qualify, None if there is none."""
        polls = self._waiting or self._ended
        return polls[-1][1] if polls else self.value

    def observed(self, at: float) -> None:
        """Record a query of the server's transactions by its start."""
        while self._waiting and self._waiting[0][0] <= at:
            end, value = self._waiting.popleft()
            if at <= end + self.overlap:
                self._ended.append((end, value))

    def poll_ended(self, began: float, oldest: float | None, ended: float, high: Any) -> None:
        """Record the end of a poll.

        Args:
            began: Start of the query of transactions before the poll.
            oldest: Start of the oldest open transaction by that query; None if there was none.
            ended: The time after the last row was read.
            high: The highest cursor read; None if there was none.
        """
        polls = self._waiting or self._ended
        if polls:
            self.needs_look = began - polls[-1][0] > self.overlap / 2
            if ended < polls[-1][0]:
                # The clock was set back: rows written since then may have smaller cursors than those read.
                self.reset_to(self.value)
        self.observed(began)
        bound = (began if oldest is None else min(oldest, began)) - self.overlap
        while self._ended and self._ended[0][0] < bound:
            end, value = self._ended.popleft()
            if self._since is None or value != self.value:
                self.value, self._since = value, end
        self.spent = self._since is not None and self._since + self.overlap + WHOLE_SECOND < bound
        # A poll without new rows has the highest cursor of the one before it.
        previous_top = self.top
        top = high if previous_top is None or (high is not None and high > previous_top) else previous_top
        if top is not None:
            self._waiting.append((ended, top))

    def reset_to(self, value: Any) -> None:
        """Set the value, and wait again for polls that qualify."""
        self._ended.clear()
        self._waiting.clear()
        self.value, self.spent, self._since = value, False, None
