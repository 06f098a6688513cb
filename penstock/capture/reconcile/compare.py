"""The reconcile of a capture: chunk by chunk, what differs between table and topic is found and repaired."""

from __future__ import annotations

import logging
import time
from typing import Any

from penstock.capture.output.encode import digest
from penstock.capture.output.page_records import PageRecords, last, place
from penstock.capture.polling.cursors import CursorTracker
from penstock.capture.session import CaptureSession
from penstock.capture.source.base import SourceError, SourcePage

log = logging.getLogger(__name__)

# So many rows may be gone at once, whatever share of the topic they are.
FEW = 10
# Seconds until a comparison that waits for a decision looks again.
DECISION_POLL_SECONDS = 5.0


class Comparison:
    """First the table's rows are looked up in the topic, then the topic's other keys in the table, then the records of
    those that are not there are removed.

    Attributes:
        pending_decision: Why an operator has to allow that; empty if nobody has to.
        pending_since: Since when, epoch seconds; 0 if never.
    """

    def __init__(self, session: CaptureSession, cursors: CursorTracker) -> None:
        self._session, self._cursors = session, cursors
        self.pending_decision, self.pending_since = "", 0.0

    def step(self) -> bool:
        """Compare one chunk; True when all is compared."""
        session, index = self._session, self._session.index
        if not index.follow_topic():
            return False
        if not index.scanned:
            self._rows()
            return False
        if keys := index.unmatched_keys():
            self._others(keys)
            return False
        if not self._may_remove():
            index.pause = DECISION_POLL_SECONDS
            return False
        if keys := index.absent_keys():
            self._remove(keys)
            return False
        session.oversized.forget_unmet(index.scan)
        index.finish(session.position.reconcile)
        d, found = index.last, index.last.missing + index.last.differing + index.last.extra
        level = logging.WARNING if found and not d.explained else logging.INFO
        log.log(level, "capture %s: %d rows compared (%s), %d missing, %d differing, %d extra; repaired",
                session.capture.name, d.rows, d.why, d.missing, d.differing, d.extra)  # fmt: skip
        return True

    def _may_remove(self) -> bool:
        """Whether the records of the rows that are gone may be removed; `pending_decision` says why not.

        That a policy, a view, an empty table or another database hides rows looks as if they were deleted.
        """
        session, index = self._session, self._session.index
        before, self.pending_decision = self.pending_decision, ""
        if index.allowed:
            return True
        gone, rows = index.removal_counts()
        share = session.capture.max_removed_percent
        if gone <= max(FEW, rows * share // 100) and (gone < rows or gone <= 1 or share >= 100):
            index.allow_removal()
            return True
        name = session.capture.name
        self.pending_decision = (
            f"{gone:,} of {rows:,} rows of the topic are no longer in the table, which are more than "
            f"{share} % or all of them: their records are kept. If they were deleted, allow it by "
            f"`penstock capture ask {name} continue`; if something hides them, mend that, then `penstock capture "
            f"reconcile {name}`; RECONCILE … REMOVES n PERCENT allows more by itself"
        )
        if not before:
            self.pending_since = time.time()
            log.warning("capture %s: %s", session.capture.name, self.pending_decision)
        return False

    def _rows(self) -> None:
        """Rows of the table, in order of key."""
        session, index, key = self._session, self._session.index, self._session.capture.key
        self.pending_decision = ""
        scan, page = (
            index.scan,
            session.read_page(session.pages.by_key(index.behind, min(index.CHUNK, session.page_size.rows))),
        )
        records = session.to_records(page)
        if index.scan != scan:
            return  # its columns are others: all is compared from the beginning
        wrong = self._differing(page, records)
        for each in wrong:
            session.last_values.note(*each)
        session.commit(wrong, session.position)
        index.mark_compared(records.keys, last(session.capture, page, key) if page.more else None)

    def _others(self, keys: list[bytes]) -> None:
        """Keys of the topic that were met in no row: are they in the table? What can be no row's key is removed."""
        index = self._session.index
        found = self._in_table(keys)
        if found is not None:
            foreign = [key for key in keys if self._key_of(key) is None]
            self._tombstones(foreign)
            index.mark_removed(foreign, len(foreign))
            known = [key for key in keys if key not in foreign]
            index.mark_looked_up(known, [key for key in known if key not in found])

    def _remove(self, keys: list[bytes]) -> None:
        """Tombstones for keys that are not in the table, if they still are not."""
        found = self._in_table(keys)
        if found is not None:
            gone = [key for key in keys if key not in found]
            self._tombstones(gone)
            self._session.index.mark_removed(keys, len(gone))

    def _in_table(self, keys: list[bytes]) -> set[bytes] | None:
        """Which of some records' keys the table has; None if its columns are others and all is compared anew."""
        session, index = self._session, self._session.index
        scan = index.scan
        asked = [row for key in keys if (row := self._key_of(key)) is not None]
        found = self._found(asked) if asked else set()
        if not found.issuperset(keys):
            # A key is gone only if it was looked for in the type that it has now.
            session.to_records(session.read_page(session.pages.by_key(None, 1)))
        return found if index.scan == scan else None

    def _key_of(self, record: bytes) -> tuple[Any, ...] | None:
        session = self._session
        key = session.index.decode_key(record, session.capture.key, session.verifier.types)
        return None if key is None or not session.verifier.can_be_key(key) else key

    def _tombstones(self, keys: list[bytes]) -> None:
        session = self._session
        for key in keys:
            session.last_values.note(key, None)
        session.commit([(key, None) for key in keys], session.position)

    def _found(self, keys: list[tuple[Any, ...]]) -> set[bytes]:
        """Which of some keys the table has. What the engine refuses to compare is no row's key."""
        session = self._session
        try:
            page = session.read_page(session.pages.rows_with_keys(keys))
        except SourceError as e:
            if not e.refused:
                raise
            if len(keys) == 1:
                return self._refused(keys[0], e)
            page = None
        if page is None or (page.cut and len(keys) > 1):
            half = len(keys) // 2
            return self._found(keys[:half]) | self._found(keys[half:])
        return set(session.to_records(page).keys)

    def _refused(self, key: tuple[Any, ...], e: SourceError) -> set[bytes]:
        """A key that was refused is in no row if the comparison is refused, and not what the row is made of."""
        session = self._session
        try:
            session.database.value(session.pages.has(key))
        except SourceError as refusal:
            if refusal.refused:
                return set()
            raise
        raise e

    def _differing(self, page: SourcePage, records: PageRecords) -> list[tuple[bytes, bytes | None]]:
        """Rows whose last record says another thing, but for those that the next poll is to see."""
        session = self._session
        topic = session.index.digests(records.keys)
        at = place(session.capture, page, session.capture.cursor)
        wrong = []
        for row, key, value in zip(page.rows, records.keys, records.values, strict=True):
            known, wanted = topic.get(key), None if value is None else digest(value)
            if known == wanted:
                continue
            if self._cursors.will_be_polled(row[at]) and not session.last_values.has(key, value):
                continue
            wrong.append((key, value))
            session.index.count_difference(missing=known is None)
        return wrong
