"""The id of a document: text that no two keys share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.lazy_spark import F, T
from penstock.model.output import JSON
from penstock.model.sink import NUMBER, WAY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

NOT_TEXT = "is not UTF-8, and so has no text that is its alone"


@dataclass(frozen=True)
class Part:
    """Of a row. wrong: STRING, why the store cannot take it, else NULL."""

    value: Column
    wrong: Column


def of_key() -> Part:
    """The record's key as text."""
    key = F.col("record.key").cast("string")
    wrong = F.when(key.isNull(), F.lit("the record has no key")).when(key == "", F.lit("the record's key is empty"))
    return Part(key, wrong.when(~F.is_valid_utf8(key), F.lit(f"the record's key {NOT_TEXT}")))


def of_record(rows: DataFrame) -> Part:
    """Of topic, partition, offset and time of the record, and the row's number within it.

    The time tells the record from that of a topic of the same name that was made again.
    """
    time, number = F.unix_millis("record.timestamp"), F.col(NUMBER) if NUMBER in rows.columns else F.lit(0)
    parts = [F.col("record.topic"), F.col("record.partition"), F.col("record.offset"), time]
    way = F.concat(F.col(WAY), number.cast("string"))
    return Part(F.concat_ws("/", *(part.cast("string") for part in (*parts, way))), F.lit(None).cast("string"))


def of_values(columns: Sequence[tuple[str, Column, DataType]], *, absent: bool) -> Part:
    """The text of one column, or a JSON array of several. absent: whether one may be NULL."""
    wrong: Column = F.lit(None).cast("string")
    for name, column, kind in columns:
        reason = F.lit(None).cast("string")
        if not absent:
            reason = F.when(column.isNull(), F.lit(f"the key, {name}, is NULL"))
        if isinstance(kind, T.StringType):
            reason = F.coalesce(reason, F.when(~F.is_valid_utf8(column), F.lit(f"the key, {name}, {NOT_TEXT}")))
        wrong = F.coalesce(wrong, reason)
    if len(columns) == 1 and not absent:
        name, column, kind = columns[0]
        text = F.base64(column) if isinstance(kind, T.BinaryType) else column.cast("string")
        return Part(text, F.coalesce(wrong, F.when(text == "", F.lit(f"the key, {name}, is empty"))))
    # Each as JSON has it, without the brackets of an array of its own.
    whole = [F.to_json(F.array(column), JSON) for _, column, _ in columns]
    written = [F.substr(one, F.lit(2), F.length(one) - 2) for one in whole]
    return Part(F.concat(F.lit("["), F.concat_ws(",", *written), F.lit("]")), wrong)
