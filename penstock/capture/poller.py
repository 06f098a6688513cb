"""One capture at work: its snapshot, its polls and its reconcile, step by step in one thread.

One thread is the proof that no older row is ever put over a newer one: whatever is read is written before anything else
is read. Records and position go in one Kafka transaction; a second poller of the same capture is fenced by the broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any

from penstock.capture.database import ZONED, Database, Moment, Page
from penstock.capture.encode import digest
from penstock.capture.low import LowMark
from penstock.capture.pages import Pages, Query
from penstock.capture.position import CatchUp, Debt, Position, Range, Snapshot
from penstock.capture.readers import Readers
from penstock.capture.reconcile import Reconcile
from penstock.capture.records import Records, columns_of, last, place, records
from penstock.declare.capture import Capture
from penstock.kafka.output import Message, Transactional
from penstock.settings import settings

log = logging.getLogger(__name__)

# Rows of one page: 10,000 are no faster, and a page is held in memory twice.
PAGE = 5000
# Of rows that may be read again, how many are known not to have changed; the others are written again, unchanged.
REMEMBERED = 500_000
# Rows from which on several readers are worth their start.
LARGE = 200_000
# What a database shows of its transactions may be a moment old, and MariaDB's has whole seconds.
LEAST_OVERLAP = timedelta(seconds=1.5)
# Local times differ from UTC by so much at most.
WIDEST_ZONE = timedelta(hours=14)

Row = tuple[Any, ...]


@dataclass
class Figures:
    """What a capture tells of itself; times are the database's clock, epoch seconds.

    current: everything committed before this is in the topic; oldest: when the oldest open transaction began; fresh:
    rows read that were not known already.
    """

    state: str = "starting"
    current: float | None = None
    oldest: float | None = None
    rows: int = 0
    read: int = 0
    fresh: int = 0
    written: int = 0
    polls: int = 0
    total: int = 0
    waits_for: str = ""


@dataclass
class Poller:
    """capture: what to do; position: from where. `step` does the next piece of work.

    reconcile: the comparison of table and topic, which needs a place on the disk.
    """

    capture: Capture
    database: Database
    output: Transactional
    position: Position
    reconcile: Reconcile
    figures: Figures = field(default_factory=Figures)
    hook: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        c = self.capture
        self._pages = Pages(c)
        self._overlap = max(c.overlap, LEAST_OVERLAP)
        self._low = LowMark(self._overlap.total_seconds(), self.position.low)
        # Hashes of keys and of their last values: two rows would have to share both. Hardly a tenth of the bytes
        # themselves, which moreover hold the buffers that they were made in.
        self._seen: dict[int, int] = {}
        self._next_poll = 0.0
        self._readers: Readers | None = None
        # The ranges of the snapshot that are not read yet, by number.
        self._left: dict[int, Range] = {}
        self._ended: float | None = None

    def step(self) -> float:
        """Do the next piece of work; seconds until the next one is due."""
        if self.position.snapshot is not None:
            return self._snapshot(self.position.snapshot)
        if time.monotonic() >= self._next_poll:
            began = time.monotonic()
            self.poll()
            self._next_poll = began + self.capture.every.total_seconds()
        if self.position.reconcile:
            self.figures.state = "reconciling"
            if self._reconciled():
                self._commit([], replace(self.position, reconcile=""))
            return min(self.reconcile.pause, max(0.0, self._next_poll - time.monotonic()))
        self.figures.state = "polling"
        return max(0.0, self._next_poll - time.monotonic())

    def compare(self, why: str) -> None:
        """Compare all of table and topic, from the next step on."""
        self.reconcile.again()
        self._commit([], replace(self.position, reconcile=why))

    def poll_now(self) -> None:
        """Let the next step poll, whatever the interval says."""
        self._next_poll = 0.0

    @property
    def remembered(self) -> int:
        """Rows whose last record is known, so that it is not written again."""
        return len(self._seen)

    def close(self) -> None:
        if self._readers:
            self._readers.close()
        self.output.close()
        self.reconcile.close()
        self.database.close()

    # Polls

    def poll(self) -> int:
        """Read what changed and write it; returns the number of records written."""
        moment = self.database.moment()
        self.hook("before read")
        self._not_ahead(moment.now)
        oldest, position = self._held(moment)
        owed = position.debt is not None and (moment.oldest is None or moment.oldest > position.debt.until)
        low = position.debt.low if owed and position.debt else self._low.value
        itself = owed or not self._spent
        if position != self.position:
            self._commit([], position)
        seen: dict[int, int] = {}
        written = 0
        begun = position.catch_up
        goes_on = begun is not None and begun.low == low and not position.debt
        high, behind = (begun.high, begun.behind) if begun and goes_on else (None, None)
        for page in self._through(lambda row: self._pages.since(low, row, PAGE, itself=itself), behind):
            pages_high = self._highest(page, moment.now)
            high = high if pages_high is None else pages_high
            more = len(page.rows) == PAGE and not position.debt
            written += self._write(page, seen, CatchUp(low, self._last(page), high) if more else None)
        ended = self.database.clock()
        self._set_back(ended)
        for page in self._through(lambda row: self._pages.without_cursor(row, PAGE), with_cursor=False):
            written += self._write(page, seen)
        self._low.polled(moment.now, oldest, ended, high)
        debt = None if owed else self.position.debt
        done = replace(self.position, low=self._low.value, catch_up=None, debt=debt)
        if done != self.position:
            self._commit([], done)
        self._seen = seen
        self.figures.current, self.figures.oldest = moment.now, moment.oldest
        self.figures.polls += 1
        return written

    @property
    def _spent(self) -> bool:
        """Whether rows of the low mark itself need not be read again: a number or a day may be drawn for long."""
        return self._low.spent and isinstance(self._low.value, datetime)

    def _to_be_polled(self, cursor: Any) -> bool:
        """Whether the next poll reads a row of this cursor."""
        low = self._low.value
        return low is None or cursor is None or (cursor > low if self._spent else cursor >= low)

    def _highest(self, page: Page, now: float) -> Any:
        """The highest cursor of a page, None if it has none. A time that is yet to come counts for nothing.

        A row that says so would hide all others until then. It is read again at each poll.
        """
        at = place(self.capture, page, self.capture.cursor)
        limit = self._limit(page.rows[-1][at], page.columns[at][1], now) if page.rows else None
        for row in reversed(page.rows):
            if limit is None or row[at] <= limit:
                return row[at]
        return None

    def _limit(self, sample: Any, kind: str, now: float) -> Any:
        """The last time a cursor may truly have, in the form of a sample; None for cursors that are no times."""
        if not isinstance(sample, date):
            return None
        limit = datetime.fromtimestamp(now, UTC) + self._overlap
        if isinstance(sample, datetime) and kind.startswith(ZONED):
            return limit if sample.tzinfo else limit.replace(tzinfo=None)
        # Without a zone it may be anybody's local time.
        plain = (limit + WIDEST_ZONE).replace(tzinfo=None)
        return plain if isinstance(sample, datetime) else plain.date()

    def _not_ahead(self, now: float) -> None:
        """Lower a low mark that is yet to come: the clock was set back, perhaps while nobody polled."""
        low = self._low.value
        if not isinstance(low, datetime) or not dict(self.position.columns).get(self.capture.cursor, "").startswith(
            ZONED
        ):
            return
        here = datetime.fromtimestamp(now, UTC).replace(tzinfo=UTC if low.tzinfo else None)
        if low > here + self._overlap:
            log.warning("capture %s: its low mark %s is yet to come, so the clock was set back", self.capture.name, low)
            self._low.back_to(here - self._overlap)

    def _set_back(self, now: float) -> None:
        """A cursor without a zone goes back by as much as the clock was seen to."""
        low, step = self._low.value, timedelta(seconds=(self._ended or now) - now)
        if step > self._overlap and isinstance(low, datetime):
            log.warning("capture %s: the database's clock was set back by %s", self.capture.name, step)
            self._low.back_to(low - step - self._overlap)
        self._ended = now

    def _held(self, moment: Moment) -> tuple[float | None, Position]:
        """The oldest transaction to wait for, and the position with what is owed to those no longer waited for."""
        bound = moment.now - self.capture.hold.total_seconds()
        debt = self.position.debt
        if moment.oldest is None or moment.oldest >= bound:
            return moment.oldest, self.position
        if debt is None:
            log.warning(
                "capture %s: a transaction is open for %.0f s; it is no longer waited for, and what lies behind its "
                "beginning is read again when it has ended. To mend it: end the transaction",
                self.capture.name,
                moment.now - moment.oldest,
            )
        return bound, replace(self.position, debt=Debt(debt.low if debt else self._low.value, bound))

    def _through(
        self, query: Callable[[Row | None], Query], behind: Row | None = None, *, with_cursor: bool = True
    ) -> Iterator[Page]:
        """All pages behind a row, one after the other."""
        while True:
            page = self._read(query(behind))
            yield page
            if len(page.rows) < PAGE:
                return
            behind = self._last(page, with_cursor=with_cursor)

    def _last(self, page: Page, *, with_cursor: bool = True) -> Row:
        names = [self.capture.cursor, *self.capture.key] if with_cursor else self.capture.key
        return last(self.capture, page, names)

    def _write(self, page: Page, seen: dict[int, int], catch_up: CatchUp | None = None) -> int:
        """Write what of a page is not known to be in the topic already; a poll with more to come goes on behind it."""
        records = self.records(page)
        messages = []
        for key, value in zip(records.keys, records.values, strict=True):
            who, what = hash(key), hash(value)
            if self._seen.get(who) != what:
                messages.append(Message(self.capture.topic.name, key, value))
                # Read once more in this same poll, it is compared with this and not with what came before.
                self._seen[who] = what
            seen[who] = what
        for known in (seen, self._seen):
            for who in list(islice(known, max(0, len(known) - REMEMBERED))):
                del known[who]
        if messages:
            self._commit(messages, replace(self.position, catch_up=catch_up or self.position.catch_up))
        self.figures.fresh += len(messages)
        return len(messages)

    # Snapshot

    def _snapshot(self, at: Snapshot) -> float:
        if not at.ranges and not self._may_begin():
            self.figures.state = "waiting"
            return 0.2
        self.figures.state = "snapshot"
        if not at.ranges:
            total = int(self.database.value(self._pages.count()) or 0)
            at = Snapshot(self._ranges(total), 0, total)
            self.position = replace(self.position, snapshot=at, low=self._low.value)
        if self._readers is None:
            count = min(len(at.ranges), settings().snapshot_readers)
            self._readers = Readers(self.capture, self.database, self._low.value, PAGE, count)
            self._left = dict(enumerate(at.ranges))
            for number, part in self._left.items():
                self._readers.begin(number, part)
        number, read = self._readers.next()
        self.hook("after read")
        self.figures.read += len(read.records.keys)
        part = self._left.pop(number)
        if read.behind is not None:
            # The next page is read while this one is written.
            self._left[number] = replace(part, behind=read.behind)
            self._readers.begin(number, self._left[number])
        self._shape(read.columns)
        keys, values = read.records.keys, read.records.values
        for row in read.again[: max(0, REMEMBERED - len(self._seen))]:
            self._seen[hash(keys[row])] = hash(values[row])
        name = self.capture.topic.name
        at = replace(at, ranges=tuple(self._left.values()), rows=at.rows + len(keys))
        messages = [Message(name, key, value) for key, value in zip(keys, values, strict=True)]
        self._commit(messages, replace(self.position, snapshot=at if self._left else None))
        if not self._left:
            self._readers.close()
            self._readers = None
        self.figures.rows, self.figures.total = at.rows, at.total
        self.figures.fresh += len(keys)
        return 0.0

    def _ranges(self, total: int) -> tuple[Range, ...]:
        """The keys of the table, cut into as many ranges as there may be readers if it is large."""
        count = settings().snapshot_readers if total >= LARGE else 1
        rows = [self.database.page(self._pages.key_at(total * n // count)).rows for n in range(1, count)]
        cuts = [tuple(row[0]) for row in rows if row]
        return tuple(Range(behind, upto) for behind, upto in zip([None, *cuts], [*cuts, None], strict=True))

    def _may_begin(self) -> bool:
        """Whether all transactions have ended that might write behind the cursor at which polls will begin.

        It is the rule of the polls, with the highest cursor of now for what a poll saw.
        """
        moment = self.database.moment()
        if self._low.value is None and not self._low.waits:
            top = self.database.page(self._pages.highest())
            high = top.rows[0][0] if top.rows else None
            if (limit := self._limit(high, top.columns[0][1], moment.now)) is not None and high > limit:
                high = self.database.value(self._pages.highest(limit))
            if high is None:
                return True
            self._low.polled(moment.now, moment.oldest, self.database.clock(), high)
            return False
        oldest, self.position = self._held(moment)
        self._low.polled(moment.now, oldest, self.database.clock(), None)
        self.figures.waits_for = f"transactions that began before {moment.oldest:.0f}" if moment.oldest else ""
        return self._low.value is not None

    # Reconcile

    def _reconciled(self) -> bool:
        """One chunk of the comparison; True when all is compared."""
        r = self.reconcile
        if not r.follow():
            return False
        if not r.scanned:
            scan, page = r.scan, self._read(self._pages.by_key(r.behind, r.CHUNK))
            records = self.records(page)
            if r.scan != scan:
                return False  # its columns are others: all is compared from the beginning
            r.learn_types(page.names, page.rows, self.capture.key)
            wrong = self._differing(page, records)
            self._seen |= {hash(key): hash(value) for key, value in wrong}
            self._commit([Message(self.capture.topic.name, k, v) for k, v in wrong], self.position)
            full = len(page.rows) == r.CHUNK
            r.compared(records.keys, self._last(page, with_cursor=False) if full else None)
            return False
        keys = r.unseen()
        if not keys:
            r.finish()
            return True
        if not r.knows_types:
            page = self._read(self._pages.by_key(None, 1))
            r.learn_types(page.names, page.rows, self.capture.key)
        given = {key: row for key in keys if (row := r.key_of(key, self.capture.key)) is not None}
        there = self.records(self._read(self._pages.exactly(list(given.values())))) if given else Records([], [])
        found = dict(zip(there.keys, there.values, strict=True))
        gone = [key for key in keys if key not in found]
        self._seen |= dict.fromkeys(map(hash, gone), hash(None))
        self._commit([Message(self.capture.topic.name, key, None) for key in gone], self.position)
        r.gone(keys, len(gone))
        return False

    def _differing(self, page: Page, records: Records) -> list[tuple[bytes, bytes | None]]:
        """Rows whose last record says another thing, but for those that the next poll is to see."""
        topic = self.reconcile.digests(records.keys)
        at = place(self.capture, page, self.capture.cursor)
        wrong = []
        for row, key, value in zip(page.rows, records.keys, records.values, strict=True):
            known, wanted = topic.get(key), None if value is None else digest(value)
            if known == wanted:
                continue
            if self._to_be_polled(row[at]) and self._seen.get(hash(key)) != hash(value):
                continue
            wrong.append((key, value))
            self.reconcile.found(missing=known is None)
        return wrong

    # Reading and writing

    def _read(self, query: Query) -> Page:
        page = self.database.page(query)
        self.hook("after read")
        self.figures.read += len(page.rows)
        return page

    def _shape(self, columns: tuple[tuple[str, str], ...]) -> None:
        """Take other columns over. Rows that do not change themselves are brought up by a reconcile."""
        if columns == self.position.columns:
            return
        was, now = dict(self.position.columns), dict(columns)
        reason = ""
        if was:
            changes = [f"{n} is new" for n in now.keys() - was.keys()]
            changes += [f"{n} is gone" for n in was.keys() - now.keys()]
            changes += [f"{n} has another type" for n in now.keys() & was.keys() if now[n] != was[n]]
            reason = f"columns changed: {', '.join(sorted(changes)) or 'another order'}"
            log.warning("capture %s: %s; table and topic are compared", self.capture.name, reason)
        self.position = replace(self.position, columns=columns, reconcile=reason or self.position.reconcile)
        if reason:
            self.reconcile.again()

    def records(self, page: Page) -> Records:
        """A page's rows as keys and values, after its columns were taken in."""
        made = records(self.capture, page)
        self._shape(columns_of(page))
        return made

    def _commit(self, messages: list[Message], position: Position) -> None:
        self.hook("before commit")
        if messages or position != self.position:
            self.output.commit(self._hooked(messages), position.value())
        self.position = position
        self.figures.written += len(messages)
        self.hook("after commit")

    def _hooked(self, messages: list[Message]) -> Iterator[Message]:
        for number, message in enumerate(messages):
            if number == len(messages) // 2:
                self.hook("mid-produce")
            yield message
