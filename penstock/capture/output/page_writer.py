"""Pages of the captured table in, records and the position out: what polls, snapshot and comparison share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from penstock.capture.checks.ordering import PagingVerifier
from penstock.capture.output.oversized_rows import OversizedRows
from penstock.capture.output.page_records import PageRecords, columns_of, records
from penstock.capture.output.position import Position
from penstock.capture.polling.change_cache import LastValueCache
from penstock.capture.polling.keyset_queries import PageQueries, SourceQuery
from penstock.capture.polling.page_size import PageSize
from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.capture.source.base import SourceDatabase, SourceError, SourcePage
from penstock.kafka.admin import ensure_topics
from penstock.kafka.limits import ProducerRecord
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.capture import Capture
from penstock.model.topic import DEAD_LETTERS

log = logging.getLogger(__name__)


@dataclass
class CaptureMetrics:
    """What a capture tells of itself; times are the database's clock, epoch seconds.

    current: everything committed before this is in the topic; oldest: when the oldest open transaction began; fresh:
    rows read that were not known already; aside: rows put aside.
    """

    state: str = "starting"
    current: float | None = None
    oldest: float | None = None
    rows: int = 0
    read: int = 0
    fresh: int = 0
    written: int = 0
    aside: int = 0
    polls: int = 0
    total: int = 0
    waits_for: str = ""


@dataclass
class PageWriter:
    """Records and position go in one Kafka transaction; a second writer of the same capture is fenced by the broker.

    position: from where to go on; reconcile: the comparison of table and topic, which needs a place on the disk; proof:
    of what it is paged by; hook: told of each step, for tests.
    """

    # Rows of one page at most: 10,000 are no faster, and a page is held in memory twice.
    PAGE: ClassVar[int] = 5000

    capture: Capture
    database: SourceDatabase
    output: TransactionalWriter
    position: Position
    reconcile: DigestIndex
    proof: PagingVerifier
    figures: CaptureMetrics = field(default_factory=CaptureMetrics)
    hook: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.pages = PageQueries(self.capture)
        self.size = PageSize(self.PAGE)
        self.seen = LastValueCache()
        # When the tables are looked at next.
        self.next_look = 0.0
        self.aside = OversizedRows(self.reconcile.db, self.capture, self.output.size_limit(self.capture.topic.name))

    def read(self, query: SourceQuery) -> SourcePage:
        page = self.size.read(self.database, query)
        if self.proof.take(page):
            self._retyped()
        self.hook("after read")
        self.figures.read += len(page.rows)
        return page

    def _retyped(self) -> None:
        """Key or cursor are of another type: what was kept of them is no parameter any more."""
        why = "the type of key or cursor changed"
        log.warning("capture %s: %s; table and topic are compared", self.capture.name, why)
        fitting = self.proof.fitting(self.position)
        if (fitting.low, fitting.debt) != (self.position.low, self.position.debt):
            raise SourceError(
                f"the cursor of capture {self.capture.name} has another type than before",
                got=self.capture.cursor,
                hint="nothing: the capture is opened again and reads all rows",
            )
        self.position = replace(fitting, reconcile=why)
        self.reconcile.again()

    def records(self, page: SourcePage) -> PageRecords:
        """A page's rows as keys and values, after its columns were taken in."""
        made = self.fitting(records(self.capture, page))
        self.table_fingerprint(columns_of(page))
        return made

    def fitting(self, made: PageRecords) -> PageRecords:
        """What the topic takes of a page's records; the others are put aside, at the next commit."""
        return self.aside.without(made, self.reconcile.scan)

    def table_fingerprint(self, columns: tuple[tuple[str, str], ...]) -> None:
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
            self.next_look = 0.0

    def commit(self, rows: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """Write keys with their values, a value None as a tombstone, and the position."""
        messages = [ProducerRecord(self.capture.topic.name, key, value) for key, value in rows]
        if letters := self.aside.letters:
            ensure_topics([DEAD_LETTERS], self.output.bootstrap)
            messages += letters
        self.hook("before commit")
        if messages or position != self.position:
            self.output.commit(self._hooked(messages), position.value())
        self.position = position
        self.figures.written += len(messages) - len(letters)
        self.figures.aside += len(letters)
        self.aside.told()
        self.hook("after commit")

    def _hooked(self, messages: list[ProducerRecord]) -> Iterator[ProducerRecord]:
        for number, message in enumerate(messages):
            if number == len(messages) // 2:
                self.hook("mid-produce")
            yield message
