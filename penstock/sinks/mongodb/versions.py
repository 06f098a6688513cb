"""Versioned writes to collections: a document is written unless a newer version of it exists.

The versions of the present documents are read, many in one request. Documents that do not exist are inserted; those
that exist and are not newer are replaced, guarded by the version: `{_id, _v: {$lte: n}}` with upsert. If another writer
came in between, both fail on the id, and the version is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, InsertOne, ReplaceOne
from pymongo.collection import Collection

from penstock.errors import Wait
from penstock.sinks.core.bulk import BulkOutcome
from penstock.sinks.core.latest_per_key import VersionedRow
from penstock.sinks.core.writer import SinkBatchResult
from penstock.sinks.mongodb.bulk import WAIT_S, DocumentWrite, MongoRequests
from penstock.sinks.mongodb.config import LIMITS, VERSION

# How often writes that conflict with other writers are tried.
ROUNDS = 10


class VersionedCollections:
    """Reads and writes of documents that have a version."""

    def __init__(self, requests: MongoRequests) -> None:
        self._requests = requests

    def upsert(self, collection: Collection[Any], upserts: Sequence[DocumentWrite], result: SinkBatchResult) -> int:
        """Write documents that are not older than the present ones.

        Args:
            collection: to write to.
            upserts: made by `upsert`.
            result: gets refused rows, `retried` and `bytes`.

        Returns:
            The number of documents that are older than the present ones.

        Raises:
            Wait: other writers write the same documents all the time.
        """
        older = 0
        by_row = {one.row: one for one in upserts}
        pending = list(upserts)
        for attempt in range(ROUNDS):
            present = self.versions(collection, [one.id for one in pending])
            writes: list[DocumentWrite] = []
            for one in pending:
                version = present.get(one.id, one.version)
                if not isinstance(version, int | float):
                    result.refused[one.row] = f"a document of this id that no sink wrote, without {VERSION}, exists"
                elif version > one.version:
                    older += 1
                else:
                    writes.append(one if one.id in present else one.as_insert())
            outcome = self._send(collection, writes, result)
            # Written by another at the same time, or deleted since.
            again = outcome.conflicts
            # Another row may have given up its value since. In reverse order, as values may be passed on.
            if len(outcome.duplicates) < len(writes) and attempt < ROUNDS - 1:
                again += [one for one, _ in reversed(outcome.duplicates)]
            else:
                result.refused |= {one.row: f"MongoDB: {reason[:500]}" for one, reason in outcome.duplicates}
            if not again:
                return older
            pending = [by_row[one.row] for one in again]
        raise Wait("other writers write the same documents all the time", got=collection.full_name, seconds=WAIT_S)

    def delete(self, collection: Collection[Any], deletes: Sequence[DocumentWrite], result: SinkBatchResult) -> None:
        """Delete documents. deletes: made by `delete`; result: gets refused rows."""
        self._send(collection, deletes, result)

    def _send(
        self, collection: Collection[Any], writes: Sequence[DocumentWrite], result: SinkBatchResult
    ) -> BulkOutcome[DocumentWrite]:
        outcome = BulkOutcome[DocumentWrite]()
        try:
            self._requests.write(collection, writes, outcome)
        finally:
            result.retried += outcome.retried
        result.refused |= outcome.refused
        return outcome

    def versions(self, collection: Collection[Any], ids: Sequence[str]) -> dict[str, Any]:
        """The versions of the documents that exist; None for one without a version."""
        return {document["_id"]: document.get(VERSION) for document in self.find(collection, ids, {VERSION: 1})}

    def find(self, collection: Collection[Any], ids: Sequence[str], fields: Mapping[str, int]) -> Iterator[Any]:
        """The documents that exist, with some fields."""
        for at in range(0, len(ids), LIMITS.rows):
            query = {"_id": {"$in": list(ids[at : at + LIMITS.rows])}}
            yield from self._requests.read(partial(_find, collection, query, fields))


def _find(collection: Collection[Any], query: Mapping[str, Any], fields: Mapping[str, int]) -> list[Any]:
    return list(collection.find(query, fields))


def upsert(row: VersionedRow, document: bytes) -> DocumentWrite:
    """Replaces a document that is not newer, or inserts it."""
    query, whole = {"_id": row.id, VERSION: {"$lte": Int64(row.version)}}, RawBSONDocument(document)
    replace: ReplaceOne[Any] = ReplaceOne(query, whole, upsert=True)
    return DocumentWrite(row.number, row.id, row.version, replace, len(document), InsertOne(whole))


def delete(row: int, key: str, version: int, operator: str) -> DocumentWrite:
    """Deletes a document whose version is `$lte` or `$lt` a version."""
    write = DeleteOne({"_id": key, VERSION: {operator: Int64(version)}})
    return DocumentWrite(row, key, version, write, len(key) + 100)
