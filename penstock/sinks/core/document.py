"""What a store gets of a sink's rows, whichever store it is.

The transform of a sink gives rows of one shape: `doc STRUCT`, the columns of its SELECT; `id STRING`;
`version BIGINT`; `deleted BOOLEAN`; `at TIMESTAMP`, from which the suffix of the place is made; `refused STRING`, why
the row is none that a store can take, else NULL; `record STRUCT`, the record it was made of.

A store writes a row only where it has no newer version of the same id, deleted or not. So to write rows again changes
nothing, in whatever order.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from penstock.model.lazy_spark import F
from penstock.model.output import Delivery, Output
from penstock.model.sink import Tombstones, Unit
from penstock.model.topic import Topic, side_topic

if TYPE_CHECKING:
    from pyspark.sql import Column

# Where a row's record lies; a row that a store refuses is put aside as that record.
ORIGIN = ("topic", "partition", "offset")
# Milliseconds since 1970 in the upper bits, below 2^42 (the year 2109), and the lower bits of the offset.
OFFSET_BITS = 21
LAST_MS = 2**42 - 1


@dataclass(frozen=True)
class Figures:
    """What a writer has done since it was opened: rows written, rows that the store had newer versions of, items sent
    again, rows refused, bytes of documents sent."""

    written: int = 0
    conflicts: int = 0
    retried: int = 0
    refused: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Documents(Output):
    """A place in a store outside Kafka that takes documents by id and version.

    follows: whether a tombstone is newer than what lies before it in its partition, whatever time that names: rows then
    say of which record they are.
    """

    sink: str
    connection: str
    suffix: Unit | None = None
    tombstones: Tombstones = "delete"
    parallel: int = 2
    expire_seconds: int = 0
    dead_letters: str = ""
    follows: bool = False

    delivery: ClassVar[Delivery] = "upsert"

    @property
    def keyed(self) -> bool:
        return True

    @property
    def store(self) -> Hashable:
        return self.name

    @property
    def dead_letter_topic(self) -> Topic:
        return side_topic(self.dead_letters or f"{self.sink}-dead-letter")

    def columns(self) -> list[Column]:
        """`id BINARY, version BIGINT, deleted BOOLEAN, at TIMESTAMP, refused STRING`, the place of the record, `body`;
        if it follows, also `tombstone BOOLEAN`, a record without a value, and `ahead BOOLEAN`, a version of a later
        time than the record's own.

        Text as bytes: a STRING of Spark need not be UTF-8, and Arrow's text must be.
        """
        return [
            F.col("id").cast("binary").alias("id"),
            F.col("version").cast("bigint").alias("version"),
            F.coalesce(F.col("deleted"), F.lit(False)).alias("deleted"),
            F.col("at").cast("timestamp").alias("at"),
            F.col("refused").cast("binary").alias("refused"),
            *(self._following() if self.follows else ()),
            *(F.col(f"record.{name}").alias(name) for name in ORIGIN),
            *self.body(),
        ]

    def _following(self) -> list[Column]:
        time, own = F.shiftright(F.col("version").cast("bigint"), OFFSET_BITS), F.unix_millis("record.timestamp")
        return [F.isnull("record.value").alias("tombstone"), F.coalesce(time > own, F.lit(False)).alias("ahead")]

    def body(self) -> list[Column]:
        """What the store takes of `doc`, each with an alias."""
        raise NotImplementedError
