"""Rows whose record is larger than the topic takes, or holds text that is invalid in its encoding.

No record is written for such a row: a tombstone and a dead letter are, and the row is counted. An older value would be
wrong and look right, and whether there is one would depend on history instead of the table. A crash between commit and
bookkeeping may write a dead letter twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.capture.output.encode import digest
from penstock.capture.output.page_records import PageRecords
from penstock.capture.reconcile.index_file import IndexFile
from penstock.kafka.limits import RECORD_OVERHEAD, ProducerRecord, SizeLimit
from penstock.model.capture import Capture
from penstock.model.topic import DEAD_LETTERS

log = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS aside
  (key BLOB PRIMARY KEY, digest BLOB NOT NULL, scan INTEGER NOT NULL, largest INTEGER NOT NULL) WITHOUT ROWID;
"""
# Dead letters are truncated, since the table has the whole row.
DEAD_LETTER_LIMIT = SizeLimit(DEAD_LETTERS.name, 64 * 1024, compressed=False)
# Of a key, in a log line.
KEY_CHARS = 100


@dataclass(frozen=True)
class OversizedRow:
    """A row without a record.

    Attributes:
        digest: Digest of its value.
        scan: Number of the reconcile that read it last.
        largest: `max.message.bytes` of the topic at that time.
    """

    digest: bytes
    scan: int
    largest: int


class OversizedRows:
    """The rows of one capture that have no record now.

    They are kept in the file of the digest index. If that is lost, the next reconcile writes their dead letters again.
    """

    def __init__(self, db: IndexFile, capture: Capture, limit: SizeLimit | None) -> None:
        self._db, self._limit = db, limit
        self._capture = (capture.name, capture.topic.name)
        self._rows = {key: OversizedRow(*columns) for key, *columns in db.execute("SELECT * FROM aside")}
        self._pending: dict[bytes, tuple[OversizedRow, ProducerRecord]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def dead_letters(self) -> list[ProducerRecord]:
        """Dead letters to write with the next commit."""
        return [letter for _, letter in self._pending.values()]

    @property
    def first(self) -> bytes | None:
        """The key of one of them."""
        return next(iter(self._rows), None)

    @property
    def may_fit_now(self) -> bool:
        """Whether the topic takes larger records than when one of the rows was refused."""
        limit = self._limit
        return limit is not None and any(row.largest < limit.max_bytes for row in self._rows.values())

    def filter(self, records: PageRecords, scan: int) -> PageRecords:
        """Replace the records that the topic does not take by tombstones; `scan` is the number of the reconcile."""
        pairs = list(zip(records.keys, records.values, strict=True))
        reasons = {**self._too_large(pairs), **records.unreadable}
        if self._rows or self._pending:
            self._forget([key for key in records.keys if key not in reasons])
        if not reasons:
            return records
        for key, value in pairs:
            if value is None or key not in reasons:
                continue
            row, stored = (
                OversizedRow(digest(value), scan, self._limit.max_bytes if self._limit else 0),
                self._rows.get(key),
            )
            if stored is None or stored.digest != row.digest:
                self._pending[key] = row, self._letter(key, value, reasons[key])
            elif stored != row:
                self._keep({key: row})
        return PageRecords(records.keys, [None if key in reasons else value for key, value in pairs])

    def _too_large(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, str]:
        """The reasons why the topic does not take values, by key."""
        limit = self._limit
        if limit is None:
            return {}
        limit_bytes = limit.max_bytes - RECORD_OVERHEAD
        # By length first, since compressing a value is expensive.
        long = [(key, value) for key, value in pairs if value is not None and len(key) + len(value) > limit_bytes]
        return {
            key: f"its record is larger than its topic takes: {len(key) + len(value):,} bytes"
            for key, value in long
            if not limit.accepts(ProducerRecord(limit.topic, key, value))
        }

    def mark_committed(self) -> None:
        """Record that the dead letters are committed."""
        if self._pending:
            self._keep({key: row for key, (row, _) in self._pending.items()})
            self._pending = {}

    def forget_unmet(self, scan: int) -> None:
        """Forget the rows that this reconcile has not read."""
        self._forget([key for key, row in self._rows.items() if row.scan != scan])

    def _letter(self, key: bytes, value: bytes, reason: str) -> ProducerRecord:
        name, output = self._capture
        log.warning("capture %s: row %s is a dead letter: %s", name, key[:KEY_CHARS].decode(errors="replace"), reason)
        headers_by_name = {"output": output, "stream": name, "reason": reason}
        headers = tuple((f"penstock.{name}", text.encode()) for name, text in headers_by_name.items())
        return DEAD_LETTER_LIMIT.truncate(ProducerRecord(DEAD_LETTERS.name, key, value, headers))

    def _keep(self, rows: Mapping[bytes, OversizedRow]) -> None:
        self._rows |= rows
        parameters = [(key, row.digest, row.scan, row.largest) for key, row in rows.items()]
        self._db.executemany("INSERT OR REPLACE INTO aside VALUES (?, ?, ?, ?)", parameters)

    def _forget(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._pending.pop(key, None)
            if self._rows.pop(key, None):
                self._db.execute("DELETE FROM aside WHERE key = ?", (key,))
