"""The reconcile of a capture: finds and repairs differences between table and topic, chunk by chunk."""

from __future__ import annotations

import logging
import time
from typing import Any

from penstock.capture.output.encode import digest
from penstock.capture.output.page_records import PageRecords, column_index, last
from penstock.capture.polling.cursors import CursorTracker
from penstock.capture.session import CaptureSession
from penstock.capture.source.base import SourceError, SourcePage

log = logging.getLogger(__name__)

KeyAndValue = tuple[bytes, bytes | None]

# Removals up to this number need no decision, whatever their share of the topic.
FEW = 10
# Seconds until a reconcile that waits for a decision checks again.
DECISION_POLL_SECONDS = 5.0


class Comparison:
    """Looks up the rows of the table in the topic, then the other keys of the topic in the table, and then removes the
    records of keys that the table lacks.

    Attributes:
        pending_since: Since when an operator has to allow the removal, in epoch seconds; 0 if never.
    """

    def __init__(self, session: CaptureSession, cursors: CursorTracker) -> None:
        self._session, self._cursors = session, cursors
        self.pending_since = 0.0
        # The decision that is pending, and the scan that it is about.
        self._decision, self._scan = "", 0

    @property
    def pending_decision(self) -> str:
        """Why an operator has to allow the removal; empty if not needed, or not yet known since the scan restarted."""
        return self._decision if self._scan == self._session.index.scan else ""

    def allow_removal(self) -> None:
        """Allow what is pending."""
        self._session.index.allow_removal()
        self._decision = ""

    def step(self) -> None:
        """Compare one chunk; after the last one the position has no reconcile."""
        session, index = self._session, self._session.index
        if not index.follow_topic():
            return
        if not index.scanned:
            self._compare_rows()
            return
        if keys := index.unmatched_keys():
            self._look_up_unmatched(keys)
            return
        if not self._may_remove():
            index.pause = DECISION_POLL_SECONDS
            return
        if keys := index.absent_keys():
            self._remove(keys)
            return
        session.oversized.forget_unmet(index.scan)
        session.commit([], session.position.reconciled(index.rows))
        index.finish()
        drift = session.position.last_reconcile
        level = logging.WARNING if drift.repaired and not drift.explained else logging.INFO
        log.log(level, "capture %s: %d rows compared (%s), %d missing, %d differing, %d extra; repaired",
                session.capture.name, drift.rows, drift.why, drift.missing, drift.differing, drift.extra)  # fmt: skip

    def _may_remove(self) -> bool:
        """Whether the records of missing rows may be removed; else a decision is pending.

        Rows that a policy, a view, an empty table or another database hides look like deleted rows.
        """
        session, index = self._session, self._session.index
        previous, self._decision, self._scan = self.pending_decision, "", index.scan
        if index.allowed:
            return True
        removed, rows = index.removal_counts()
        share = session.capture.max_removed_percent
        if removed <= max(FEW, rows * share // 100) and (removed < rows or removed <= 1 or share >= 100):
            index.allow_removal()
            return True
        name = session.capture.name
        self._decision = (
            f"{removed:,} of {rows:,} rows of the topic are no longer in the table, which are more than "
            f"{share} % or all of them: their records are kept. If they were deleted, allow it with "
            f"`penstock capture ask {name} continue`; if something hides them, repair that, then `penstock capture "
            f"reconcile {name}`; RECONCILE … REMOVES n PERCENT allows more without a decision"
        )
        if not previous:
            self.pending_since = time.time()
            log.warning("capture %s: %s", session.capture.name, self._decision)
        return False

    def _compare_rows(self) -> None:
        """Compare a page of the table, in order of key."""
        session, index, key = self._session, self._session.index, self._session.capture.key
        scan, page = (
            index.scan,
            session.read_page(session.pages.by_key(index.behind, min(index.CHUNK, session.page_size.rows))),
        )
        records = session.to_records(page)
        if index.scan != scan:
            return  # the columns changed, and the reconcile starts again
        missing, differing = self._differing(page, records)
        for pair in (*missing, *differing):
            session.last_values.note(*pair)
        session.commit((*missing, *differing), session.position.repaired(len(missing), len(differing)))
        index.mark_compared(records.keys, last(session.capture, page, key) if page.more else None)

    def _look_up_unmatched(self, keys: list[bytes]) -> None:
        """Look up keys of the topic that were in no page of the table; removes what cannot be a key."""
        index = self._session.index
        present = self._in_table(keys)
        if present is not None:
            foreign = [key for key in keys if self._key_of(key) is None]
            self._tombstones(foreign)
            index.mark_removed(foreign)
            own_keys = [key for key in keys if key not in foreign]
            index.mark_looked_up(own_keys, [key for key in own_keys if key not in present])

    def _remove(self, keys: list[bytes]) -> None:
        """Write tombstones for keys that the table still lacks."""
        present = self._in_table(keys)
        if present is not None:
            absent = [key for key in keys if key not in present]
            self._tombstones(absent)
            self._session.index.mark_removed(keys)

    def _in_table(self, keys: list[bytes]) -> set[bytes] | None:
        """The keys of records that the table has; None if the columns changed and the reconcile starts again."""
        session, index = self._session, self._session.index
        scan = index.scan
        known_keys = [row for key in keys if (row := self._key_of(key)) is not None]
        present = self._present_keys(known_keys) if known_keys else set()
        if not present.issuperset(keys):
            # A key is missing only if it was looked up with its present type.
            session.to_records(session.read_page(session.pages.by_key(None, 1)))
        return present if index.scan == scan else None

    def _key_of(self, record: bytes) -> tuple[Any, ...] | None:
        session = self._session
        key = session.index.decode_key(record, session.capture.key, session.verifier.types)
        return None if key is None or not session.verifier.can_be_key(key) else key

    def _tombstones(self, keys: list[bytes]) -> None:
        session = self._session
        for key in keys:
            session.last_values.note(key, None)
        session.commit([(key, None) for key in keys], session.position.repaired(extra=len(keys)))

    def _present_keys(self, keys: list[tuple[Any, ...]]) -> set[bytes]:
        """The keys that the table has. A key that the engine refuses to compare is in no row."""
        session = self._session
        try:
            page = session.read_page(session.pages.rows_with_keys(keys))
        except SourceError as e:
            if not e.refused:
                raise
            if len(keys) == 1:
                return self._check_refusal(keys[0], e)
            page = None
        if page is None or (page.cut and len(keys) > 1):
            half = len(keys) // 2
            return self._present_keys(keys[:half]) | self._present_keys(keys[half:])
        return set(session.to_records(page).keys)

    def _check_refusal(self, key: tuple[Any, ...], e: SourceError) -> set[bytes]:
        """Decide whether the key was refused, so that no row has it, or the computation of its row."""
        session = self._session
        try:
            session.database.value(session.pages.has(key))
        except SourceError as refusal:
            if refusal.refused:
                return set()
            raise
        raise e

    def _differing(self, page: SourcePage, records: PageRecords) -> tuple[list[KeyAndValue], list[KeyAndValue]]:
        """Rows that have no record, and rows that differ from it, except those that the next poll will read."""
        session = self._session
        topic = session.index.digests(records.keys)
        cursor_index = column_index(session.capture, page, session.capture.cursor)
        missing: list[KeyAndValue] = []
        differing: list[KeyAndValue] = []
        for row, key, value in zip(page.rows, records.keys, records.values, strict=True):
            topic_digest, row_digest = topic.get(key), None if value is None else digest(value)
            if topic_digest == row_digest:
                continue
            if self._cursors.will_be_polled(row[cursor_index]) and not session.last_values.has(key, value):
                continue
            (missing if topic_digest is None else differing).append((key, value))
        return missing, differing
