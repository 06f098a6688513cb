"""One capture at work: its snapshot, its polls and its reconcile, step by step in one thread.

One thread is the proof that no older row is ever put over a newer one: whatever is read is written before anything else
is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.capture.checks.caveats import table_caveats
from penstock.capture.checks.introspection import StatementInfo, told
from penstock.capture.checks.paging_checks import check_cursor_order
from penstock.capture.checks.table_structure import foreign_key_caveats, table_fingerprint
from penstock.capture.checks.triggers import trigger_caveats
from penstock.capture.output.encode import digest
from penstock.capture.output.page_records import last
from penstock.capture.output.page_writer import PageWriter
from penstock.capture.output.position import CatchUp, SnapshotProgress
from penstock.capture.polling.change_cache import LastValueCache
from penstock.capture.polling.cursors import CursorTracker
from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.reconcile.compare import Comparison
from penstock.capture.reconcile.digest_index import UNEXPLAINED
from penstock.capture.snapshot.snapshot import SnapshotRun
from penstock.capture.source.base import SourcePage

log = logging.getLogger(__name__)

Row = tuple[Any, ...]


@dataclass
class Poller(PageWriter):
    """A capture from its position on. `step` does the next piece of work."""

    # Seconds between two looks at the shape of the tables.
    TABLE_CHECK_SECONDS: ClassVar[float] = 10.0
    # Seconds of reading the topic for what its last records say, before the first poll.
    TOPIC_READ_SECONDS: ClassVar[float] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cursors = CursorTracker(self.capture, self.position.low)
        self._snapshot = SnapshotRun(self, self._cursors)
        self._comparison = Comparison(self, self._cursors)
        self._next_poll = 0.0
        self._next_chunk = 0.0
        self._told: StatementInfo | None = None
        # Whether the topic is asked for the last records of rows that this process has not written yet.
        self._asks_topic = self.position.snapshot != SnapshotProgress()

    def step(self) -> float:
        """Do the next piece of work; seconds until the next one is due."""
        if time.monotonic() >= self.next_look:
            self._look()
        if self.position.snapshot is not None:
            return self._snapshot.step(self.position.snapshot)
        if time.monotonic() >= self._next_poll:
            began = time.monotonic()
            self.poll()
            self._next_poll = began + self.capture.every.total_seconds()
        if self.position.reconcile:
            self.figures.state = "reconciling"
            # Polls that come more often than chunks are due do not hurry them.
            if time.monotonic() >= self._next_chunk:
                if self._comparison.step():
                    self.commit([], replace(self.position, reconcile=""))
                self._next_chunk = time.monotonic() + self.reconcile.pause
            return max(0.0, min(self._next_poll, self._next_chunk) - time.monotonic())
        self.figures.state = "polling"
        return max(0.0, self._next_poll - time.monotonic())

    def compare(self, why: str) -> None:
        """Compare all of table and topic, from the next step on."""
        self.reconcile.again()
        self._comparison.asks, self._next_chunk = "", 0.0
        self.commit([], replace(self.position, reconcile=why))

    def _look(self) -> None:
        """Compare all if rows that do not change by themselves may look different now, or fit into the topic."""
        if self._told is None:
            self._ask()
        found, why = self._shape(), ""
        if self.position.table_fingerprint not in ("", found):
            # What it refuses at its start it refuses now, before it takes rows for gone that a view leaves out.
            self._ask()
            found = self._shape()
            why = "its tables were altered"
        elif self.aside.may_fit_now and not self.position.reconcile:
            why = "its topic takes larger records"
        self.next_look = time.monotonic() + self.TABLE_CHECK_SECONDS
        position = replace(self.position, table_fingerprint=found)
        if why:
            log.warning("capture %s: %s; table and topic are compared", self.capture.name, why)
            self.reconcile.again()
            # Its last row may have a key that the table can no longer be asked for.
            position = replace(position, catch_up=None)
            # Columns that are others say more.
            position = replace(position, reconcile=why if position.reconcile in UNEXPLAINED else position.reconcile)
        if position != self.position:
            self.commit([], position)

    def _ask(self) -> None:
        """Ask what is behind the names of the statement. SourceError if pages would not be rows of its tables."""
        about = self._told = told(self.capture, self.database)
        sentences = list(table_caveats(self.capture, about))
        for ask in (foreign_key_caveats, trigger_caveats):
            sentences += ask(self.database, self.capture, about.tables)
        for sentence in sentences:
            log.warning("capture %s: %s", self.capture.name, sentence)

    def _shape(self) -> str:
        return table_fingerprint(self.database, self.capture, self._told.tables if self._told else ())

    @property
    def asks(self) -> str:
        """What somebody has to decide before all is done that is due; empty if nothing is."""
        if self._cursors.blind:
            return (
                "looks at the server do not see all transactions any more, so polls read from where they did: "
                f"{self.database.WHY_NOT_VISIBLE}. To mend it: give the right back; or `penstock capture ask "
                f"{self.capture.name} continue`, and DELAY stands in for what is not seen"
            )
        return self._comparison.asks if self.position.reconcile else ""

    @property
    def pending_since(self) -> float:
        """Since when a comparison has waited for a decision, epoch seconds; 0 if it does not."""
        return self._comparison.pending_since if self.position.reconcile and self._comparison.asks else 0.0

    def continue_pending(self) -> None:
        """Do what awaits a decision: see `asks`."""
        if self._cursors.blind:
            self._cursors.blind = False
            self.commit([], replace(self.position, sees_all=False))
        if self.pending_since:
            self.reconcile.allow()
            self._comparison.asks, self._next_chunk = "", 0.0

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
        self._asks_topic = self._asks_topic and self._remembers()
        moment, mark = self.database.moment(), self._cursors.mark
        self.hook("before read")
        kind = dict(self.position.columns).get(self.capture.cursor, "")
        if why := self._cursors.check_clock_at_start(moment.now, kind, self.position.clock):
            self.position = replace(self.position, clock=moment.now)
            self.compare(why)
        moment, position = self._cursors.check_visibility(moment, self.position)
        oldest, position = self._cursors.apply_hold(moment, position)
        owed = position.debt is not None and (moment.oldest is None or moment.oldest > position.debt.until)
        low = position.debt.low if owed and position.debt else mark.value
        itself = owed or not self._cursors.spent
        if position != self.position:
            self.commit([], position)
        seen = LastValueCache()
        written = 0
        begun = position.catch_up
        goes_on = begun is not None and begun.low == low and not position.debt
        high, behind_at = (begun.high, begun.behind) if begun and goes_on else (None, None)
        for page in self._through(lambda row: self.pages.since(low, row, self.size.rows, itself=itself), behind_at):
            check_cursor_order(self.capture, page)
            pages_high = self._cursors.highest(page, moment.now)
            high = high if pages_high is None else pages_high
            more = page.more and not position.debt
            written += self._write(page, seen, CatchUp(low, self._last(page), high) if more else None)
        ended, why = self._cursors.clock(self.database)
        if why:
            # What it saw may lie ahead of the clock.
            high = None
            self.compare(why)
        looked = self.database.moment(ended).now if mark.late else None
        for page in self._through(lambda row: self.pages.without_cursor(row, self.size.rows), with_cursor=False):
            written += self._write(page, seen)
        mark.polled(moment.now, oldest, ended, high)
        if looked is not None:
            mark.looked(looked)
        done = replace(self.position, low=mark.value, catch_up=None, debt=None if owed else self.position.debt)
        if done != self.position:
            self.commit([], replace(done, clock=ended))
        # A poll that goes on has not met the rows that were written before it.
        self.seen, self._asks_topic = seen, self._asks_topic and behind_at is not None
        self.figures.current, self.figures.oldest = moment.now, moment.oldest
        self.figures.polls += 1
        return written

    def _remembers(self) -> bool:
        """Read on in the topic for a while; True if its end was reached, so that it tells the last record of each key.

        More than is read in that time is written again as fast.
        """
        end = time.monotonic() + self.TOPIC_READ_SECONDS
        while time.monotonic() < end:
            if self.reconcile.follow():
                return True
        return False

    def _through(
        self, query: Callable[[Row | None], SourceQuery], behind: Row | None = None, *, with_cursor: bool = True
    ) -> Iterator[SourcePage]:
        """All pages behind a row, one after the other."""
        while True:
            page = self.read(query(behind))
            yield page
            if not page.more:
                return
            behind = self._last(page, with_cursor=with_cursor)

    def _last(self, page: SourcePage, *, with_cursor: bool = True) -> Row:
        names = [self.capture.cursor, *self.capture.key] if with_cursor else self.capture.key
        return last(self.capture, page, names)

    def _write(self, page: SourcePage, seen: LastValueCache, catch_up: CatchUp | None = None) -> int:
        """Write what of a page is not known to be in the topic already; a poll with more to come goes on behind it."""
        records = self.records(page)
        changed = []
        # A row may have left the memory when that is full, and the topic would then know less than was written.
        asks = self._asks_topic and self.seen.room > 0
        topic = self.reconcile.digests(records.keys) if asks else {}
        for key, value in zip(records.keys, records.values, strict=True):
            if asks and not self.seen.knows(key) and topic.get(key) == (None if value is None else digest(value)):
                self.seen.note(key, value)
            if not self.seen.has(key, value):
                changed.append((key, value))
                # Read once more in this same poll, it is compared with this and not with what came before.
                self.seen.note(key, value)
            seen.note(key, value)
        for known in (seen, self.seen):
            known.trim()
        if changed or self.aside.letters:
            self.commit(changed, replace(self.position, catch_up=catch_up or self.position.catch_up))
        self.figures.fresh += len(changed)
        return len(changed)
