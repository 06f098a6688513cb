"""The topic's last digest of each key, in a local SQLite file that follows the topic as it grows.

If the file is lost or damaged, the topic is read from its beginning. It also holds the offsets read and the progress of
the reconcile, so a restarted process resumes where the last one stopped.
"""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.capture.output.encode import EncodingError, decode, digest, encode
from penstock.capture.output.oversized_rows import SCHEMA as DEAD_LETTERS
from penstock.capture.output.position import read, write
from penstock.capture.reconcile.drift import Drift
from penstock.capture.reconcile.index_file import IndexFile
from penstock.codec.heartbeat import HEARTBEAT_KEY
from penstock.errors import BrokerError
from penstock.kafka.admin import LARGE_FETCH
from penstock.kafka.client import reader_config

log = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS topic (key BLOB PRIMARY KEY, digest BLOB NOT NULL, scan INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""


class DigestIndex:
    """The last digest of each key in the topic, and the progress of a reconcile.

    Args:
        rate: Rows compared per second at most, to leave capacity for polls and for the database.

    Attributes:
        rows: Rows that the running reconcile has compared.
        allowed: The running reconcile may remove the records of all missing rows.
        in_sync_at: When table and topic were last equal, epoch seconds; 0 if that is unknown.
        pause: Seconds until the next chunk.
    """

    CHUNK = 2000
    # Keys of one lookup in the table.
    FEW = 200
    # Bytes of these keys, as servers limit the size of a query.
    BYTES = 256 * 1024
    # Seconds of reading the topic between two polls.
    SLICE = 0.5

    def __init__(self, file: Path, topic: str, topic_id: str, bootstrap: str, rate: float = 10_000) -> None:
        self._topic, self._rate = topic, rate
        self.db = IndexFile(file, SCHEMA + DEAD_LETTERS)
        if self._load("topic id", "") != topic_id:
            for table in ("topic", "about", "aside"):
                self.db.execute(f"DELETE FROM {table}")
            self._store("topic id", topic_id)
        self._consumer = Consumer(
            {
                **LARGE_FETCH,
                **reader_config(bootstrap, f"penstock.reconcile.{topic}"),
                "fetch.wait.max.ms": 100,
            }
        )
        self._offsets: dict[int, int] = {int(p): at for p, at in self._load("offsets", {}).items()}
        self._assigned: set[int] = set()
        self.scan = int(self._load("scan", 1))
        self.scanned = bool(self._load("scanned", False))
        self.allowed = bool(self._load("allowed", False))
        behind = read(self._load("behind", "null"))
        self.behind: tuple[Any, ...] | None = None if behind is None else tuple(behind)
        self.rows = int(self._load("rows", 0))
        self.in_sync_at: float = self._load("same at", 0.0)
        if self.in_sync_at > time.time():
            self.in_sync_at = 0.0
        self.pause = 0.0

    def follow_topic(self) -> bool:
        """Read the topic for a limited time; True when its end is reached."""
        try:
            ends = self._ends()
            deadline = time.monotonic() + self.SLICE
            self.pause = 0.0
            while any(self._offsets.get(p, 0) < end for p, end in ends.items()):
                batch = self._consumer.consume(10_000, 0.1)
                self._take(batch)
                if time.monotonic() > deadline:
                    return False
        except KafkaException as e:
            raise BrokerError(
                f"topic {self._topic} cannot be read to compare it", got=e.args[0], hint="nothing: it is retried"
            ) from e
        return True

    def _ends(self) -> dict[int, int]:
        metadata = self._consumer.list_topics(self._topic, timeout=15).topics[self._topic]
        starts, ends = {}, {}
        for p in metadata.partitions:
            partition = TopicPartition(self._topic, p)
            starts[p], ends[p] = self._consumer.get_watermark_offsets(partition, timeout=15, cached=False)
        known_starts = {int(p): at for p, at in self._load("starts", {}).items()}
        # Compaction does not move the log start offset.
        if any(start > known_starts.get(p, 0) or ends[p] < self._offsets.get(p, 0) for p, start in starts.items()):
            self._forget(starts)
        if self._assigned != set(ends):
            self._consumer.assign([TopicPartition(self._topic, p, self._offsets.setdefault(p, 0)) for p in ends])
            self._assigned = set(ends)
        return ends

    def _forget(self, starts: dict[int, int]) -> None:
        """Read the topic again, since records were deleted from it, e.g. by retention or with a disk."""
        log.warning("topic %s has lost records; it is read again, from %s", self._topic, starts)
        self._offsets, self._assigned = dict(starts), set()
        with self.db.transaction():
            self.db.execute("DELETE FROM topic")
            self._store("offsets", self._offsets)
            self._store("starts", starts)
            self.restart()

    def _take(self, batch: Iterable[Any]) -> None:
        latest: dict[bytes, bytes | None] = {}
        for message in batch:
            # The topic may have heartbeats, for streams that read it.
            if message.error() is None and message.key() not in (None, HEARTBEAT_KEY):
                value = message.value()
                latest[message.key()] = None if value is None else digest(value)
        for at in self._consumer.position([TopicPartition(self._topic, p) for p in self._assigned]):
            if at.offset >= 0:
                self._offsets[at.partition] = at.offset
        with self.db.transaction():
            self.db.executemany("DELETE FROM topic WHERE key = ?", [(k,) for k, d in latest.items() if d is None])
            self.db.executemany(
                "INSERT INTO topic VALUES (?, ?, 0) ON CONFLICT (key) DO UPDATE SET digest = excluded.digest",
                [(k, d) for k, d in latest.items() if d is not None],
            )
            self._store("offsets", self._offsets)

    def digests(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The digests of the last records of keys; keys without a record are left out."""
        result: dict[bytes, bytes] = {}
        for i in range(0, len(keys), 500):
            chunk = keys[i : i + 500]
            marks = ",".join("?" * len(chunk))
            result.update(dict(self.db.execute(f"SELECT key, digest FROM topic WHERE key IN ({marks})", chunk)))
        return result

    def restart(self) -> None:
        """Start a reconcile from the beginning."""
        self.scan += 1
        self.scanned, self.behind, self.rows, self.allowed = False, None, 0, False
        self._save()

    def mark_compared(self, keys: Sequence[bytes], behind: tuple[Any, ...] | None) -> None:
        """Record that rows were compared. behind: key after which the next rows are read; None if there are none."""
        with self.db.transaction():
            self.db.executemany("UPDATE topic SET scan = ? WHERE key = ?", [(self.scan, k) for k in keys])
            self.behind, self.scanned = behind, behind is None
            self.rows += len(keys)
            self._save()
        self.pause = len(keys) / self._rate

    def unmatched_keys(self) -> list[bytes]:
        """Keys of the topic that were neither read from the table nor looked up there; at most `FEW`."""
        query = "SELECT key FROM topic WHERE scan NOT IN (?, ?) ORDER BY key LIMIT ?"
        return self._few([key for (key,) in self.db.execute(query, (self.scan, -self.scan, self.FEW))])

    def absent_keys(self) -> list[bytes]:
        """Keys of the topic that were looked up and are not in the table; at most `FEW`."""
        query = "SELECT key FROM topic WHERE scan = ? ORDER BY key LIMIT ?"
        return self._few([key for (key,) in self.db.execute(query, (-self.scan, self.FEW))])

    def _few(self, keys: list[bytes]) -> list[bytes]:
        """The first keys that fit into one query, at least one."""
        size = list(accumulate(map(len, keys)))
        return keys[: max(1, bisect_right(size, self.BYTES))]

    def mark_looked_up(self, keys: Iterable[bytes], absent: Iterable[bytes]) -> None:
        """Record a lookup; `absent` keys keep their records until the number of all absent keys is known."""
        with self.db.transaction():
            marks = dict.fromkeys(keys, self.scan) | dict.fromkeys(absent, -self.scan)
            self.db.executemany("UPDATE topic SET scan = ? WHERE key = ?", [(scan, key) for key, scan in marks.items()])
        self.pause = len(marks) / self._rate

    def removal_counts(self) -> tuple[int, int]:
        """The number of keys that are not in the table, and of all keys of the topic."""
        query = "SELECT COALESCE(SUM(scan = ?), 0), COUNT(*) FROM topic"
        [counts] = self.db.execute(query, (-self.scan,))
        return int(counts[0]), int(counts[1])

    def allow_removal(self) -> None:
        """Allow the removal of all keys that are not in the table."""
        self.allowed = True
        self._save()

    def mark_removed(self, keys: Sequence[bytes]) -> None:
        """Record that keys were looked up again, and those that were missing got tombstones."""
        with self.db.transaction():
            self.db.executemany("UPDATE topic SET scan = ? WHERE key = ?", [(self.scan, k) for k in keys])
        self.pause = len(keys) / self._rate

    def finish(self) -> None:
        """Finish a reconcile."""
        self.restart()
        self.mark_in_sync()

    def mark_in_sync(self) -> None:
        """Record that table and topic are equal now."""
        self.in_sync_at = time.time()
        self._store("same at", self.in_sync_at)

    def earlier_drift(self) -> tuple[Drift, Drift]:
        """The drift of the running and of the last reconcile, if this file is of a version that kept it here."""
        running, last = Drift(**self._load("drift", {})), Drift(**self._load("last", {}))
        return Drift() if running.ended else running, last

    @staticmethod
    def decode_key(record: bytes, key: Sequence[str], types: Mapping[str, type]) -> tuple[Any, ...] | None:
        """The values of a record's key; None if no row of a table with these key types can have it."""
        try:
            fields = json.loads(record)
            if list(fields) != list(key):
                return None
            values = tuple(decode(fields[name], types.get(name, str)) for name in key)
            types_match = all(_is(value, types[name]) for name, value in zip(key, values, strict=True) if name in types)
            return values if types_match and encode(key, [values]) == [record] else None
        except (ValueError, TypeError, ArithmeticError, EncodingError, RecursionError):
            return None

    def _save(self) -> None:
        self._store("scan", self.scan)
        self._store("scanned", self.scanned)
        self._store("allowed", self.allowed)
        self._store("behind", write(self.behind))
        self._store("rows", self.rows)

    def _store(self, name: str, value: Any) -> None:
        self.db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, json.dumps(value)))

    def _load(self, name: str, default: Any) -> Any:
        rows = self.db.execute("SELECT value FROM about WHERE name = ?", (name,))
        try:
            return json.loads(rows[0][0]) if rows else default
        except ValueError as e:
            raise self.db.deleted(e) from e

    def close(self) -> None:
        try:
            self._consumer.close()
        finally:
            self.db.close()


def _is(value: Any, kind: type) -> bool:
    # SQLite's values have types of their own, so integers and floats may be mixed.
    return type(value) is kind or ({type(value), kind} == {int, float})
