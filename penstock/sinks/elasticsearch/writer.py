"""Writes a sink's batches into Elasticsearch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.sinks.core.bulk import SinkBatchResult
from penstock.sinks.core.keyed_writer import KeyedWriter
from penstock.sinks.core.latest_per_key import LAST_VERSION, VersionedRow
from penstock.sinks.core.suffixes import micros, suffixed_name
from penstock.sinks.elasticsearch.bulk import ElasticsearchBulk, IndexAction
from penstock.sinks.elasticsearch.client import connect
from penstock.sinks.elasticsearch.config import LIMITS, Elasticsearch
from penstock.sinks.elasticsearch.indexes import IndexManager
from penstock.sinks.elasticsearch.tombstones import TombstoneIndex

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 3600.0
# The document of a tombstone, where documents are marked.
DELETED_DOCUMENT = b'{"deleted":true}'


class IndexWriter(KeyedWriter[Elasticsearch]):
    """Writes documents and deletes them; the newest version wins.

    Nothing fences another writer of the index: each write and delete carries its version, so the order in which two
    arrive does not matter.

    Args:
        url, output: see `DocumentWriter`.
        clock: the time, for what expires.
    """

    product = "Elasticsearch"
    id_bytes = LIMITS.id_bytes

    def __init__(
        self, url: str, output: Elasticsearch, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        super().__init__(url, output)
        self._clock = clock
        self._client = connect(url)
        self._indexes = IndexManager(self._client, output)
        self._bulk = ElasticsearchBulk(self._client, output.parallel, self._restore_index)
        self._tombstone_index = TombstoneIndex(self._client, self._bulk, output.tombstone_index, clock)
        self._tombstones = self._tombstone_index
        self._housekeeping_at = 0.0

    def _prepare(self, table: pa.Table) -> None:
        self._indexes.prepare(table.schema.field("shape").type.value_type)

    def _write_rows(
        self, table: pa.Table, upserts: Sequence[VersionedRow], deletes: Sequence[VersionedRow], result: SinkBatchResult
    ) -> None:
        actions = self._upserts(upserts, table["body"].to_pylist(), result)
        self._indexes.ensure(one.index for one in actions)
        if self.output.suffix and deletes:
            holders = self._indexes.holders([row.id for row in deletes])
        else:
            holders = {row.id: [self.output.index] for row in deletes}
        for row in deletes:
            actions += [IndexAction(row.number, index, row.id, row.version, None) for index in holders.get(row.id, ())]
        conflicts = self._send(actions, result)
        conflicts += self._recheck_refused(actions, result)
        self._rewrite_missing({row.number: row for row in upserts}, conflicts, result)

    def _upserts(
        self, rows: Sequence[VersionedRow], bodies: Sequence[bytes | None], result: SinkBatchResult
    ) -> list[IndexAction]:
        """The writes of rows. A row that never can be written is refused, one that has expired is left out."""
        oldest = self._indexes.oldest(self._clock())
        actions = []
        for row in rows:
            body = bodies[row.number] or (DELETED_DOCUMENT if row.deleted else b"")
            if not body:
                result.refused[row.number] = "it has no document"
            elif len(body) > LIMITS.document_bytes:
                result.refused[row.number] = f"its document has {len(body)} bytes, {LIMITS.document_bytes} are taken"
            elif oldest is None or row.at is None or row.at >= micros(oldest):
                index = suffixed_name(self.output.index, self.output.suffix, row.at)
                actions.append(IndexAction(row.number, index, row.id, row.version, body))
        return actions

    def _send(self, actions: Sequence[IndexAction], result: SinkBatchResult) -> list[IndexAction]:
        """Send documents; those of which the store has newer versions."""
        outcome = self._bulk.write(actions, result)
        result.written += outcome.written
        return outcome.conflicts

    def _recheck_refused(self, actions: Sequence[IndexAction], result: SinkBatchResult) -> list[IndexAction]:
        """Check that the documents are to blame for their refusal, not what somebody put in the place of the index.

        Documents that were refused for fields that are added now are sent again; those that conflict are returned.
        """
        refused = [one for one in actions if one.row in result.refused]
        if not refused or not self._indexes.recheck(one.index for one in refused):
            return []
        for one in refused:
            result.refused.pop(one.row, None)
        return self._send(refused, result)

    def _rewrite_missing(
        self, rows: dict[int, VersionedRow], conflicts: Sequence[IndexAction], result: SinkBatchResult
    ) -> None:
        """Write documents again that conflict with a document that does not exist.

        Somebody deleted that by hand, and its index remembers the next version for a while. What the sink itself
        deleted has a tombstone.
        """
        upserts = [one for one in conflicts if one.document is not None]
        existing = self._indexes.existing([(one.index, one.id) for one in upserts])
        missing = {one.row: one for one in upserts if (one.index, one.id) not in existing}
        rewritten = [
            replace(missing[row.number], version=min(row.version + 1, LAST_VERSION))
            for row in self._newer_than_deletes([rows[number] for number in missing])
        ]
        result.conflicts += len(conflicts) - len(rewritten)
        result.conflicts += len(self._send(rewritten, result))

    def _restore_index(self, index: str) -> None:
        if index == self.output.tombstone_index:
            self._tombstone_index.create()
        else:
            self._indexes.restore(index)

    def _housekeeping(self) -> None:
        """Delete what has expired, once an hour, and while there is more of it; a failure holds up no document."""
        if time.monotonic() < self._housekeeping_at:
            return
        self._housekeeping_at = time.monotonic() + HOUSEKEEPING_S
        try:
            self._indexes.expire(self._clock())
            if self.output.tombstones != "ignore" and not self._tombstone_index.expire():
                self._housekeeping_at = 0.0
        except PenstockError as e:
            log.warning("elasticsearch: %s keeps what has expired for now: %s", self.output.name, e)

    def close(self) -> None:
        self._bulk.close()
        self._client.close()
