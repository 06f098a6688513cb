"""Numbers the rows of each record, in columns: Arrow batches in, Arrow batches out.

Spark makes the rows of a record one after another, in the order of the array that is exploded, so a row gets the same
number each time the record is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.model.lazy_spark import F, T
from penstock.model.sink import INDEX_COLUMN, PATH_COLUMN, RECORD_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_row_index(rows: DataFrame) -> DataFrame:
    """Rows with `_number BIGINT`, from 0, among the rows of the same record and the same SELECT.

    The record loses its headers, as Spark is slow to send lists.
    """
    rows = rows.withColumn(RECORD_COLUMN, F.col(RECORD_COLUMN).dropFields("headers"))
    schema = T.StructType([*rows.schema.fields])
    return rows.mapInArrow(add_row_index, schema.add(INDEX_COLUMN, T.LongType(), nullable=False))


def add_row_index(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of a task, in order, each with the column of numbers."""
    last: tuple[Any, ...] | None = None
    count = 0
    for batch in batches:
        size = batch.num_rows
        if not size:
            continue
        record: Any = batch.column(RECORD_COLUMN)
        keys = [record.field("topic"), record.field("partition"), record.field("offset"), batch.column(PATH_COLUMN)]
        first = np.ones(size, np.bool_)
        first[1:] = False
        for column in keys:
            values = column.dictionary_encode().indices.to_numpy()
            first[1:] |= values[1:] != values[:-1]
        at = np.arange(size)
        start = np.maximum.accumulate(np.where(first, at, 0))
        numbers = at - start
        if last == tuple(column[0].as_py() for column in keys):
            # The first rows continue the last record of the batch before.
            numbers[start == 0] += count
        last, count = tuple(column[-1].as_py() for column in keys), int(numbers[-1]) + 1
        yield batch.append_column(INDEX_COLUMN, pa.array(numbers, pa.int64()))
