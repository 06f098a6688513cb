"""The reconcile of a capture: chunk by chunk, what differs between table and topic is found and repaired."""

from __future__ import annotations

import logging
from typing import Any

from penstock.capture.cursors import Cursors
from penstock.capture.database import Page, SourceError
from penstock.capture.encode import digest
from penstock.capture.records import Records, last, place
from penstock.capture.writer import PageWriter

log = logging.getLogger(__name__)


class Comparison:
    """First the table's rows are looked up in the topic, then the topic's other keys in the table."""

    def __init__(self, writer: PageWriter, cursors: Cursors) -> None:
        self._writer, self._cursors = writer, cursors

    def step(self) -> bool:
        """Compare one chunk; True when all is compared."""
        w, r = self._writer, self._writer.reconcile
        if not r.follow():
            return False
        if not r.scanned:
            self._rows()
            return False
        keys = r.unseen()
        if not keys:
            w.aside.compared(r.scan)
            r.finish(w.position.reconcile)
            d, found = r.last, r.last.missing + r.last.differing + r.last.extra
            level = logging.WARNING if found and not d.explained else logging.INFO
            log.log(level, "capture %s: %d rows compared (%s), %d missing, %d differing, %d extra; repaired",
                    w.capture.name, d.rows, d.why, d.missing, d.differing, d.extra)  # fmt: skip
            return True
        self._others(keys)
        return False

    def _rows(self) -> None:
        """Rows of the table, in order of key."""
        w, r, key = self._writer, self._writer.reconcile, self._writer.capture.key
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
        """Keys of the topic that were met in no row: those that are not in the table get tombstones."""
        w, r, key = self._writer, self._writer.reconcile, self._writer.capture.key
        scan = r.scan
        asked = [row for record in keys if (row := r.key_of(record, key, w.proof.types)) is not None]
        found = self._found(asked) if asked else set()
        gone = [record for record in keys if record not in found]
        if gone:
            # A key is gone only if it was looked for in the type that it has now.
            w.records(w.read(w.pages.by_key(None, 1)))
        if r.scan != scan:
            return
        for record in gone:
            w.seen.note(record, None)
        w.commit([(record, None) for record in gone], w.position)
        r.gone(keys, len(gone))

    def _found(self, keys: list[tuple[Any, ...]]) -> set[bytes]:
        """Which of some keys the table has."""
        w = self._writer
        try:
            page = w.read(w.pages.exactly(keys))
        except SourceError:
            possible = [key for key in keys if w.proof.may_be(key)]
            if len(possible) == len(keys):
                raise
            return self._found(possible) if possible else set()
        if page.cut and len(keys) > 1:
            half = len(keys) // 2
            return self._found(keys[:half]) | self._found(keys[half:])
        return set(w.records(page).keys)

    def _differing(self, page: Page, records: Records) -> list[tuple[bytes, bytes | None]]:
        """Rows whose last record says another thing, but for those that the next poll is to see."""
        w = self._writer
        topic = w.reconcile.digests(records.keys)
        at = place(w.capture, page, w.capture.cursor)
        wrong = []
        for row, key, value in zip(page.rows, records.keys, records.values, strict=True):
            known, wanted = topic.get(key), None if value is None else digest(value)
            if known == wanted:
                continue
            if self._cursors.to_be_polled(row[at]) and not w.seen.has(key, value):
                continue
            wrong.append((key, value))
            w.reconcile.found(missing=known is None)
        return wrong
