"""A collection of MongoDB, read for a backfill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import bson
import orjson
import pyarrow as pa
from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, PyMongoError

from penstock.archive import records
from penstock.archive.layout import Span, added
from penstock.backfill.job import ms
from penstock.backfill.patience import Waits, patiently
from penstock.backfill.source import Told, put
from penstock.declare.backfill import Collection
from penstock.errors import SinkError, Wait
from penstock.sinks import connections

# Documents of one file.
DOCUMENTS = 50_000
SERVER_MS = 10_000
PLAIN = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME


class Documents:
    """A collection's documents in order of their ids, as records: key the id as text, value the document as JSON."""

    def __init__(self, collection: Collection, waits: Waits) -> None:
        self._collection, self._waits = collection, waits
        self.files = self.rows = 0
        self.spans: Mapping[str, Span] = {}
        self.ids: Mapping[str, str] = {}
        self.nothing = f"nothing is in {collection.place}"

    def fetch(self, folder: Path, told: Told) -> list[Path]:
        if not (url := connections.url("mongodb")):
            raise SinkError(
                "nobody has said where MongoDB is",
                got=self._collection.place,
                fix='set PENSTOCK_MONGODB_URL, or start one here: make up STORES="mongodb"',
            )
        found = patiently(partial(self._read, url, folder, told), self._waits)
        self.files, self.rows = len(found), sum(span.rows for span in self.spans.values())
        return found

    def _read(self, url: str, folder: Path, told: Told) -> list[Path]:
        """All of it. Nothing says what a document was when it was read before, so each try reads all anew."""
        place = self._collection.place
        found, self.spans = list[Path](), {}
        try:
            made: MongoClient[dict[str, Any]] = MongoClient(url, serverSelectionTimeoutMS=SERVER_MS, tz_aware=True)
            with closing(made) as client:
                database = client[self._collection.database]
                if self._collection.name not in database.list_collection_names():
                    raise SinkError(
                        "there is no such collection in MongoDB", got=place,
                        fix="see how the Collection is written, and where PENSTOCK_MONGODB_URL leads to",
                    )  # fmt: skip
                self.rows = database[self._collection.name].estimated_document_count()
                for number, rows in enumerate(self._tables(client)):
                    path = folder / f"{number:06}.parquet"
                    put(path, rows)
                    self.spans = added([self.spans, records.spans_of(rows)])
                    found.append(path)
                    told(rows.num_rows)
        except ConnectionFailure as e:
            raise Wait(f"MongoDB does not answer for {place}", got=str(e)[:300], seconds=1.0) from e
        except PyMongoError as e:
            raise SinkError(
                f"MongoDB does not give {place}",
                got=str(e)[:300],
                fix="see that the user may read the collection; then run it again",
            ) from e
        return found

    def _tables(self, client: MongoClient[dict[str, Any]]) -> Iterator[pa.Table]:
        cursor = client[self._collection.database][self._collection.name].find().sort("_id", 1)
        at, held = 0, list[dict[str, Any]]()
        for document in cursor:
            held.append(document)
            if len(held) == DOCUMENTS:
                yield self._table(held, at)
                at, held = at + len(held), []
        if held:
            yield self._table(held, at)

    def _table(self, documents: list[dict[str, Any]], at: int) -> pa.Table:
        count = len(documents)
        given: dict[str, Any] = {
            "topic": pa.repeat(self._collection.place, count),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "offset": pa.array(range(at, at + count)),
            "key": pa.array([str(document.get("_id")).encode() for document in documents]),
            "value": pa.array([orjson.dumps(d, default=_plain, option=PLAIN) for d in documents]),
        }
        columns = [
            given[field.name].cast(field.type) if field.name in given else pa.nulls(count, field.type)
            for field in records.SCHEMA
        ]
        return pa.Table.from_arrays(columns, schema=records.SCHEMA)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return ms(value)
    if isinstance(value, Decimal | bson.Decimal128 | bson.ObjectId):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(type(value).__name__)
