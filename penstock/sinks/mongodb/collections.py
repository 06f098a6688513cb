"""A sink's collections and indexes: made as declared, never changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pyarrow as pa
from pymongo.database import Database
from pymongo.errors import OperationFailure

from penstock.errors import SinkError
from penstock.model.sink import Unit
from penstock.sinks.mongodb.config import AT, DUPLICATE, GRAVES, LIMITS, Keys, MongoDB
from penstock.sinks.mongodb.encode import fits

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of suffixes: each is a collection, and a clock that is wrong by centuries must not make many.
YEARS = (1970, 2199)
FIRST, LAST = ((datetime(year, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) for year in (1970, 2200))
# Seconds until a collection is looked at again: dropped, the next write would make it without its indexes.
EVERY = 60.0
SUFFIXES: dict[Unit, str] = {"year": "%Y", "month": "%Y.%m", "day": "%Y.%m.%d", "hour": "%Y.%m.%d.%H"}
SUFFIX = re.compile(r"[0-9]{4}(\.[0-9]{2}){0,3}")
# Options of an index that change which documents it takes, or which of them are one.
PARTIAL = ("sparse", "partialFilterExpression", "collation")


@dataclass(frozen=True)
class Index:
    """seconds: after which a document expires, from the time that it is by."""

    keys: Keys
    unique: bool = False
    seconds: int | None = None

    def difference(self, there: dict[str, Any]) -> str:
        """What of an index of these keys is other than declared."""
        if bool(there.get("unique")) != self.unique:
            return f"unique is {bool(there.get('unique'))}, declared is {self.unique}"
        if there.get("expireAfterSeconds") != self.seconds:
            return f"expireAfterSeconds is {there.get('expireAfterSeconds')}, declared is {self.seconds}"
        return next((f"it has {name}" for name in PARTIAL if there.get(name)), "")


# Of what was deleted.
GRAVE = Index((AT,), seconds=LIMITS.grave_days * 24 * 60 * 60)


def declared(output: MongoDB) -> list[Index]:
    """The indexes of each collection of a sink."""
    indexes = [Index(keys) for keys in output.indexes] + [Index(keys, unique=True) for keys in output.unique]
    if output.expire_seconds:
        indexes.append(Index((AT,), seconds=output.expire_seconds))
    return indexes


def made(output: MongoDB, shape: pa.StructType) -> dict[str, Any]:
    """What is made of an output: collections with their indexes. SinkError if documents of that shape can never be
    stored."""
    fits(shape, output.name)
    name = output.collection
    suffixed = f"{name}-<{output.suffix}>" if output.suffix else name
    wanted = {suffixed: declared(output), **({f"{name}{GRAVES}": [GRAVE]} if output.tombstones == "delete" else {})}
    collections = {collection: [asdict(index) for index in indexes] for collection, indexes in wanted.items()}
    return {"database": output.database, "indexes": collections}


class Layout:
    """Of one sink's collections in its database."""

    def __init__(self, database: Database[Any], output: MongoDB) -> None:
        self._database, self._output = database, output
        self._seen: dict[str, float] = {}
        self._indexes = declared(output)

    @property
    def graves(self) -> str:
        return f"{self._output.collection}{GRAVES}"

    def place(self, at_micros: int | None) -> str:
        """The collection of a row of that time."""
        if not self._output.suffix:
            return self._output.collection
        assert at_micros is not None
        return f"{self._output.collection}-{EPOCH + timedelta(microseconds=at_micros):{SUFFIXES[self._output.suffix]}}"

    def places(self) -> list[str]:
        """The collections that there are."""
        base = self._output.collection
        found = self._database.list_collection_names()
        if not self._output.suffix:
            return [name for name in found if name == base]
        return [name for name in found if name.startswith(f"{base}-") and SUFFIX.fullmatch(name[len(base) + 1 :])]

    def ensure(self, name: str) -> None:
        """Make a collection and its indexes as declared. SinkError if what is there is otherwise."""
        if monotonic() - self._seen.get(name, -EVERY) < EVERY:
            return
        for there in self._database.list_collections(filter={"name": name}):
            self._plain(name, there)
        for index in [GRAVE] if name == self.graves else self._indexes:
            self._index(name, index)
        self._seen[name] = monotonic()

    def _plain(self, name: str, there: Mapping[str, Any]) -> None:
        options = there.get("options", {})
        kind = there.get("type", "collection")
        wrong = [f"a {kind}"] if kind != "collection" else []
        # With one of another collation two ids may be taken for one.
        wrong += [what for what in ("capped", "timeseries", "collation", "clusteredIndex") if options.get(what)]
        if wrong:
            raise SinkError(
                f"{self._output.database}.{name} is no plain collection",
                got=wrong[0],
                hint="write into another collection, or drop it",
            )

    def _index(self, name: str, index: Index) -> None:
        collection = self._database[name]
        for called, there in collection.index_information().items():
            # A hashed or text index of the same columns is another.
            if there["key"] != [(key, 1) for key in index.keys]:
                continue
            if wrong := index.difference(there):
                raise SinkError(
                    f"index {called} of {self._output.database}.{name} is not as declared",
                    got=wrong,
                    hint=f'drop it (db["{name}"].dropIndex("{called}")), or declare it as it is',
                )
            return
        given: dict[str, Any] = {"expireAfterSeconds": index.seconds} if index.seconds is not None else {}
        try:
            collection.create_index([(key, 1) for key in index.keys], unique=index.unique, **given)
        except OperationFailure as e:
            # Of its name there is another, or documents that are there break it.
            if e.code not in (DUPLICATE, 67, 85, 86):
                raise
            raise SinkError(
                f"index {index.keys} cannot be made on {self._output.database}.{name}",
                got=str(e)[:500],
                hint="mend the documents or drop the other index, or declare it otherwise",
            ) from e
