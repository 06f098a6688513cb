"""The reconcile of a capture: chunk by chunk, what differs between table and topic is found and repaired."""

from __future__ import annotations

import logging
import time
from typing import Any

from penstock.capture.output.encode import digest
from penstock.capture.output.page_records import PageRecords, last, place
from penstock.capture.output.page_writer import PageWriter
from penstock.capture.polling.cursors import CursorTracker
from penstock.capture.source.base import SourceError, SourcePage

log = logging.getLogger(__name__)

# So many rows may be gone at once, whatever share of the topic they are.
FEW = 10
# Seconds until a comparison that waits for a decision looks again.
DECISION_POLL_SECONDS = 5.0


class Comparison:
    """First the table's rows are looked up in the topic, then the topic's other keys in the table, then the records of
    those that are not there are removed.

    asks: why somebody has to allow that, empty if nobody has; asked_at: since when, epoch seconds, 0 if never.
    """

    def __init__(self, writer: PageWriter, cursors: CursorTracker) -> None:
        self._writer, self._cursors = writer, cursors
        self.asks, self.pending_since = "", 0.0

    def step(self) -> bool:
        """Compare one chunk; True when all is compared."""
        w, r = self._writer, self._writer.reconcile
        if not r.follow():
            return False
        if not r.scanned:
            self._rows()
            return False
        if keys := r.unseen():
            self._others(keys)
            return False
        if not self._may_remove():
            r.pause = DECISION_POLL_SECONDS
            return False
        if keys := r.absent():
            self._remove(keys)
            return False
        w.aside.compared(r.scan)
        r.finish(w.position.reconcile)
        d, found = r.last, r.last.missing + r.last.differing + r.last.extra
        level = logging.WARNING if found and not d.explained else logging.INFO
        log.log(level, "capture %s: %d rows compared (%s), %d missing, %d differing, %d extra; repaired",
                w.capture.name, d.rows, d.why, d.missing, d.differing, d.extra)  # fmt: skip
        return True

    def _may_remove(self) -> bool:
        """Whether the records of the rows that are gone may be removed; `asks` says why not.

        That a policy, a view, an empty table or another database hides rows looks as if they were deleted.
        """
        w, r = self._writer, self._writer.reconcile
        before, self.asks = self.asks, ""
        if r.allowed:
            return True
        gone, rows = r.removes()
        share = w.capture.max_removed_percent
        if gone <= max(FEW, rows * share // 100) and (gone < rows or gone <= 1 or share >= 100):
            r.allow()
            return True
        name = w.capture.name
        self.asks = (
            f"{gone:,} of {rows:,} rows of the topic are no longer in the table, which are more than "
            f"{share} % or all of them: their records are kept. If they were deleted, allow it by "
            f"`penstock capture ask {name} continue`; if something hides them, mend that, then `penstock capture "
            f"reconcile {name}`; RECONCILE … REMOVES n PERCENT allows more by itself"
        )
        if not before:
            self.pending_since = time.time()
            log.warning("capture %s: %s", w.capture.name, self.asks)
        return False

    def _rows(self) -> None:
        """Rows of the table, in order of key."""
        w, r, key = self._writer, self._writer.reconcile, self._writer.capture.key
        self.asks = ""
        scan, page = r.scan, w.read(w.pages.by_key(r.behind, min(r.CHUNK, w.size.rows)))
        records = w.records(page)
        if r.scan != scan:
            return  # its columns are others: all is compared from the beginning
        wrong = self._differing(page, records)
        for each in wrong:
            w.seen.note(*each)
        w.commit(wrong, w.position)
        r.compared(records.keys, last(w.capture, page, key) if page.more else None)

    def _others(self, keys: list[bytes]) -> None:
        """Keys of the topic that were met in no row: are they in the table? What can be no row's key is removed."""
        r = self._writer.reconcile
        found = self._in_table(keys)
        if found is not None:
            foreign = [key for key in keys if self._key_of(key) is None]
            self._tombstones(foreign)
            r.gone(foreign, len(foreign))
            known = [key for key in keys if key not in foreign]
            r.mark_looked_up(known, [key for key in known if key not in found])

    def _remove(self, keys: list[bytes]) -> None:
        """Tombstones for keys that are not in the table, if they still are not."""
        found = self._in_table(keys)
        if found is not None:
            gone = [key for key in keys if key not in found]
            self._tombstones(gone)
            self._writer.reconcile.gone(keys, len(gone))

    def _in_table(self, keys: list[bytes]) -> set[bytes] | None:
        """Which of some records' keys the table has; None if its columns are others and all is compared anew."""
        w, r = self._writer, self._writer.reconcile
        scan = r.scan
        asked = [row for key in keys if (row := self._key_of(key)) is not None]
        found = self._found(asked) if asked else set()
        if not found.issuperset(keys):
            # A key is gone only if it was looked for in the type that it has now.
            w.records(w.read(w.pages.by_key(None, 1)))
        return found if r.scan == scan else None

    def _key_of(self, record: bytes) -> tuple[Any, ...] | None:
        w = self._writer
        key = w.reconcile.key_of(record, w.capture.key, w.proof.types)
        return None if key is None or not w.proof.can_be_key(key) else key

    def _tombstones(self, keys: list[bytes]) -> None:
        w = self._writer
        for key in keys:
            w.seen.note(key, None)
        w.commit([(key, None) for key in keys], w.position)

    def _found(self, keys: list[tuple[Any, ...]]) -> set[bytes]:
        """Which of some keys the table has. What the engine refuses to compare is no row's key."""
        w = self._writer
        try:
            page = w.read(w.pages.rows_with_keys(keys))
        except SourceError as e:
            if not e.refused:
                raise
            if len(keys) == 1:
                return self._refused(keys[0], e)
            page = None
        if page is None or (page.cut and len(keys) > 1):
            half = len(keys) // 2
            return self._found(keys[:half]) | self._found(keys[half:])
        return set(w.records(page).keys)

    def _refused(self, key: tuple[Any, ...], e: SourceError) -> set[bytes]:
        """A key that was refused is in no row if the comparison is refused, and not what the row is made of."""
        w = self._writer
        try:
            w.database.value(w.pages.has(key))
        except SourceError as refusal:
            if refusal.refused:
                return set()
            raise
        raise e

    def _differing(self, page: SourcePage, records: PageRecords) -> list[tuple[bytes, bytes | None]]:
        """Rows whose last record says another thing, but for those that the next poll is to see."""
        w = self._writer
        topic = w.reconcile.digests(records.keys)
        at = place(w.capture, page, w.capture.cursor)
        wrong = []
        for row, key, value in zip(page.rows, records.keys, records.values, strict=True):
            known, wanted = topic.get(key), None if value is None else digest(value)
            if known == wanted:
                continue
            if self._cursors.will_be_polled(row[at]) and not w.seen.has(key, value):
                continue
            wrong.append((key, value))
            w.reconcile.found(missing=known is None)
        return wrong
