"""Checks whether an input accepts records, before they are sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from penstock.codec.columnar import BAD_COLUMN, RECORD_METADATA_TYPE, RECORD_TYPE, SOURCE_RECORD_COLUMN, RecordDecoder
from penstock.codec.event_time import LAST
from penstock.model.input import Input


def rejections(input_: Input, records: Sequence[tuple[bytes | None, bytes | None]]) -> list[str | None]:
    """Decodes records by an input's schema as a stream would.

    Args:
        input_: an input with a schema.
        records: key and value of each record.

    Returns:
        For each record the reason why it would be a dead letter, or None. An event time that only Spark can evaluate
        is not checked.
    """
    decoder = RecordDecoder.of_input(input_, combine=False, keep_records=True)
    now = int(time.time() * 1e6)
    horizon = LAST if input_.max_ahead is None else now + input_.max_ahead // timedelta(microseconds=1)
    size = len(records)
    kinds = {field.name: field.type for field in (*RECORD_TYPE, *RECORD_METADATA_TYPE)}
    columns: dict[str, pa.Array[Any]] = {
        "key": pa.array([key for key, _ in records], kinds["key"]),
        "value": pa.array([value for _, value in records], kinds["value"]),
        "topic": pa.repeat(input_.source, size),
        "partition": pa.repeat(pa.scalar(0, kinds["partition"]), size),
        "offset": pa.array(range(size), kinds["offset"]),
        "timestamp": pa.repeat(pa.scalar(now, kinds["timestamp"]), size),
        "headers": pa.nulls(size, kinds["headers"]),
        "clock": pa.repeat(pa.scalar(horizon, pa.int64()), size),
    }
    columns_of_batch = pa.record_batch({name: columns[name] for name in decoder.input_columns})
    reasons: list[str | None] = [None] * size
    for batch in decoder(iter([columns_of_batch])):
        record: Any
        for is_bad, record in zip(batch[BAD_COLUMN].to_pylist(), batch[SOURCE_RECORD_COLUMN].to_pylist(), strict=True):
            if is_bad:
                reasons[record["offset"]] = record["reason"]
    return reasons
