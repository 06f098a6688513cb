"""Remembers the versions of deleted documents, so that no older upsert that comes later brings one back.

The collection also remembers future upserts, with the position of their record: a tombstone behind them has an earlier
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any

from bson import encode
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from pymongo.collection import Collection

from penstock.sinks.core.document import OFFSET_BITS
from penstock.sinks.core.latest_per_key import FutureUpsert, VersionedRow
from penstock.sinks.core.writer import SinkBatchResult
from penstock.sinks.mongodb.bulk import DocumentWrite, MongoRequests
from penstock.sinks.mongodb.collections import CollectionManager
from penstock.sinks.mongodb.config import AT, POSITION, VERSION
from penstock.sinks.mongodb.versions import VersionedCollections, delete, upsert


class TombstoneCollection:
    """The collection of a sink's tombstones: `_id` and `_v` of what was deleted, and `_at`, when it was."""

    def __init__(
        self,
        collection: Collection[Any],
        requests: MongoRequests,
        documents: VersionedCollections,
        manager: CollectionManager,
    ) -> None:
        self._collection, self._requests = collection, requests
        self._documents, self._manager = documents, manager

    def versions(self, ids: Sequence[str]) -> dict[str, int]:
        """The versions of the deletes of ids."""
        if not ids or self._requests.read(lambda: self._collection.find_one({}, {"_id": 1})) is None:
            return {}
        return self._documents.versions(self._collection, ids)

    def future_upserts(self, ids: Sequence[str]) -> dict[str, FutureUpsert]:
        """The remembered future upserts of ids."""
        documents = self._documents.find(self._collection, ids, {VERSION: 1, POSITION: 1})
        return {one["_id"]: FutureUpsert(one[VERSION], tuple(one[POSITION])) for one in documents if POSITION in one}

    def record(self, rows: Sequence[VersionedRow], result: SinkBatchResult) -> None:
        """Remember deletes, before they are made, or future upserts."""
        rows = [row for row in rows if row.number not in result.refused]
        if not rows:
            return
        self._requests.read(lambda: self._manager.ensure(self._collection.name))
        now = int(time() * 1000)
        self._documents.upsert(self._collection, [upsert(row, _document(row, now)) for row in rows], result)

    def reapply_deletes(
        self, collection: Collection[Any], upserts: Sequence[DocumentWrite], result: SinkBatchResult
    ) -> None:
        """Delete documents that another writer deleted between the look at the tombstones and the write."""
        deleted = self.versions([one.id for one in upserts])
        late = [one for one in upserts if deleted.get(one.id, one.version) > one.version]
        self._documents.delete(collection, [delete(one.row, one.id, deleted[one.id], "$lt") for one in late], result)


def _document(row: VersionedRow, now: int) -> bytes:
    if row.deleted:
        return encode({"_id": row.id, AT: DatetimeMS(now), VERSION: Int64(row.version)})
    # Kept as long as the later time may matter.
    at = DatetimeMS(max(now, row.version >> OFFSET_BITS))
    return encode({"_id": row.id, AT: at, VERSION: Int64(row.version), POSITION: list(row.position)})
