"""From where a poll must read so that no commit is missed, whatever order transactions commit in.

A row gets its cursor while its transaction is open, and is seen when that commits: rows that are seen later may lie
before rows that were seen already. A poller that goes on behind the last cursor it saw loses them.

The rule: of the polls that had **ended `overlap` before the oldest transaction now open began**, and `overlap` before
now, take the newest; the highest cursor it saw is the low watermark, and the next poll reads from there, that value
included. Why it holds: a row that is still unseen belongs to a transaction that is open now, or began later. Either
began behind the end of that poll, so its cursor was drawn behind every cursor that poll saw. A transaction that began
while a poll read is no exception, for it is the poll's end that counts.

When a transaction began is known from looks at the server, and some engines show only when it touched its first row: a
statement that waited before that has an older time. So a poll counts only if there was a look **within `overlap` behind
its end**. Whoever had drawn a cursor by that end either ran the statement still, and the look has it; or had touched a
row, so is shown to have begun less than `overlap` behind that end; or was done, and is read by the next poll.

It asks of cursors only that later draws give greater values; `overlap` makes up for clocks that differ or step back by
less. All times are those of the database's clock, in seconds since the epoch.

Rows of the low watermark itself are read at each poll, for another draw may give the same value: of a time, as long as
its clocks and its whole seconds allow. When all transactions that began until then have ended before a poll, that poll
was the last that had to read them: the mark is `spent`. Else a table whose rows were all changed by one statement, so
with one cursor, would be read whole at each poll for ever.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

# A time may be kept in whole seconds.
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
    # (end, highest cursor) of polls: those with a look behind them, and those that may have one yet.
    _ended: deque[tuple[float, Any]] = field(default_factory=deque)
    _waiting: deque[tuple[float, Any]] = field(default_factory=deque)
    # When a poll that saw `value` had first ended.
    _since: float | None = None

    @property
    def has_candidates(self) -> bool:
        """Whether there is a poll that may qualify yet."""
        return bool(self._ended or self._waiting)

    @property
    def top(self) -> Any:
        """The highest cursor of all polls that may qualify, None if there is none."""
        polls = self._waiting or self._ended
        return polls[-1][1] if polls else self.value

    def observed(self, at: float) -> None:
        """Take a look at the server in: when it began."""
        while self._waiting and self._waiting[0][0] <= at:
            end, value = self._waiting.popleft()
            if at <= end + self.overlap:
                self._ended.append((end, value))

    def poll_ended(self, began: float, oldest: float | None, ended: float, high: Any) -> None:
        """Take a poll's end in.

        began: when the look before it began, which saw the oldest transaction open begin at `oldest`, None if none was;
        ended: after its last row was read; high: the highest cursor it saw, None if it saw none.
        """
        polls = self._waiting or self._ended
        if polls:
            self.needs_look = began - polls[-1][0] > self.overlap / 2
            if ended < polls[-1][0]:
                # The clock was set back: what was written by it since then may lie before everything seen.
                self.reset_to(self.value)
        self.observed(began)
        bound = (began if oldest is None else min(oldest, began)) - self.overlap
        while self._ended and self._ended[0][0] < bound:
            end, value = self._ended.popleft()
            if self._since is None or value != self.value:
                self.value, self._since = value, end
        self.spent = self._since is not None and self._since + self.overlap + WHOLE_SECOND < bound
        # A poll that saw nothing new knows as much as the one before it.
        previous_top = self.top
        top = high if previous_top is None or (high is not None and high > previous_top) else previous_top
        if top is not None:
            self._waiting.append((ended, top))

    def reset_to(self, value: Any) -> None:
        """Read from here, and wait again for polls that qualify."""
        self._ended.clear()
        self._waiting.clear()
        self.value, self.spent, self._since = value, False, None
