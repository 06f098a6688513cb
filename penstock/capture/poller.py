"""One capture at work: its snapshot, its polls and its reconcile, step by step in one thread.

One thread is the proof that no older row is ever put over a newer one: whatever is read is written before anything else
is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from penstock.capture.comparison import Comparison
from penstock.capture.cursors import Cursors
from penstock.capture.database import Page
from penstock.capture.pages import Query
from penstock.capture.position import CatchUp
from penstock.capture.records import last
from penstock.capture.seen import Seen
from penstock.capture.snapshot import Snapshotting
from penstock.capture.verdict import in_order
from penstock.capture.writer import PageWriter

Row = tuple[Any, ...]


@dataclass
class Poller(PageWriter):
    """A capture from its position on. `step` does the next piece of work."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cursors = Cursors(self.capture, self.position.low)
        self._snapshot = Snapshotting(self, self._cursors)
        self._comparison = Comparison(self, self._cursors)
        self._next_poll = 0.0

    def step(self) -> float:
        """Do the next piece of work; seconds until the next one is due."""
        if self.position.snapshot is not None:
            return self._snapshot.step(self.position.snapshot)
        if time.monotonic() >= self._next_poll:
            began = time.monotonic()
            self.poll()
            self._next_poll = began + self.capture.every.total_seconds()
        if self.position.reconcile:
            self.figures.state = "reconciling"
            if self._comparison.step():
                self.commit([], replace(self.position, reconcile=""))
            return min(self.reconcile.pause, max(0.0, self._next_poll - time.monotonic()))
        self.figures.state = "polling"
        return max(0.0, self._next_poll - time.monotonic())

    def compare(self, why: str) -> None:
        """Compare all of table and topic, from the next step on."""
        self.reconcile.again()
        self.commit([], replace(self.position, reconcile=why))

    def poll_now(self) -> None:
        """Let the next step poll, whatever the interval says."""
        self._next_poll = 0.0

    def close(self) -> None:
        self._snapshot.close()
        self.output.close()
        self.reconcile.close()
        self.database.close()

    def poll(self) -> int:
        """Read what changed and write it; returns the number of records written."""
        moment, mark = self.database.moment(), self._cursors.mark
        self.hook("before read")
        if why := self._cursors.not_ahead(moment.now, dict(self.position.columns).get(self.capture.cursor, "")):
            self.compare(why)
        oldest, position = self._cursors.held(moment, self.position)
        owed = position.debt is not None and (moment.oldest is None or moment.oldest > position.debt.until)
        low = position.debt.low if owed and position.debt else mark.value
        itself = owed or not self._cursors.spent
        if position != self.position:
            self.commit([], position)
        seen = Seen()
        written = 0
        begun = position.catch_up
        goes_on = begun is not None and begun.low == low and not position.debt
        high, behind = (begun.high, begun.behind) if begun and goes_on else (None, None)
        for page in self._through(lambda row: self.pages.since(low, row, self.PAGE, itself=itself), behind):
            in_order(self.capture, page)
            pages_high = self._cursors.highest(page, moment.now)
            high = high if pages_high is None else pages_high
            more = len(page.rows) == self.PAGE and not position.debt
            written += self._write(page, seen, CatchUp(low, self._last(page), high) if more else None)
        ended, why = self._cursors.clock(self.database)
        if why:
            # What it saw may lie ahead of the clock.
            high = None
            self.compare(why)
        looked = self.database.moment(ended).now if mark.late else None
        for page in self._through(lambda row: self.pages.without_cursor(row, self.PAGE), with_cursor=False):
            written += self._write(page, seen)
        mark.polled(moment.now, oldest, ended, high)
        if looked is not None:
            mark.looked(looked)
        done = replace(self.position, low=mark.value, catch_up=None, debt=None if owed else self.position.debt)
        if done != self.position:
            self.commit([], done)
        self.seen = seen
        self.figures.current, self.figures.oldest = moment.now, moment.oldest
        self.figures.polls += 1
        return written

    def _through(
        self, query: Callable[[Row | None], Query], behind: Row | None = None, *, with_cursor: bool = True
    ) -> Iterator[Page]:
        """All pages behind a row, one after the other."""
        while True:
            page = self.read(query(behind))
            yield page
            if len(page.rows) < self.PAGE:
                return
            behind = self._last(page, with_cursor=with_cursor)

    def _last(self, page: Page, *, with_cursor: bool = True) -> Row:
        names = [self.capture.cursor, *self.capture.key] if with_cursor else self.capture.key
        return last(self.capture, page, names)

    def _write(self, page: Page, seen: Seen, catch_up: CatchUp | None = None) -> int:
        """Write what of a page is not known to be in the topic already; a poll with more to come goes on behind it."""
        records = self.records(page)
        changed = []
        for key, value in zip(records.keys, records.values, strict=True):
            if not self.seen.has(key, value):
                changed.append((key, value))
                # Read once more in this same poll, it is compared with this and not with what came before.
                self.seen.note(key, value)
            seen.note(key, value)
        for known in (seen, self.seen):
            known.trim()
        if changed:
            self.commit(changed, replace(self.position, catch_up=catch_up or self.position.catch_up))
        self.figures.fresh += len(changed)
        return len(changed)
