"""Rows of a record are numbered from 0, also across Arrow batches."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.model.sink import INDEX_COLUMN, PATH_COLUMN, RECORD_COLUMN
from penstock.sinks.core.row_index import add_row_index

ROW = tuple[str, int, int, str]


def batch(rows: list[ROW]) -> pa.RecordBatch:
    record = [{"topic": topic, "partition": partition, "offset": offset} for topic, partition, offset, _ in rows]
    layout = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    return pa.RecordBatch.from_arrays(
        [pa.array(record, layout), pa.array([row[3] for row in rows])], [RECORD_COLUMN, PATH_COLUMN]
    )


@pytest.mark.parametrize("seed", range(20))
def test_numbers_are_the_same_however_the_rows_are_split(seed: int) -> None:
    chance = random.Random(seed)
    places = [(t, p, o, way) for t in ("a", "b") for p in (0, 1) for o in range(6) for way in ("1.", "2.")]
    chance.shuffle(places)
    rows = [(place, number) for place in places for number in range(chance.choice([1, 1, 2, 5]))]
    cuts = sorted(chance.choices(range(len(rows) + 1), k=chance.choice([0, 1, 10, 60])))
    ends = zip([0, *cuts], [*cuts, len(rows)], strict=True)
    parts = [batch([place for place, _ in rows[start:end]]) for start, end in ends]
    found = [number for part in add_row_index(iter(parts)) for number in part.column(INDEX_COLUMN).to_pylist()]
    assert found == [number for _, number in rows]
