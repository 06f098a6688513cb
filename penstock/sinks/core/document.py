"""The rows that a store gets, whichever store it is.

The transform of a sink gives rows of one shape:

- `doc STRUCT`: the columns of its SELECT
- `id STRING`, `version BIGINT`, `deleted BOOLEAN`
- `at TIMESTAMP`: makes the suffix of the index or collection
- `refused STRING`: why no store can take the row, else NULL
- `record STRUCT`: the record that the row was made of

A store writes a row only if it has no newer version of the same id, deleted or not. So writing rows again, in any
order, changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F
from penstock.model.mask import Mask
from penstock.model.output import Delivery, Output
from penstock.model.sink import Sink, Tombstones, Unit
from penstock.model.topic import Topic, side_topic

if TYPE_CHECKING:
    from pyspark.sql import Column

# The position of a row's record; a row that a store refuses becomes a dead letter of that record.
POSITION = ("topic", "partition", "offset")
# A version has milliseconds since 1970 in its upper bits, below 2^42 (the year 2109), then the offset's lower bits.
OFFSET_BITS = 21
LAST_MS = 2**42 - 1


@dataclass(frozen=True, kw_only=True)
class DocumentOutput(Output):
    """An index, a collection or a measurement of a store, which takes documents by id and version.

    Attributes:
        sink: name of the sink.
        connection: the store.
        suffix: unit of time for which there is an index or collection each.
        tombstones: what a record without a value does.
        parallel: requests at a time.
        expire_seconds: how long documents are kept; 0 for ever.
        dead_letters: topic for records that the store refuses.
        mask: columns that the transform has masked in `doc` and `id`.
        orders_tombstones: whether a tombstone is newer than what precedes it in its partition, whatever the time that
            names. Rows then say what kind of record they are of.
        store_schema: `module:function` of an output and a document's Arrow type: what is created in the store.
    """

    sink: str
    connection: str
    suffix: Unit | None = None
    tombstones: Tombstones = "delete"
    parallel: int = 2
    expire_seconds: int = 0
    dead_letters: str = ""
    orders_tombstones: bool = False
    mask: tuple[Mask, ...] = ()

    delivery: ClassVar[Delivery] = "upsert"
    store_schema: ClassVar[str]

    @classmethod
    def declared_by(cls, sink: Sink) -> dict[str, Any]:
        """The attributes that only this store's outputs have, as a sink declares them."""
        raise NotImplementedError

    @property
    def keyed(self) -> bool:
        return True

    @property
    def store(self) -> Hashable:
        return self.name

    @property
    def replacement_obstacle(self) -> str:
        if self.suffix:
            return f"{self.name} has an index or collection for each {self.suffix}, which are not exchanged at once"
        return super().replacement_obstacle

    @property
    def dead_letter_topic(self) -> Topic:
        return side_topic(self.dead_letters or f"{self.sink}-dead-letter")

    def columns(self) -> list[Column]:
        """The columns that a writer gets.

        `id BINARY, version BIGINT, deleted BOOLEAN, at TIMESTAMP, refused BINARY`, the position of the record and
        `body`. If tombstones are ordered also `tombstone BOOLEAN`, for a record without a value, and `future BOOLEAN`,
        for a version whose time is later than the record's.

        Text is sent as bytes: a STRING of Spark need not be UTF-8, and Arrow's text must be.
        """
        return [
            F.col("id").cast("binary").alias("id"),
            F.col("version").cast("bigint").alias("version"),
            F.coalesce(F.col("deleted"), F.lit(False)).alias("deleted"),
            F.col("at").cast("timestamp").alias("at"),
            F.col("refused").cast("binary").alias("refused"),
            *(self._order_columns() if self.orders_tombstones else ()),
            *(F.col(f"record.{name}").alias(name) for name in POSITION),
            *self.body(),
        ]

    def _order_columns(self) -> list[Column]:
        version_ms = F.shiftright(F.col("version").cast("bigint"), OFFSET_BITS)
        record_ms = F.unix_millis("record.timestamp")
        return [
            F.isnull("record.value").alias("tombstone"),
            F.coalesce(version_ms > record_ms, F.lit(False)).alias("future"),
        ]

    def body(self) -> list[Column]:
        """What the store takes of `doc`, each with an alias."""
        raise NotImplementedError

    def check_mark(self) -> None:
        """DeclarationError if a tombstone marks a document whose index or collection it does not name."""
        if self.suffix and self.tombstones == "mark":
            raise DeclarationError(
                f"{self.name} cannot mark documents: a tombstone does not say which index or collection holds one",
                got="TOMBSTONES MARK with SUFFIX",
                hint="TOMBSTONES DELETE, which looks for it, or leave SUFFIX out",
            )


def name_error(name: str, forbidden: re.Pattern[str], size: int) -> str:
    """What is wrong with a name; empty if nothing is. size: most bytes."""
    if not name:
        return "is empty"
    if match := forbidden.search(name):
        return f"has {match[0]!r} in it"
    return f"is longer than {size} bytes" if len(name.encode()) > size else ""
