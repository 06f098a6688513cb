"""The parts that polls, snapshot and reconcile of a capture share: reading pages, writing records and the position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from penstock.capture.checks.ordering import PagingVerifier
from penstock.capture.checks.paging_checks import zone_changed
from penstock.capture.output.oversized_rows import OversizedRows
from penstock.capture.output.page_records import PageRecords, columns_of, records
from penstock.capture.output.position import Position
from penstock.capture.polling.change_cache import LastValueCache
from penstock.capture.polling.keyset_queries import PageQueries, SourceQuery
from penstock.capture.polling.page_size import PageSize
from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.capture.source.base import SourceDatabase, SourceError, SourcePage
from penstock.codec.registry_values import ValueEncoder
from penstock.kafka.admin import ensure_topics
from penstock.kafka.limits import ProducerRecord
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.capture import Capture
from penstock.model.topic import DEAD_LETTERS

log = logging.getLogger(__name__)


@dataclass
class CaptureMetrics:
    """Metrics of one open capture. Times are epoch seconds of the database's clock.

    Attributes:
        state: `starting`, `waiting`, `snapshot`, `reconciling` or `polling`.
        current: Everything committed before this time is in the topic.
        oldest: When the oldest open transaction began; None if there is none.
        rows: Rows of the snapshot so far.
        read: Rows read.
        changed: Rows read that differ from the last known value of their key.
        written: Records written.
        dead_letters: Dead letters written for rows that have no record.
        polls: Polls that ended and read all rows from the low watermark on, so no resumed ones.
        total: Rows of the table when the snapshot began.
        waits_for: What the snapshot waits for before it begins.
    """

    state: str = "starting"
    current: float | None = None
    oldest: float | None = None
    rows: int = 0
    read: int = 0
    changed: int = 0
    written: int = 0
    dead_letters: int = 0
    polls: int = 0
    total: int = 0
    waits_for: str = ""


@dataclass
class CaptureSession:
    """An open capture: its connections and position, shared by polls, snapshot and reconcile.

    Records and position are written in one Kafka transaction. The broker fences an older writer of the same capture.

    Attributes:
        position: Where the capture resumes.
        index: The topic's last digest of each key, in a file.
        verifier: Checks that pages are ordered by key and cursor.
        encoder: Of the topic's schema; None for JSON.
        hook: Called with the name of each step; for tests.
    """

    # Rows of one page at most: 10,000 are no faster, and a page is held in memory twice.
    PAGE: ClassVar[int] = 5000

    capture: Capture
    database: SourceDatabase
    output: TransactionalWriter
    position: Position
    index: DigestIndex
    verifier: PagingVerifier
    encoder: ValueEncoder[Any] | None = None
    metrics: CaptureMetrics = field(default_factory=CaptureMetrics)
    hook: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.pages = PageQueries(self.capture)
        self.page_size = PageSize(self.PAGE)
        self.last_values = LastValueCache()
        # Monotonic time of the next check of the tables' structure.
        self.next_table_check = 0.0
        self.oversized = OversizedRows(self.index.db, self.capture, self.output.size_limit(self.capture.topic.name))

    def read_page(self, query: SourceQuery) -> SourcePage:
        page = self.page_size.read(self.database, query)
        if self.verifier.check_page(page):
            self._handle_type_change()
        self.hook("after read")
        self.metrics.read += len(page.rows)
        return page

    def _handle_type_change(self) -> None:
        """Key or cursor have another type: stored values of them are no valid parameters any more."""
        reason = "the type of key or cursor changed"
        log.warning("capture %s: %s; table and topic are compared", self.capture.name, reason)
        fitting = self.verifier.drop_mistyped(self.position)
        if (fitting.low, fitting.skipped) != (self.position.low, self.position.skipped):
            raise self._cursor_error()
        self.position = replace(fitting, reconcile=reason)
        self.index.restart()

    def _cursor_error(self) -> SourceError:
        return SourceError(
            f"the cursor of capture {self.capture.name} has another type than before",
            got=self.capture.cursor,
            hint="nothing: the capture is opened again and reads all rows",
        )

    def to_records(self, page: SourcePage) -> PageRecords:
        """A page's rows as keys and values; also stores the page's columns in the position."""
        records_of_page = self.without_oversized(records(self.capture, page, self.encoder))
        self.set_columns(columns_of(page))
        return records_of_page

    def without_oversized(self, records_of_page: PageRecords) -> PageRecords:
        """The records of a page; those that the topic cannot take become tombstones and dead letters."""
        return self.oversized.filter(records_of_page, self.index.scan)

    def set_columns(self, columns: tuple[tuple[str, str], ...]) -> None:
        """Store the columns. If they changed, a reconcile updates the rows that do not change themselves."""
        if columns == self.position.columns:
            return
        old, new = dict(self.position.columns), dict(columns)
        reason = ""
        # The position's columns are those of its low watermark. Processes that read a snapshot do not compare them.
        if self.position.low is not None and zone_changed(self.capture.cursor, old, new):
            raise self._cursor_error()
        if old:
            changes = [f"{n} is new" for n in new.keys() - old.keys()]
            changes += [f"{n} is gone" for n in old.keys() - new.keys()]
            changes += [f"{n} has another type" for n in new.keys() & old.keys() if new[n] != old[n]]
            reason = f"columns changed: {', '.join(sorted(changes)) or 'another order'}"
            log.warning("capture %s: %s; table and topic are compared", self.capture.name, reason)
        self.position = replace(self.position, columns=columns, reconcile=reason or self.position.reconcile)
        if reason:
            self.index.restart()
            self.next_table_check = 0.0

    def commit(self, rows: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """Write keys with their values, a value None as a tombstone, and the position."""
        messages = [ProducerRecord(self.capture.topic.name, key, value) for key, value in rows]
        if letters := self.oversized.dead_letters:
            ensure_topics([DEAD_LETTERS], self.output.bootstrap)
            messages += letters
        self.hook("before commit")
        if messages or position != self.position:
            self.output.commit(self._hooked(messages), position.value())
        self.position = position
        self.metrics.written += len(messages) - len(letters)
        self.metrics.dead_letters += len(letters)
        self.oversized.mark_committed()
        self.hook("after commit")

    def _hooked(self, messages: list[ProducerRecord]) -> Iterator[ProducerRecord]:
        for number, message in enumerate(messages):
            if number == len(messages) // 2:
                self.hook("mid-produce")
            yield message
