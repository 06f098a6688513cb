"""Versioned writes to collections: a document is written unless a newer version of it exists.

The versions of the present documents are read, many in one request. Documents that do not exist are inserted; those
that exist and are not newer are replaced, guarded by the version: `{_id, _v: {$lte: n}}` with upsert. If another writer
came in between, both fail on the id, and the version is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import time
from typing import Any

from bson import encode
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, InsertOne, ReplaceOne
from pymongo.collection import Collection

from penstock.errors import SinkError, Wait
from penstock.sinks.core.bulk import ItemStatus, SinkBatchResult
from penstock.sinks.core.keyed_writer import tombstone_ms
from penstock.sinks.core.latest_per_key import Position, VersionedRow
from penstock.sinks.mongodb.bulk import WAIT_S, DocumentWrite, MongoRequests
from penstock.sinks.mongodb.collections import CollectionManager
from penstock.sinks.mongodb.config import AT, POSITION, VERSION

# How often writes that conflict with other writers are tried.
ROUNDS = 10


def upsert(row: VersionedRow, document: bytes) -> DocumentWrite:
    """Replaces a document that is not newer, or inserts it."""
    query, whole = {"_id": row.id, VERSION: {"$lte": Int64(row.version)}}, RawBSONDocument(document)
    replace: ReplaceOne[Any] = ReplaceOne(query, whole, upsert=True)
    return DocumentWrite(row.number, row.id, row.version, replace, len(document), InsertOne(whole))


def delete(row: int, key: str, version: int, operator: str) -> DocumentWrite:
    """Deletes a document whose version is `$lte` or `$lt` a version."""
    write = DeleteOne({"_id": key, VERSION: {operator: Int64(version)}})
    return DocumentWrite(row, key, version, write, len(key) + 100)


def read_versions(requests: MongoRequests, collection: Collection[Any], ids: Sequence[str]) -> dict[str, Any]:
    """The versions of the documents that exist; None for one without a version."""
    return {document["_id"]: document.get(VERSION) for document in requests.find(collection, ids, {VERSION: 1})}


def write_upserts(
    requests: MongoRequests, collection: Collection[Any], upserts: Sequence[DocumentWrite], result: SinkBatchResult
) -> int:
    """Write documents that are not older than the present ones.

    Args:
        requests: to the database.
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
        present = read_versions(requests, collection, [one.id for one in pending])
        writes: list[DocumentWrite] = []
        for one in pending:
            version = present.get(one.id, one.version)
            if not isinstance(version, int | float):
                result.refused[one.row] = f"a document of this id that no sink wrote, without {VERSION}, exists"
            elif version > one.version:
                older += 1
            else:
                writes.append(one if one.id in present else one.as_insert())
        outcome = requests.write(collection, writes, result)
        duplicates = outcome.of(ItemStatus.DUPLICATE)
        # Written by another at the same time, or deleted since.
        again = outcome.conflicts
        # Another row may have given up its value since. In reverse order, as values may be passed on.
        if len(duplicates) < len(writes) and attempt < ROUNDS - 1:
            again += [one for one, _ in reversed(duplicates)]
        else:
            result.refused |= {one.row: f"MongoDB: {reason[:500]}" for one, reason in duplicates}
        if not again:
            return older
        pending = [by_row[one.row] for one in again]
    raise Wait("other writers write the same documents all the time", got=collection.full_name, seconds=WAIT_S)


class TombstoneCollection:
    """The collection of a sink's tombstones: `_id` and `_v` of what was deleted, and `_at`, when it was."""

    def __init__(self, collection: Collection[Any], requests: MongoRequests, manager: CollectionManager) -> None:
        self._collection, self._requests, self._manager = collection, requests, manager

    def read(self, ids: Sequence[str]) -> Iterator[tuple[str, int, Position | None]]:
        """See `Tombstones`."""
        if ids and self._requests.read(lambda: self._collection.find_one({}, {"_id": 1})) is not None:
            for one in self._requests.find(self._collection, ids, {VERSION: 1, POSITION: 1}):
                if VERSION not in one:
                    raise self._error(f"a document without {VERSION}: {one['_id']}")
                yield one["_id"], one[VERSION], tuple(one[POSITION]) if POSITION in one else None

    def record(self, rows: Sequence[VersionedRow], result: SinkBatchResult) -> None:
        """See `Tombstones`."""
        self._requests.read(lambda: self._manager.ensure(self._collection.name))
        now = int(time() * 1000)
        upserts = []
        for row in rows:
            document = {"_id": row.id, AT: DatetimeMS(tombstone_ms(row, now)), VERSION: Int64(row.version)}
            upserts.append(upsert(row, encode(document if row.deleted else document | {POSITION: list(row.position)})))
        write_upserts(self._requests, self._collection, upserts, result)
        if refused := [result.refused[row.number] for row in rows if row.number in result.refused]:
            raise self._error(refused[0])

    def _error(self, got: str) -> SinkError:
        what = f"{self._collection.full_name} cannot hold the tombstones of a sink"
        return SinkError(what, got=got, hint="delete there what no sink wrote, or the collection if it is another's")
