"""Streams that are stopped, moved and started again."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.streams import EmitChanges, F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MINUTE = 1_700_000_400_000
EVENTS = Topic("events", partitions=1)
OUT = Topic("out", partitions=1)
GIVEN = Input(
    EVENTS, schema="n BIGINT NOT NULL, at BIGINT NOT NULL", event_time="timestamp_millis(at)", dead_letters="count"
)


def each(events: DataFrame) -> DataFrame:
    return events.select(F.col("n").cast("string").alias("key"), "n")


def counted(events: DataFrame) -> DataFrame:
    rows = events.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("n"))
    return rows.select(F.unix_millis("w.start").alias("key"), "n")


EACH = Stream("each", "tests", {"events": GIVEN}, each, TopicOutput(OUT, key="key", value="n"), Stateless())
COUNTS = Stream(
    "counts", "tests", {"events": GIVEN}, counted, TopicOutput(OUT, key="key", value="n"),
    EmitChanges(window=timedelta(minutes=1), grace=timedelta(minutes=5)),
)  # fmt: skip


def events(*numbers: int) -> list[Record]:
    return [Record("events", None, json.dumps({"n": n, "at": MINUTE})) for n in numbers]


def values(bootstrap: str) -> list[int]:
    return [int(r.value or 0) for r in read(bootstrap, OUT.name)]
