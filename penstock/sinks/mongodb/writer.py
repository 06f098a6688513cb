"""Writes a sink's batches into MongoDB.

A delete first records the id and version in `<collection>.tombstones`. An upsert looks there before it writes, and once
more afterwards, for a delete that came in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from penstock.errors import SinkError
from penstock.model.output import Output, Writer, WriterOwner
from penstock.sinks.core.connections import required_url
from penstock.sinks.core.latest_per_key import VersionedRow, latest_per_key
from penstock.sinks.core.suffixes import suffix_error
from penstock.sinks.core.writer import DocumentWriter, SinkBatchResult
from penstock.sinks.mongodb.bulk import WAIT_S, DocumentWrite, MongoRequests
from penstock.sinks.mongodb.collections import CollectionManager
from penstock.sinks.mongodb.config import LIMITS, VERSION, MongoDB
from penstock.sinks.mongodb.encode import DocumentHeader, check_type, encode_documents
from penstock.sinks.mongodb.tombstones import TombstoneCollection
from penstock.sinks.mongodb.versions import VersionedCollections, delete, upsert

TIMEOUTS_MS = {"serverSelectionTimeoutMS": 5000, "connectTimeoutMS": 5000, "socketTimeoutMS": 30_000}
URL_HINT = "write it as mongodb://user:password@host:27017, in the password %2F for /, %3A for : and %40 for @"


def open_collection(owner: WriterOwner, outputs: Sequence[Output]) -> Writer:  # noqa: ARG001
    (output,) = outputs
    assert isinstance(output, MongoDB)
    return MongoWriter(required_url(output.connection, output.name), output)


class MongoWriter(DocumentWriter):
    """Writes one collection, or those with its suffixes. It connects with the first batch.

    Args:
        url: of the server, with user and password if it asks for them.
        output: what is written.
        options: of the client.
    """

    product = "MongoDB"
    longest_wait_s = WAIT_S

    def __init__(self, url: str, output: MongoDB, **options: Any) -> None:
        super().__init__(output)
        self._output = output
        self._client = _connect(url, output.sink, TIMEOUTS_MS | options)
        concern = self._client.write_concern
        if not concern.acknowledged:
            self._client.close()
            raise SinkError("PENSTOCK_MONGODB_URL asks for no acknowledgements", got=concern, hint="leave w=0 out")
        self._database = self._client.get_database(
            output.database,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("local"),
            # A write that one member alone acknowledged could be lost with that member.
            write_concern=concern if not concern.is_server_default else WriteConcern("majority"),
        )
        hosts = sorted(f"{host}:{port}" for host, port in self._client.topology_description.server_descriptions())
        location = f"{','.join(hosts)}, {output.database}.{output.collection}"
        self._requests = MongoRequests(location, output.parallel)
        self._collections = CollectionManager(self._database, output)
        self._documents = VersionedCollections(self._requests)
        self._tombstones = TombstoneCollection(
            self._database[self._collections.tombstones], self._requests, self._documents, self._collections
        )

    def _write_batch(self, table: pa.Table, result: SinkBatchResult) -> None:
        if not table.num_rows:
            return
        check_type(table.schema.field("doc").type, self._output.name)
        tombstones = self._output.tombstones
        for chosen in latest_per_key(
            table,
            result.refused,
            id_bytes=LIMITS.id_bytes,
            tombstones=tombstones,
            future_upserts=self._tombstones.future_upserts,
        ):
            deletes = [row for row in chosen if row.deleted and tombstones == "delete"]
            deleted = {row.number for row in deletes}
            self._delete(deletes, result)
            self._upsert(table, [row for row in chosen if row.number not in deleted], result)
            if tombstones != "ignore":
                self._tombstones.record([row for row in chosen if row.future and not row.deleted], result)

    def close(self) -> None:
        self._requests.close()
        self._client.close()

    def _upsert(self, table: pa.Table, rows: Sequence[VersionedRow], result: SinkBatchResult) -> None:
        by_collection: dict[str, list[DocumentWrite]] = {}
        rows = [row for row in rows if self._has_time(row, result)]
        deleted = self._tombstones.versions([row.id for row in rows])
        alive = [row for row in rows if deleted.get(row.id, row.version) <= row.version]
        result.conflicts += len(rows) - len(alive)
        for row, document in self._encode(table, alive, result):
            by_collection.setdefault(self._collections.name_at(row.at), []).append(upsert(row, document))
        for name, upserts in by_collection.items():
            collection = self._database[name]
            self._requests.read(partial(self._collections.ensure, name))
            result.bytes += sum(one.size for one in upserts)
            older = self._documents.upsert(collection, upserts, result)
            result.conflicts += older
            result.written += sum(one.row not in result.refused for one in upserts) - older
            self._tombstones.reapply_deletes(collection, upserts, result)

    def _delete(self, rows: Sequence[VersionedRow], result: SinkBatchResult) -> None:
        if not rows:
            return
        self._tombstones.record(rows, result)
        for name in self._requests.read(self._collections.existing):
            collection = self._database[name]
            deletes = [delete(row.number, row.id, row.version, "$lte") for row in rows]
            self._documents.delete(collection, deletes, result)
            left = self._documents.versions(collection, [row.id for row in rows])
            for row in rows:
                if row.id in left and not isinstance(left[row.id], int | float):
                    result.refused[row.number] = f"the document was not written by a sink, without {VERSION}: it stays"
        result.written += sum(row.number not in result.refused for row in rows)

    def _has_time(self, row: VersionedRow, result: SinkBatchResult) -> bool:
        """Whether a row has the time that its collection or its expiry needs; if not, it is refused."""
        error = suffix_error(row.at) if self._output.suffix else ""
        if row.at is None and self._output.expire_seconds:
            error = "its time is NULL"
        if error:
            result.refused[row.number] = error
        return not error

    def _encode(
        self, table: pa.Table, rows: Sequence[VersionedRow], result: SinkBatchResult
    ) -> Iterator[tuple[VersionedRow, bytes]]:
        expires = bool(self._output.expire_seconds)
        start = 0
        # Chunk by chunk: together they may exceed what one Arrow array of texts can hold.
        for chunk in table["doc"].chunks:
            here = [row for row in rows if start <= row.number < start + len(chunk)]
            headers = [
                DocumentHeader(
                    row.id, row.version, row.at // 1000 if expires and row.at is not None else None,
                    deleted=row.deleted,
                )
                for row in here
            ]  # fmt: skip
            docs = chunk.take(pa.array([row.number - start for row in here], pa.int64()))
            for row, encoded in zip(here, encode_documents(docs, headers) if here else [], strict=True):
                if encoded.error:
                    result.refused[row.number] = encoded.error
                else:
                    yield row, encoded.document
            start += len(chunk)


def _connect(url: str, sink: str, options: Mapping[str, Any]) -> MongoClient[Any]:
    """A client. SinkError, without what may be a password, if the URL is malformed."""
    try:
        return MongoClient(url, appname=f"penstock {sink}"[:128], **options)
    except (PyMongoError, ValueError) as e:
        raise SinkError("PENSTOCK_MONGODB_URL is not a valid URL", got=type(e).__name__, hint=URL_HINT) from None
