"""Manages the collections and indexes of a sink: creates them as declared, and never changes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

import pyarrow as pa
from pymongo.database import Database
from pymongo.errors import OperationFailure

from penstock.errors import SinkError
from penstock.sinks.core.suffixes import SUFFIX
from penstock.sinks.mongodb.config import AT, DUPLICATE_KEY, LIMITS, Keys, MongoDB
from penstock.sinks.mongodb.encode import check_type

# Time until a collection is checked again: if it was dropped, a write would create it without its indexes.
RECHECK_S = 60.0
# Options of an index that change which documents it holds, or which of them are equal.
FORBIDDEN_OPTIONS = ("sparse", "partialFilterExpression", "collation")


@dataclass(frozen=True)
class IndexSpec:
    """An index. seconds: after which a document expires, counted from the indexed time."""

    keys: Keys
    unique: bool = False
    seconds: int | None = None

    def difference(self, present: dict[str, Any]) -> str:
        """How an existing index of these keys differs from the declaration; empty if it does not."""
        if bool(present.get("unique")) != self.unique:
            return f"unique is {bool(present.get('unique'))}, declared is {self.unique}"
        if present.get("expireAfterSeconds") != self.seconds:
            return f"expireAfterSeconds is {present.get('expireAfterSeconds')}, declared is {self.seconds}"
        return next((f"it has {name}" for name in FORBIDDEN_OPTIONS if present.get(name)), "")


TOMBSTONE_INDEX = IndexSpec((AT,), seconds=LIMITS.tombstone_days * 24 * 60 * 60)


def index_specs(output: MongoDB) -> list[IndexSpec]:
    """The indexes that each collection of a sink must have."""
    indexes = [IndexSpec(keys) for keys in output.indexes] + [IndexSpec(keys, unique=True) for keys in output.unique]
    if output.expire_seconds:
        indexes.append(IndexSpec((AT,), seconds=output.expire_seconds))
    return indexes


def collection_schema(output: MongoDB, shape: pa.StructType) -> dict[str, Any]:
    """The collections and indexes that are created for an output. SinkError if such documents can never be stored."""
    check_type(shape, output.name)
    name = output.collection
    suffixed = f"{name}-<{output.suffix}>" if output.suffix else name
    wanted = {suffixed: index_specs(output)}
    if output.tombstones == "delete":
        wanted[output.tombstone_collection] = [TOMBSTONE_INDEX]
    collections = {collection: [asdict(index) for index in indexes] for collection, indexes in wanted.items()}
    return {"database": output.database, "indexes": collections}


class CollectionManager:
    """Creates one sink's collections in its database."""

    def __init__(self, database: Database[Any], output: MongoDB) -> None:
        self._database, self._output = database, output
        self._checked: dict[str, float] = {}
        self._indexes = index_specs(output)

    def existing(self) -> list[str]:
        """The names of the collections that exist."""
        base = self._output.collection
        names = self._database.list_collection_names()
        if not self._output.suffix:
            return [name for name in names if name == base]
        return [name for name in names if name.startswith(f"{base}-") and SUFFIX.fullmatch(name[len(base) + 1 :])]

    def ensure(self, name: str) -> None:
        """Create a collection and its indexes as declared. SinkError if what exists differs."""
        if monotonic() - self._checked.get(name, -RECHECK_S) < RECHECK_S:
            return
        for present in self._database.list_collections(filter={"name": name}):
            self._check_plain(name, present)
        for index in [TOMBSTONE_INDEX] if name == self._output.tombstone_collection else self._indexes:
            self._ensure_index(name, index)
        self._checked[name] = monotonic()

    def _check_plain(self, name: str, present: Mapping[str, Any]) -> None:
        options = present.get("options", {})
        kind = present.get("type", "collection")
        obstacles = [f"a {kind}"] if kind != "collection" else []
        # With another collation two ids may be equal.
        obstacles += [what for what in ("capped", "timeseries", "collation", "clusteredIndex") if options.get(what)]
        if obstacles:
            raise SinkError(
                f"{self._output.database}.{name} is not a plain collection",
                got=obstacles[0],
                hint="write into another collection, or drop it",
            )

    def _ensure_index(self, name: str, index: IndexSpec) -> None:
        collection = self._database[name]
        for index_name, present in collection.index_information().items():
            # A hashed or text index of the same columns is a different one.
            if present["key"] != [(key, 1) for key in index.keys]:
                continue
            if difference := index.difference(present):
                raise SinkError(
                    f"index {index_name} of {self._output.database}.{name} is not as declared",
                    got=difference,
                    hint=f'drop it (db["{name}"].dropIndex("{index_name}")), or declare it as it is',
                )
            return
        options: dict[str, Any] = {"expireAfterSeconds": index.seconds} if index.seconds is not None else {}
        try:
            collection.create_index([(key, 1) for key in index.keys], unique=index.unique, **options)
        except OperationFailure as e:
            # Another index has its name, or existing documents violate it.
            if e.code not in (DUPLICATE_KEY, 67, 85, 86):
                raise
            raise SinkError(
                f"index {index.keys} cannot be created on {self._output.database}.{name}",
                got=str(e)[:500],
                hint="correct the documents, drop the other index, or declare it differently",
            ) from e
