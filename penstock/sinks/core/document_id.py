"""Makes the id of a document: text that no two keys share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.lazy_spark import F, T
from penstock.model.output import JSON
from penstock.model.sink import INDEX_COLUMN, PATH_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

NOT_TEXT = "is not UTF-8, so it has no text of its own"


@dataclass(frozen=True)
class CheckedColumn:
    """A value of each row. error: STRING, why the store cannot take it, else NULL."""

    value: Column
    error: Column


def of_key() -> CheckedColumn:
    """The record's key as text."""
    key = F.col("record.key").cast("string")
    error = F.when(key.isNull(), F.lit("the record has no key")).when(key == "", F.lit("the record's key is empty"))
    return CheckedColumn(key, error.when(~F.is_valid_utf8(key), F.lit(f"the record's key {NOT_TEXT}")))


def of_record(rows: DataFrame) -> CheckedColumn:
    """Topic, partition, offset and time of the record, and the row's number within it.

    The time tells the record from one of a topic that was deleted and created again under the same name.
    """
    time, number = F.unix_millis("record.timestamp"), F.col(INDEX_COLUMN) if INDEX_COLUMN in rows.columns else F.lit(0)
    parts = [F.col("record.topic"), F.col("record.partition"), F.col("record.offset"), time]
    last = F.concat(F.col(PATH_COLUMN), number.cast("string"))
    return CheckedColumn(
        F.concat_ws("/", *(part.cast("string") for part in (*parts, last))), F.lit(None).cast("string")
    )


def of_values(columns: Sequence[tuple[str, Column, DataType]], *, nullable: bool) -> CheckedColumn:
    """The text of one column, or a JSON array of several. nullable: whether a value may be NULL."""
    error: Column = F.lit(None).cast("string")
    for name, column, kind in columns:
        reason = F.lit(None).cast("string")
        if not nullable:
            reason = F.when(column.isNull(), F.lit(f"the key, {name}, is NULL"))
        if isinstance(kind, T.StringType):
            reason = F.coalesce(reason, F.when(~F.is_valid_utf8(column), F.lit(f"the key, {name}, {NOT_TEXT}")))
        error = F.coalesce(error, reason)
    if len(columns) == 1 and not nullable:
        name, column, kind = columns[0]
        text = F.base64(column) if isinstance(kind, T.BinaryType) else column.cast("string")
        return CheckedColumn(text, F.coalesce(error, F.when(text == "", F.lit(f"the key, {name}, is empty"))))
    # Each as JSON has it, without the brackets of an array of its own.
    arrays = [F.to_json(F.array(column), JSON) for _, column, _ in columns]
    values = [F.substr(one, F.lit(2), F.length(one) - 2) for one in arrays]
    return CheckedColumn(F.concat(F.lit("["), F.concat_ws(",", *values), F.lit("]")), error)
