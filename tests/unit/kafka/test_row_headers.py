"""Headers of rows do not make a record too large that its topic takes without them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.kafka.limits import SizeLimit
from penstock.kafka.topic_writer import TopicWriter

HEADERS = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]


def sent(rows: pa.Table, limit: SizeLimit) -> list[Any]:
    writer = object.__new__(TopicWriter)
    writer._limits, writer._truncated_topics = {"t": limit}, set()
    return [(record.value, record.headers) for record in writer._messages("t", rows)]


def rows(*values: bytes) -> pa.Table:
    headers = pa.array([HEADERS, None][: len(values)], pa.map_(pa.string(), pa.binary()))
    return pa.table({"key": pa.nulls(len(values), pa.binary()), "value": list(values), "headers": headers})


def test_a_row_has_its_headers_or_none() -> None:
    assert sent(rows(b"a", b"b"), SizeLimit("t")) == [(b"a", tuple(HEADERS)), (b"b", ())]


def test_a_row_at_the_limit_is_sent_without_headers() -> None:
    limit = SizeLimit("t", 1000, compressed=False)
    fits, barely = b"a" * 400, b"a" * 480
    assert sent(rows(fits), limit) == [(fits, tuple(HEADERS))]
    assert sent(rows(barely), limit) == [(barely, ())]
