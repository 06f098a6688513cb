"""Declares a MongoDB collection as a sink's output, and its limits.

A document has `_id`, the id as text; the columns of the SELECT; `_v`, its version; and `_at`, its time, if it expires.
`_id` and `_v` of deleted documents are kept in `<collection>.tombstones`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F
from penstock.model.sink import Sink
from penstock.sinks.core.document import DocumentOutput, name_error

if TYPE_CHECKING:
    from pyspark.sql import Column

Keys = tuple[str, ...]

VERSION, AT, DELETED_FIELD, TOMBSTONE_SUFFIX = "_v", "_at", "deleted", ".tombstones"
# In the collection of tombstones: the position of the record of a future upsert.
POSITION = "position"
OWN_FIELDS = ("_id", VERSION, AT)
DATABASE_FORBIDDEN, COLLECTION_FORBIDDEN = re.compile(r'[/\\. "$*<>:|?\0]'), re.compile(r"[$\0]")
# The code of a violated unique index.
DUPLICATE_KEY = 11000


@dataclass(frozen=True)
class MongoDBLimits:
    """Limits of MongoDB, and of one request.

    Attributes:
        id_bytes: MongoDB's own limit is the document's, but an id is sent several times in a request.
        name_bytes: of a database.
        namespace_bytes: of database, dot, collection and what the sink adds to its name.
        tombstone_days: how long the version of a delete is kept.
    """

    document_bytes: int = 16 * 1024 * 1024
    id_bytes: int = 4096
    depth: int = 100
    decimal_digits: int = 34
    name_bytes: int = 63
    namespace_bytes: int = 235
    rows: int = 1000
    request_bytes: int = 8 * 1024 * 1024
    tombstone_days: int = 7


LIMITS = MongoDBLimits()


@dataclass(frozen=True, kw_only=True)
class MongoDB(DocumentOutput):
    """A collection.

    Attributes:
        database: its database.
        collection: its name, without a suffix.
        indexes: columns of each index, ascending.
        unique: columns of each unique index, ascending.
    """

    connection: str = "mongodb"
    database: str
    collection: str
    indexes: tuple[Keys, ...] = ()
    unique: tuple[Keys, ...] = ()

    writer: ClassVar[str] = "penstock.sinks.mongodb.writer:MongoWriter.open"
    store_schema: ClassVar[str] = "penstock.sinks.mongodb.collections:collection_schema"
    versions: ClassVar[str] = "penstock.sinks.mongodb.target_versions:open_collection_versions"

    def __post_init__(self) -> None:
        room = LIMITS.namespace_bytes - len(self.database.encode())
        for error, got in (
            (name_error(self.database, DATABASE_FORBIDDEN, LIMITS.name_bytes), self.database),
            (name_error(self.collection, COLLECTION_FORBIDDEN, room), self.collection),
            ("begins with system." if self.collection.startswith("system.") else "", self.collection),
            ("ends with .tombstones" if self.collection.endswith(TOMBSTONE_SUFFIX) else "", self.collection),
        ):
            if error:
                what = f"the name of a database or collection {error}"
                raise DeclarationError(what, got=repr(got), hint="choose another name")
        self.check_mark()
        repeated = set(self.indexes) & set(self.unique)
        for keys in (*self.indexes, *self.unique):
            if not keys or keys in repeated or keys == ("_id",) or len(set(keys)) < len(keys):
                raise DeclarationError(
                    f"an index of {self.name} cannot be created",
                    got=keys,
                    hint="name each column and each index once; _id has its own index",
                )

    @classmethod
    def declared_by(cls, sink: Sink) -> dict[str, Any]:
        database, collection = sink.target
        return {
            "database": database,
            "collection": collection,
            "indexes": sink.indexes,
            "unique": sink.unique_indexes,
        }

    @property
    def name(self) -> str:
        return f"mongodb:{self.database}.{self.collection}"

    @property
    def tombstone_collection(self) -> str:
        return self.collection + TOMBSTONE_SUFFIX

    def body(self) -> list[Column]:
        return [F.col("doc")]
