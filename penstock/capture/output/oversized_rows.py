"""Rows whose record is larger than the topic takes, or holds text that is invalid in its encoding.

No record is written for such a row: a tombstone and a dead letter are, and the row is counted. An older value would be
wrong and look right, and whether there is one would depend on history instead of the table. A crash between commit and
bookkeeping may write a dead letter twice.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.capture.output.encode import digest
from penstock.capture.output.page_records import PageRecords
from penstock.kafka.limits import RECORD_OVERHEAD, ProducerRecord, SizeLimit
from penstock.model.capture import Capture
from penstock.model.topic import DEAD_LETTERS

log = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS aside
  (key BLOB PRIMARY KEY, digest BLOB NOT NULL, scan INTEGER NOT NULL, largest INTEGER NOT NULL) WITHOUT ROWID;
"""
# What a letter shows of its row: the whole of it is in the table.
DEAD_LETTER_LIMIT = SizeLimit(DEAD_LETTERS.name, 64 * 1024, compressed=False)
# Of a key, in a log line.
SHOWN = 100


@dataclass(frozen=True)
class OversizedRow:
    """A row put aside. digest: of its value; scan: the comparison that met it last; largest: what its topic took."""

    digest: bytes
    scan: int
    largest: int


class OversizedRows:
    """The rows of one capture that have no record now.

    They are kept in the file of the digest index. If that is lost, the next reconcile writes their dead letters again.
    """

    def __init__(self, db: sqlite3.Connection, capture: Capture, limit: SizeLimit | None) -> None:
        self._db, self._limit = db, limit
        self._capture = (capture.name, capture.topic.name)
        self._known = {key: OversizedRow(*about) for key, *about in db.execute("SELECT * FROM aside")}
        self._found: dict[bytes, tuple[OversizedRow, ProducerRecord]] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def dead_letters(self) -> list[ProducerRecord]:
        """Of rows that are not told of yet."""
        return [letter for _, letter in self._found.values()]

    @property
    def first(self) -> bytes | None:
        """The key of one of them."""
        return next(iter(self._known), None)

    @property
    def may_fit_now(self) -> bool:
        """Whether the topic takes more than when some of them were put aside."""
        limit = self._limit
        return limit is not None and any(row.largest < limit.max_bytes for row in self._known.values())

    def filter(self, made: PageRecords, scan: int) -> PageRecords:
        """The records, those that the topic does not take as tombstones. scan: the number of the comparison."""
        pairs = list(zip(made.keys, made.values, strict=True))
        why = {**self._too_large(pairs), **made.unreadable}
        if self._known or self._found:
            self._forget([key for key in made.keys if key not in why])
        if not why:
            return made
        for key, value in pairs:
            if value is None or key not in why:
                continue
            row, known = (
                OversizedRow(digest(value), scan, self._limit.max_bytes if self._limit else 0),
                self._known.get(key),
            )
            if known is None or known.digest != row.digest:
                self._found[key] = row, self._letter(key, value, why[key])
            elif known != row:
                self._keep({key: row})
        return PageRecords(made.keys, [None if key in why else value for key, value in pairs])

    def _too_large(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, str]:
        """Why some keys have values that the topic does not take."""
        limit = self._limit
        if limit is None:
            return {}
        room = limit.max_bytes - RECORD_OVERHEAD
        # By length first: few rows are worth a look at how far they are compressed.
        long = [(key, value) for key, value in pairs if value is not None and len(key) + len(value) > room]
        return {
            key: f"its record is larger than its topic takes: {len(key) + len(value):,} bytes"
            for key, value in long
            if not limit.accepts(ProducerRecord(limit.topic, key, value))
        }

    def mark_committed(self) -> None:
        """The letters are committed."""
        if self._found:
            self._keep({key: row for key, (row, _) in self._found.items()})
            self._found = {}

    def forget_unmet(self, scan: int) -> None:
        """This comparison met all that there are."""
        self._forget([key for key, row in self._known.items() if row.scan != scan])

    def _letter(self, key: bytes, value: bytes, reason: str) -> ProducerRecord:
        name, output = self._capture
        log.warning("capture %s: row %s is put aside: %s", name, key[:SHOWN].decode(errors="replace"), reason)
        said = {"output": output, "stream": name, "reason": reason}
        headers = tuple((f"penstock.{what}", text.encode()) for what, text in said.items())
        return DEAD_LETTER_LIMIT.truncate(ProducerRecord(DEAD_LETTERS.name, key, value, headers))

    def _keep(self, rows: Mapping[bytes, OversizedRow]) -> None:
        self._known |= rows
        made = [(key, row.digest, row.scan, row.largest) for key, row in rows.items()]
        self._db.executemany("INSERT OR REPLACE INTO aside VALUES (?, ?, ?, ?)", made)

    def _forget(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._found.pop(key, None)
            if self._known.pop(key, None):
                self._db.execute("DELETE FROM aside WHERE key = ?", (key,))
