"""Writes a sink's batches into MongoDB.

A delete first records the id and version in `<collection>.tombstones`. An upsert looks there before it writes, and once
more afterwards, for a delete that came in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.database import Database
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from penstock.errors import SinkError
from penstock.sinks.core.bulk import SinkBatchResult
from penstock.sinks.core.keyed_writer import KeyedWriter
from penstock.sinks.core.latest_per_key import VersionedRow
from penstock.sinks.core.suffixes import suffixed_name
from penstock.sinks.mongodb.bulk import WAIT_S, DocumentWrite, MongoRequests
from penstock.sinks.mongodb.collections import CollectionManager
from penstock.sinks.mongodb.config import LIMITS, VERSION, MongoDB
from penstock.sinks.mongodb.encode import DocumentHeader, check_type, encode_documents
from penstock.sinks.mongodb.versions import TombstoneCollection, delete, read_versions, upsert, write_upserts

TIMEOUTS_MS = {"serverSelectionTimeoutMS": 5000, "connectTimeoutMS": 5000, "socketTimeoutMS": 30_000}
URL_HINT = "write it as mongodb://user:password@host:27017, in the password %2F for /, %3A for : and %40 for @"


class MongoWriter(KeyedWriter[MongoDB]):
    """Writes one collection, or those with its suffixes. It connects with the first batch.

    Args:
        url, output: see `DocumentWriter`.
        options: of the client.
    """

    product = "MongoDB"
    longest_wait_s = WAIT_S
    id_bytes = LIMITS.id_bytes

    def __init__(self, url: str, output: MongoDB, **options: Any) -> None:
        super().__init__(url, output)
        self._database = open_database(url, output, **options)
        self._requests = MongoRequests(location_of(self._database, output), output.parallel)
        self._collections = CollectionManager(self._database, output)
        tombstones = self._database[output.tombstone_collection]
        self._tombstones = TombstoneCollection(tombstones, self._requests, self._collections)

    def _prepare(self, table: pa.Table) -> None:
        check_type(table.schema.field("doc").type, self.output.name)

    def close(self) -> None:
        self._requests.close()
        self._database.client.close()

    def _write_rows(
        self, table: pa.Table, upserts: Sequence[VersionedRow], deletes: Sequence[VersionedRow], result: SinkBatchResult
    ) -> None:
        self._delete(deletes, result)
        by_collection: dict[str, list[DocumentWrite]] = {}
        for row, document in self._encode(table, upserts, result):
            name = suffixed_name(self.output.collection, self.output.suffix, row.at)
            by_collection.setdefault(name, []).append(upsert(row, document))
        for name, writes in by_collection.items():
            collection = self._database[name]
            self._requests.read(partial(self._collections.ensure, name))
            older = write_upserts(self._requests, collection, writes, result)
            result.conflicts += older
            result.written += sum(one.row not in result.refused for one in writes) - older
            # Deleted by another writer between the look at the tombstones and the write.
            deleted = self._deleted_versions(one.id for one in writes)
            late = [one for one in writes if deleted.get(one.id, one.version) > one.version]
            again = [delete(one.row, one.id, deleted[one.id], "$lt") for one in late]
            self._requests.write(collection, again, result)

    def _delete(self, rows: Sequence[VersionedRow], result: SinkBatchResult) -> None:
        for name in self._requests.read(self._collections.existing) if rows else ():
            collection = self._database[name]
            deletes = [delete(row.number, row.id, row.version, "$lte") for row in rows]
            self._requests.write(collection, deletes, result)
            left = read_versions(self._requests, collection, [row.id for row in rows])
            for row in rows:
                if row.id in left and not isinstance(left[row.id], int | float):
                    result.refused[row.number] = f"the document was not written by a sink, without {VERSION}: it stays"
        result.written += sum(row.number not in result.refused for row in rows)

    def _encode(
        self, table: pa.Table, rows: Sequence[VersionedRow], result: SinkBatchResult
    ) -> Iterator[tuple[VersionedRow, bytes]]:
        expires = bool(self.output.expire_seconds)
        start = 0
        # Chunk by chunk: together they may exceed what one Arrow array of texts can hold.
        for chunk in table["doc"].chunks:
            here = [row for row in rows if start <= row.number < start + len(chunk)]
            times = [row.at // 1000 if expires and row.at is not None else None for row in here]
            headers = [
                DocumentHeader(row.id, row.version, at_ms, deleted=row.deleted)
                for row, at_ms in zip(here, times, strict=True)
            ]
            docs = chunk.take(pa.array([row.number - start for row in here], pa.int64()))
            for row, encoded in zip(here, encode_documents(docs, headers) if here else (), strict=True):
                if encoded.error:
                    result.refused[row.number] = encoded.error
                else:
                    yield row, encoded.document
            start += len(chunk)


def open_database(url: str, output: MongoDB, **options: Any) -> Database[Any]:
    """The database of an output, by a client of its own.

    Args:
        url: Of the store.
        output: The output.
        options: Of the client.

    Raises:
        SinkError: The URL is malformed, which the error does not repeat, as it may have a password; or it asks for no
            acknowledgements.
    """
    try:
        client: MongoClient[Any] = MongoClient(url, appname=f"penstock {output.sink}"[:128], **(TIMEOUTS_MS | options))
    except (PyMongoError, ValueError) as e:
        raise SinkError("PENSTOCK_MONGODB_URL is not a valid URL", got=type(e).__name__, hint=URL_HINT) from None
    concern = client.write_concern
    if not concern.acknowledged:
        client.close()
        raise SinkError("PENSTOCK_MONGODB_URL asks for no acknowledgements", got=concern, hint="leave w=0 out")
    return client.get_database(
        output.database,
        read_preference=ReadPreference.PRIMARY,
        read_concern=ReadConcern("local"),
        # A write that one member alone acknowledged could be lost with that member.
        write_concern=concern if not concern.is_server_default else WriteConcern("majority"),
    )


def location_of(database: Database[Any], output: MongoDB) -> str:
    """Where an output is, for messages, without a password."""
    hosts = sorted(f"{host}:{port}" for host, port in database.client.topology_description.server_descriptions())
    return f"{','.join(hosts)}, {output.database}.{output.collection}"
