"""Records through a reading, as Spark's workers give them to it, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.codec.arrow_types import ARROW_TYPES
from penstock.codec.columnar import RecordDecoder
from penstock.codec.heartbeat import HEARTBEAT_KEY

FAR = 2**62
NAMES = {
    "beat": "int",
    "key": "binary",
    "value": "binary",
    "partition": "int",
    "offset": "bigint",
    "clock": "bigint",
    "timestamp": "timestamp",
}


def batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    times: Sequence[int] | None = None,
    topics: Sequence[str] | None = None,
    horizon: int = FAR,
    whole: bool = False,
) -> pa.RecordBatch:
    """Raw records of partition 0; their offsets number them. times: their own, where those are their event times, else
    the horizon is the latest that is allowed; both in epoch microseconds. whole: with their own times, which are their
    offsets in microseconds, and a header."""
    n = len(values)
    given: dict[str, Sequence[Any]] = {
        "beat": [0 if key == HEARTBEAT_KEY else None for key in keys or [None] * n],
        "key": keys or [None] * n,
        "value": values,
        "partition": [0] * n,
        "offset": range(n),
        "clock": times or [0 if topics else horizon] * n,
    }
    columns = {name: pa.array(column, ARROW_TYPES[NAMES[name]]) for name, column in given.items()}
    if whole:
        columns["timestamp"] = pa.array(range(n), ARROW_TYPES["timestamp"])
        columns["headers"] = pa.array(['[{"key":"h","value":"/w=="}]'] * n)
    if topics:
        columns["topic"] = pa.array(topics, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def run(reading: RecordDecoder, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a reading; of records that are kept in the order of their offsets."""
    rows = [row for found in reading(iter(batches)) for row in found.to_pylist()]
    return sorted(rows, key=lambda row: row["_record"]["offset"]) if reading.keep_records else rows
