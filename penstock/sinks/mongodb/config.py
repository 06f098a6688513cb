"""MongoDB as a sink's store: what is declared of it, and what it takes.

A document is `_id`, the id as text; the columns of the SELECT; `_v`, its version; and `_at`, its time, where it
expires. What was deleted is kept as `_id` and `_v` in `<collection>.graves`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F
from penstock.sinks.core.document import Documents

if TYPE_CHECKING:
    from pyspark.sql import Column

Keys = tuple[str, ...]

VERSION, AT, MARKED, GRAVES = "_v", "_at", "deleted", ".graves"
# In the collection of graves: where the record of an upsert lies whose version is ahead of the record's own time.
AHEAD = "ahead"
OWN = ("_id", VERSION, AT)
# The error of a unique index.
DUPLICATE = 11000


@dataclass(frozen=True)
class Limits:
    """What MongoDB holds. id_bytes: its own is the document's, but an id is sent several times in a request.

    name_bytes: of a database; namespace_bytes: of database, dot, collection and what the sink adds to its name.
    """

    document_bytes: int = 16 * 1024 * 1024
    id_bytes: int = 4096
    depth: int = 100
    decimal_digits: int = 34
    name_bytes: int = 63
    namespace_bytes: int = 235
    rows: int = 1000
    request_bytes: int = 8 * 1024 * 1024
    grave_days: int = 7


LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class MongoDB(Documents):
    """A collection. indexes, unique: columns of each index that it must have, ascending."""

    connection: str = "mongodb"
    database: str
    collection: str
    indexes: tuple[Keys, ...] = ()
    unique: tuple[Keys, ...] = ()

    writer: ClassVar[str] = "penstock.sinks.mongodb.writer:open_collection"

    def __post_init__(self) -> None:
        for wrong, got in (
            (_unfit(self.database, '/\\. "$*<>:|?\0', LIMITS.name_bytes), self.database),
            (_unfit(self.collection, "$\0", LIMITS.namespace_bytes - len(self.database.encode())), self.collection),
            ("begins with system." if self.collection.startswith("system.") else "", self.collection),
            ("ends with .graves" if self.collection.endswith(GRAVES) else "", self.collection),
        ):
            if wrong:
                raise DeclarationError(f"a name of MongoDB {wrong}", got=repr(got), hint="choose another name")
        if self.suffix and self.tombstones == "mark":
            raise DeclarationError(
                f"a tombstone of {self.name} cannot tell which collection its document is in",
                got="TOMBSTONES MARK with SUFFIX",
                hint="TOMBSTONES DELETE, which looks for it, or leave SUFFIX out",
            )
        twice = set(self.indexes) & set(self.unique)
        for keys in (*self.indexes, *self.unique):
            if not keys or keys in twice or keys == ("_id",) or len(set(keys)) < len(keys):
                raise DeclarationError(
                    f"an index of {self.name} is none that can be made",
                    got=keys,
                    hint="name different columns, none of it twice; _id has its own index",
                )

    @property
    def name(self) -> str:
        return f"mongodb:{self.database}.{self.collection}"

    def body(self) -> list[Column]:
        return [F.col("doc")]


def _unfit(name: str, signs: str, size: int) -> str:
    if not name:
        return "is empty"
    if found := [sign for sign in signs if sign in name]:
        return f"has {found[0]!r} in it"
    return f"is longer than {size} bytes" if len(name.encode()) > size else ""
