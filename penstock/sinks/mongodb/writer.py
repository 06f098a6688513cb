"""Writes a sink's batches into MongoDB.

The versions of what is there are read, a request for many; what is not there is inserted, what is there and not newer
is replaced, guarded by the version: `{_id, _v: {$lte: n}}` with upsert. Where another came between, either meets the id
and fails, and the version is read again. A delete buries the id in `<collection>.graves` first; who upserts looks there
before, and once more after, for a delete that came between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import time
from typing import Any

import pyarrow as pa
from bson import encode
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, InsertOne, MongoClient, ReadPreference, ReplaceOne, WriteConcern
from pymongo.collection import Collection
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from penstock.errors import Refused, SinkError, Wait
from penstock.model.output import NO_COMMIT, CommitMarker, Output, Writer, WriterOwner
from penstock.sinks.core import connections
from penstock.sinks.core.document import OFFSET_BITS, Figures
from penstock.sinks.core.latest_per_key import Ahead, Row, newest
from penstock.sinks.mongodb.bulk import LONG, Item, Requests
from penstock.sinks.mongodb.collections import FIRST, LAST, YEARS, Layout
from penstock.sinks.mongodb.config import AHEAD, AT, LIMITS, VERSION, MongoDB
from penstock.sinks.mongodb.encode import Head, encoded, fits

# Times that writes which stand in each other's way are tried again.
ROUNDS = 10
TIMEOUTS_MS = {"serverSelectionTimeoutMS": 5000, "connectTimeoutMS": 5000, "socketTimeoutMS": 30_000}
FIX = "write it as mongodb://user:password@host:27017, in the password %2F for /, %3A for : and %40 for @"


def open_collection(owner: WriterOwner, outputs: Sequence[Output]) -> Writer:  # noqa: ARG001
    (output,) = outputs
    assert isinstance(output, MongoDB)
    if not (url := connections.url(output.connection)):
        raise SinkError(
            f"no MongoDB is known to write {output.name} to",
            got="PENSTOCK_MONGODB_URL is not set",
            hint="set it to mongodb://user:password@host:27017, and start the driver anew (penstock streams release)",
        )
    return MongoWriter(url, output)


class MongoWriter:
    """Of one collection, or of those with its suffixes. It connects with the first batch.

    figures: since it was opened.
    """

    def __init__(self, url: str, output: MongoDB, **options: Any) -> None:
        self.figures = Figures()
        self._output = output
        self._client = _client(url, output.sink, TIMEOUTS_MS | options)
        concern = self._client.write_concern
        if not concern.acknowledged:
            self._client.close()
            raise SinkError("PENSTOCK_MONGODB_URL asks for no answers", got=concern, hint="leave w=0 out of it")
        self._database = self._client.get_database(
            output.database,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("local"),
            # Acknowledged by one member alone it could be lost with that one.
            write_concern=concern if not concern.is_server_default else WriteConcern("majority"),
        )
        hosts = sorted(f"{host}:{port}" for host, port in self._client.topology_description.server_descriptions())
        self._requests = Requests(f"{','.join(hosts)}, {output.database}.{output.collection}", output.parallel)
        self._layout = Layout(self._database, output)

    def committed(self) -> CommitMarker:
        """NO_COMMIT: a batch that is given again is written again, and changes nothing."""
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:  # noqa: ARG002
        """Write a batch. Refused, after all else is written, for rows that are no documents or break an index."""
        given = rows.get(self._output.name)
        if given is None or not given.num_rows:
            return 0
        fits(given.schema.field("doc").type, self._output.name)
        self._now: Counter[str] = Counter()
        self._refused: dict[int, str] = {}
        try:
            self._write(given)
        finally:
            # Also of a batch that is given again: that it is too busy shows while it is.
            self.figures = replace(self.figures, retried=self._requests.retried)
        written, refused = self._now["written"], len(self._refused)
        self.figures = replace(
            self.figures,
            written=self.figures.written + written,
            conflicts=self.figures.conflicts + self._now["conflicts"],
            refused=self.figures.refused + refused,
            bytes=self.figures.bytes + self._now["bytes"],
        )
        if self._refused:
            raise Refused(
                f"MongoDB can never take {refused} rows for {self._output.name}",
                rows={self._output.name: self._refused},
                got=next(iter(self._refused.values())),
                written=written,
            )
        return written

    def _write(self, given: pa.Table) -> None:
        tombstones = self._output.tombstones
        limit = LIMITS.id_bytes
        for batch in newest(given, self._refused, id_bytes=limit, tombstones=tombstones, ahead=self._ahead):
            dead = [row for row in batch if row.deleted and tombstones == "delete"]
            gone = {row.number for row in dead}
            self._delete(dead)
            self._upsert(given, [row for row in batch if row.number not in gone])
            if tombstones != "ignore":
                self._remember([row for row in batch if row.ahead and not row.deleted])

    def close(self) -> None:
        self._requests.close()
        self._client.close()

    def _upsert(self, given: pa.Table, rows: Sequence[Row]) -> None:
        places: dict[str, list[Item]] = {}
        rows = [row for row in rows if self._timed(row)]
        buried = self._graves([row.id for row in rows])
        alive = [row for row in rows if buried.get(row.id, row.version) <= row.version]
        self._now["conflicts"] += len(rows) - len(alive)
        for row, document in self._documents(given, alive):
            places.setdefault(self._layout.place(row.at), []).append(_item(row, document))
        for place, items in places.items():
            self._requests.ask(partial(self._layout.ensure, place))
            self._now["bytes"] += sum(item.size for item in items)
            self._now["conflicts"] += (older := self._written(self._database[place], items))
            self._now["written"] += sum(item.row not in self._refused for item in items) - older
            self._rebury(self._database[place], items)

    def _timed(self, row: Row) -> bool:
        """Whether it has the time that its place is told from, or that it expires by; if not, it is refused."""
        if row.at is None and (self._output.suffix or self._output.expire_seconds):
            self._refused[row.number] = "its time is NULL"
        elif row.at is not None and self._output.suffix and not FIRST <= row.at < LAST:
            self._refused[row.number] = f"its time is outside of {YEARS[0]} to {YEARS[1]}"
        return row.number not in self._refused

    def _documents(self, given: pa.Table, rows: Sequence[Row]) -> Iterator[tuple[Row, bytes]]:
        keep = bool(self._output.expire_seconds)
        start = 0
        # Together they may be more than one array of texts can hold.
        for chunk in given["doc"].chunks:
            here = [row for row in rows if start <= row.number < start + len(chunk)]
            heads = [
                Head(row.id, row.version, row.at // 1000 if keep and row.at is not None else None, marked=row.deleted)
                for row in here
            ]
            docs = chunk.take(pa.array([row.number - start for row in here], pa.int64()))
            for row, made in zip(here, encoded(docs, heads) if here else [], strict=True):
                if made.refused:
                    self._refused[row.number] = made.refused
                else:
                    yield row, made.document
            start += len(chunk)

    def _written(self, collection: Collection[Any], items: Sequence[Item]) -> int:
        """Write items whose version is the newest; how many of them are older than what is there."""
        older = 0
        guarded = {item.row: item for item in items}
        pending = list(items)
        for n in range(ROUNDS):
            there = self._versions(collection, [item.id for item in pending])
            writes: list[Item] = []
            for item in pending:
                known = there.get(item.id, item.version)
                if not isinstance(known, int | float):
                    self._refused[item.row] = f"a document of this id that no sink wrote, without {VERSION}, is there"
                elif known > item.version:
                    older += 1
                else:
                    writes.append(item if item.id in there else item.inserted())
            found = self._requests.send(collection, writes)
            self._refused |= found.refused
            # Written at the same time by another, or deleted since.
            again = found.taken
            # Another row may have given up its value since; the other way round, as values may be passed on.
            if len(found.bound) < len(writes) and n < ROUNDS - 1:
                again += [item for item, _ in reversed(found.bound)]
            else:
                self._refused |= {item.row: f"MongoDB: {said[:500]}" for item, said in found.bound}
            if not again:
                return older
            pending = [guarded[item.row] for item in again]
        raise Wait("others write the same documents all the time", got=collection.full_name, seconds=LONG)

    def _delete(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        self._requests.ask(lambda: self._layout.ensure(self._layout.graves))
        now = DatetimeMS(int(time() * 1000))
        buried = [_item(row, encode({"_id": row.id, AT: now, VERSION: Int64(row.version)})) for row in rows]
        self._written(self._database[self._layout.graves], buried)
        for place in self._requests.ask(self._layout.places):
            collection = self._database[place]
            self._send(collection, [_removal(row.number, row.id, row.version, "$lte") for row in rows])
            left = self._versions(collection, [row.id for row in rows])
            for row in rows:
                if row.id in left and not isinstance(left[row.id], int | float):
                    self._refused[row.number] = f"the document is none of a sink, without {VERSION}: it stays"
        self._now["written"] += sum(row.number not in self._refused for row in rows)

    def _remember(self, rows: Sequence[Row]) -> None:
        """Keep of upserts that are ahead where they lie: a tombstone behind them has a time before theirs."""
        rows = [row for row in rows if row.number not in self._refused]
        if not rows:
            return
        self._requests.ask(lambda: self._layout.ensure(self._layout.graves))
        now = int(time() * 1000)
        items = [
            _item(row, encode({
                "_id": row.id, AT: DatetimeMS(max(now, row.version >> OFFSET_BITS)), VERSION: Int64(row.version),
                AHEAD: list(row.place),
            }))
            for row in rows
        ]  # fmt: skip
        self._written(self._database[self._layout.graves], items)

    def _ahead(self, ids: Sequence[str]) -> dict[str, Ahead]:
        """What is remembered of these ids."""
        found = self._look(self._database[self._layout.graves], ids, {VERSION: 1, AHEAD: 1})
        return {one["_id"]: Ahead(one[VERSION], tuple(one[AHEAD])) for one in found if AHEAD in one}

    def _rebury(self, collection: Collection[Any], items: Sequence[Item]) -> None:
        """Remove what another writer deleted between a look at the graves and the write."""
        buried = self._graves([item.id for item in items])
        late = [item for item in items if buried.get(item.id, item.version) > item.version]
        self._send(collection, [_removal(item.row, item.id, buried[item.id], "$lt") for item in late])

    def _send(self, collection: Collection[Any], items: Sequence[Item]) -> None:
        found = self._requests.send(collection, items)
        self._refused |= found.refused

    def _graves(self, ids: Sequence[str]) -> dict[str, int]:
        """The versions of what was deleted of these ids."""
        graves = self._database[self._layout.graves]
        if not ids or self._requests.ask(lambda: graves.find_one({}, {"_id": 1})) is None:
            return {}
        return self._versions(graves, ids)

    def _versions(self, collection: Collection[Any], ids: Sequence[str]) -> dict[str, Any]:
        """The versions of the documents that there are of these ids; None of one that has none."""
        return {document["_id"]: document.get(VERSION) for document in self._look(collection, ids, {VERSION: 1})}

    def _look(self, collection: Collection[Any], ids: Sequence[str], fields: Mapping[str, int]) -> Iterator[Any]:
        for at in range(0, len(ids), LIMITS.rows):
            wanted = {"_id": {"$in": list(ids[at : at + LIMITS.rows])}}
            yield from self._requests.ask(partial(_found, collection, wanted, fields))


def _found(collection: Collection[Any], wanted: Mapping[str, Any], fields: Mapping[str, int]) -> list[Any]:
    return list(collection.find(wanted, fields))


def _item(row: Row, document: bytes) -> Item:
    wanted, whole = {"_id": row.id, VERSION: {"$lte": Int64(row.version)}}, RawBSONDocument(document)
    write: ReplaceOne[Any] = ReplaceOne(wanted, whole, upsert=True)
    return Item(row.number, row.id, row.version, write, len(document), InsertOne(whole))


def _removal(number: int, key: str, version: int, upto: str) -> Item:
    write = DeleteOne({"_id": key, VERSION: {upto: Int64(version)}})
    return Item(number, key, version, write, len(key) + 100)


def _client(url: str, sink: str, options: Mapping[str, Any]) -> MongoClient[Any]:
    """SinkError, which keeps what may be a password to itself, if it is no URL."""
    try:
        return MongoClient(url, appname=f"penstock {sink}"[:128], **options)
    except (PyMongoError, ValueError) as e:
        raise SinkError("PENSTOCK_MONGODB_URL is no URL of a MongoDB", got=type(e).__name__, hint=FIX) from None
