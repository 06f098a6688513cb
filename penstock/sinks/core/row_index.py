"""The rows of one record counted, in columns: Arrow batches in, Arrow batches out.

Spark makes the rows of a record one behind another, in the order of what was taken apart, so they get the same numbers
each time the record is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.model.lazy_spark import F, T
from penstock.model.sink import NUMBER, WAY, WHOLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def numbered(rows: DataFrame) -> DataFrame:
    """Rows with `_number BIGINT`, from 0, of each among those of its record that went the same way; the record without
    its headers, as Spark is slow to send lists."""
    rows = rows.withColumn(WHOLE, F.col(WHOLE).dropFields("headers"))
    layout = T.StructType([*rows.schema.fields])
    return rows.mapInArrow(counted, layout.add(NUMBER, T.LongType(), nullable=False))


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of a task, one behind another, each with the column of numbers."""
    last: tuple[Any, ...] | None = None
    count = 0
    for batch in batches:
        size = batch.num_rows
        if not size:
            continue
        record: Any = batch.column(WHOLE)
        places = [record.field("topic"), record.field("partition"), record.field("offset"), batch.column(WAY)]
        first = np.ones(size, np.bool_)
        first[1:] = False
        for column in places:
            values = column.dictionary_encode().indices.to_numpy()
            first[1:] |= values[1:] != values[:-1]
        at = np.arange(size)
        began = np.maximum.accumulate(np.where(first, at, 0))
        numbers = at - began
        if last == tuple(column[0].as_py() for column in places):
            # The record's rows went on from the batch before.
            numbers[began == 0] += count
        last, count = tuple(column[-1].as_py() for column in places), int(numbers[-1]) + 1
        yield batch.append_column(NUMBER, pa.array(numbers, pa.int64()))
