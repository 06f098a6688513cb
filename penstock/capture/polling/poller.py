"""Runs one capture step by step in one thread: its snapshot, its polls and its reconcile.

With one thread no older row can overwrite a newer one: each page is written before the next one is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from penstock.capture.checks.caveats import table_caveats
from penstock.capture.checks.introspection import StatementInfo, inspect_statement
from penstock.capture.checks.paging_checks import check_cursor_order
from penstock.capture.checks.table_structure import foreign_key_caveats, table_fingerprint
from penstock.capture.checks.triggers import trigger_caveats
from penstock.capture.output.encode import digest
from penstock.capture.output.page_records import last
from penstock.capture.output.position import CatchUp, Position, SnapshotProgress
from penstock.capture.polling.change_cache import LastValueCache
from penstock.capture.polling.cursors import CursorTracker
from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.reconcile.compare import Comparison
from penstock.capture.reconcile.drift import UNEXPLAINED
from penstock.capture.session import CaptureMetrics, CaptureSession
from penstock.capture.snapshot.snapshot import SnapshotRun
from penstock.capture.source.base import SourcePage
from penstock.model.capture import Capture

log = logging.getLogger(__name__)

Row = tuple[Any, ...]

# The decision whether DELAY replaces transactions that are no longer visible.
HIDDEN_TRANSACTIONS = "hidden transactions"


class Poller:
    """Runs a capture from its position on. `step` does the next piece of work."""

    # Seconds between two checks of the tables' structure.
    TABLE_CHECK_SECONDS: ClassVar[float] = 10.0
    # Seconds for which the topic is read before the first poll, to know the last record of each key.
    TOPIC_READ_SECONDS: ClassVar[float] = 10.0

    def __init__(self, session: CaptureSession) -> None:
        self.session = session
        self._cursors = CursorTracker(session.capture, session.position.low)
        self._snapshot = SnapshotRun(session, self._cursors)
        self._comparison = Comparison(session, self._cursors)
        self._next_poll = 0.0
        self._next_chunk = 0.0
        self._statement: StatementInfo | None = None
        # Whether rows that this process has not written yet are compared with the topic's last records.
        self._asks_topic = self.position.snapshot != SnapshotProgress()

    @property
    def capture(self) -> Capture:
        return self.session.capture

    @property
    def position(self) -> Position:
        return self.session.position

    @property
    def metrics(self) -> CaptureMetrics:
        return self.session.metrics

    def step(self) -> float:
        """Do the next piece of work; returns the seconds until the next one is due."""
        if time.monotonic() >= self.session.next_table_check:
            self._check_tables()
        if self.position.snapshot is not None:
            return self._snapshot.step(self.position.snapshot)
        if time.monotonic() >= self._next_poll:
            began, polls = time.monotonic(), self.metrics.polls
            self.poll()
            # After a resumed poll the next one is due at once.
            if self.metrics.polls > polls:
                self._next_poll = began + self.capture.every.total_seconds()
        if self.position.reconcile:
            self.metrics.state = "reconciling"
            # Frequent polls do not make the reconcile faster than its rate.
            if time.monotonic() >= self._next_chunk:
                self._comparison.step()
                self._next_chunk = time.monotonic() + self.session.index.pause
            return max(0.0, min(self._next_poll, self._next_chunk) - time.monotonic())
        self.metrics.state = "polling"
        return max(0.0, self._next_poll - time.monotonic())

    def compare(self, why: str, request: str = "") -> None:
        """Start a reconcile with the next step. request: the id of the one that asks for it."""
        self.session.index.restart()
        self._next_chunk = 0.0
        self.session.commit([], replace(self.position, reconcile=why, request=request or self.position.request))

    def _check_tables(self) -> None:
        """Start a reconcile if the tables were altered, or if the topic takes larger records now."""
        if self._statement is None:
            self._inspect_statement()
        fingerprint, reason = self._table_fingerprint(), ""
        altered = self.position.table_fingerprint not in ("", fingerprint)
        if altered:
            # A view that now hides rows must be refused before its rows count as deleted.
            self._inspect_statement()
            fingerprint = self._table_fingerprint()
            reason = "its tables were altered"
        elif self.session.oversized.may_fit_now and not self.position.reconcile:
            reason = "its topic takes larger records"
        self.session.next_table_check = time.monotonic() + self.TABLE_CHECK_SECONDS
        position = replace(self.position, table_fingerprint=fingerprint)
        if reason:
            log.warning("capture %s: %s; table and topic are compared", self.capture.name, reason)
            self.session.index.restart()
            # The table may not accept the key of the last row any more.
            position = replace(position, catch_up=None)
            if altered:
                position = self._cursors.drop_passed_low(self.session.database, self.session.pages, position)
                # Rows that are read again are not written again.
                self._asks_topic |= position.low is None
            # Changed columns are the better explanation.
            position = replace(position, reconcile=reason if position.reconcile in UNEXPLAINED else position.reconcile)
        if position != self.position:
            self.session.commit([], position)

    def _inspect_statement(self) -> None:
        """Inspect tables, views and functions of the statement; SourceError if it cannot be paged."""
        info = self._statement = inspect_statement(self.capture, self.session.database)
        sentences = list(table_caveats(self.capture, info))
        for ask in (foreign_key_caveats, trigger_caveats):
            sentences += ask(self.session.database, self.capture, info.tables)
        for sentence in sentences:
            log.warning("capture %s: %s", self.capture.name, sentence)

    def _table_fingerprint(self) -> str:
        return table_fingerprint(self.session.database, self.capture, self._statement.tables if self._statement else ())

    @property
    def pending_decision(self) -> str:
        """What an operator has to decide; empty if nothing."""
        if self._cursors.blind:
            return (
                "not all transactions of the server are visible any more, so polls read from where they last "
                f"were: {self.session.database.WHY_NOT_VISIBLE}. hint: restore the privilege; or `penstock "
                f"capture ask {self.capture.name} continue`, and DELAY replaces what is not visible"
            )
        return self._comparison.pending_decision if self.position.reconcile else ""

    @property
    def pending_id(self) -> str:
        """Identifies the pending decision, so that no other is taken for it; empty if there is none."""
        if self._cursors.blind:
            return HIDDEN_TRANSACTIONS
        return f"scan {self.session.index.scan}" if self.pending_decision else ""

    @property
    def pending_since(self) -> float:
        """Since when a reconcile waits for a decision, in epoch seconds; 0 if it does not."""
        return self._comparison.pending_since if self.position.reconcile and self._comparison.pending_decision else 0.0

    def continue_pending(self) -> None:
        """Continue after the decision that `pending_decision` shows, and no other."""
        if self._cursors.blind:
            self._cursors.blind = False
            self.session.commit([], replace(self.position, sees_all=False))
        elif self.pending_since:
            self._comparison.allow_removal()
            self._next_chunk = 0.0

    def poll_now(self) -> None:
        """Poll with the next step."""
        self._next_poll = 0.0

    def close(self) -> None:
        self._snapshot.close()
        self.session.output.close()
        self.session.index.close()
        self.session.database.close()

    def poll(self) -> int:
        """Read what changed and write it; returns the number of records written."""
        session = self.session
        self._asks_topic = self._asks_topic and self._read_topic()
        transactions, mark = session.database.transactions(), self._cursors.mark
        session.hook("before read")
        kind = dict(self.position.columns).get(self.capture.cursor, "")
        if reason := self._cursors.check_clock_at_start(transactions.now, kind, self.position.clock):
            session.position = replace(self.position, clock=transactions.now)
            self.compare(reason)
        transactions, position = self._cursors.check_visibility(transactions, self.position)
        oldest, position = self._cursors.apply_hold(transactions, position)
        rereads_skipped = position.skipped is not None and (
            transactions.oldest is None or transactions.oldest > position.skipped.until
        )
        low = position.skipped.low if rereads_skipped and position.skipped else mark.value
        itself = rereads_skipped or not self._cursors.spent
        if position != self.position:
            session.commit([], position)
        values_of_poll = LastValueCache()
        written = 0
        catch_up = position.catch_up
        resumes = catch_up is not None and catch_up.low == low and not position.skipped
        high, behind_at = (catch_up.high, catch_up.behind) if catch_up and resumes else (None, None)
        for page in self._pages_after(
            lambda row: session.pages.since(low, row, session.page_size.rows, itself=itself), behind_at
        ):
            check_cursor_order(self.capture, page)
            pages_high = self._cursors.highest(page, transactions.now)
            high = high if pages_high is None else pages_high
            continues = page.more and not position.skipped
            written += self._write(page, values_of_poll, CatchUp(low, self._last(page), high) if continues else None)
        ended, reason = self._cursors.clock(session.database)
        if reason:
            # The cursors read may be ahead of the clock.
            high = None
            self.compare(reason)
        observed_at = session.database.transactions(ended).now if mark.needs_look else None
        for page in self._pages_after(
            lambda row: session.pages.without_cursor(row, session.page_size.rows), with_cursor=False
        ):
            written += self._write(page, values_of_poll)
        mark.poll_ended(transactions.now, oldest, ended, high)
        if observed_at is not None:
            mark.observed(observed_at)
        position_after = replace(
            self.position, low=mark.value, catch_up=None, skipped=None if rereads_skipped else self.position.skipped
        )
        if position_after != self.position:
            session.commit([], replace(position_after, clock=ended))
        session.last_values, self.metrics.oldest = values_of_poll, transactions.oldest
        # A resumed poll has not read the rows that were written before it, nor what was committed there meanwhile.
        if behind_at is None:
            self._asks_topic, self.metrics.current = False, transactions.now
            self.metrics.polls += 1
        return written

    def _read_topic(self) -> bool:
        """Read the topic for a limited time; True if its end was reached, so the last record of each key is known.

        Writing unchanged rows again is as fast as reading more of the topic.
        """
        end = time.monotonic() + self.TOPIC_READ_SECONDS
        while time.monotonic() < end:
            if self.session.index.follow_topic():
                return True
        return False

    def _pages_after(
        self, query: Callable[[Row | None], SourceQuery], behind: Row | None = None, *, with_cursor: bool = True
    ) -> Iterator[SourcePage]:
        """Read all pages after a row."""
        while True:
            page = self.session.read_page(query(behind))
            yield page
            if not page.more:
                return
            behind = self._last(page, with_cursor=with_cursor)

    def _last(self, page: SourcePage, *, with_cursor: bool = True) -> Row:
        names = [self.capture.cursor, *self.capture.key] if with_cursor else self.capture.key
        return last(self.capture, page, names)

    def _write(self, page: SourcePage, values_of_poll: LastValueCache, catch_up: CatchUp | None = None) -> int:
        """Write the changed rows of a page, with the progress of the poll if it has more pages."""
        session = self.session
        records = session.to_records(page)
        changed = []
        # If the cache is full, a row that was written may be missing in it, and the index may be behind.
        asks_topic = self._asks_topic and session.last_values.room > 0
        topic = session.index.digests(records.keys) if asks_topic else {}
        for key, value in zip(records.keys, records.values, strict=True):
            if (
                asks_topic
                and not session.last_values.knows(key)
                and topic.get(key) == (None if value is None else digest(value))
            ):
                session.last_values.note(key, value)
            if not session.last_values.has(key, value):
                changed.append((key, value))
                # If the row is read again in this poll, it is compared with this value.
                session.last_values.note(key, value)
            values_of_poll.note(key, value)
        for cache in (values_of_poll, session.last_values):
            cache.trim()
        if changed or session.oversized.dead_letters:
            session.commit(changed, replace(self.position, catch_up=catch_up or self.position.catch_up))
        self.metrics.changed += len(changed)
        return len(changed)
