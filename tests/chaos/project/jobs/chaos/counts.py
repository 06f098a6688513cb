"""Counts numbered records twice: as updated totals and as final ones, so that any loss or repetition shows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.streams import EmitChanges, EmitFinal, F, Input, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMBERED = "n BIGINT NOT NULL, at BIGINT NOT NULL"
numbers = Input(
    Topic("numbers", partitions=2, heartbeat_every=0), schema=NUMBERED, event_time="timestamp_millis(at)"
)  # fmt: skip


def transform(numbers: DataFrame) -> DataFrame:
    return (
        numbers.groupBy(F.window("event_time", "10 seconds"))
        .agg(F.count("*").alias("count"), F.sum("n").alias("sum"))
        .select(F.unix_millis("window.start").alias("start"), "count", "sum")
    )


STREAMS = [
    Stream(
        name="totals",
        app="chaos",
        inputs={"numbers": numbers},
        transform=transform,
        output=TopicOutput(Topic("totals", partitions=1, compacted=True), key="start", value=("count", "sum")),
        output_mode=EmitChanges(window=timedelta(seconds=10), grace=timedelta(minutes=10)),
    ),
    Stream(
        name="finals",
        app="chaos",
        inputs={"numbers": numbers},
        transform=transform,
        output=TopicOutput(Topic("finals", partitions=1), key="start", value=("count", "sum")),
        # Longer than any breaker lasts: what arrives after an outage is not late.
        output_mode=EmitFinal(window=timedelta(seconds=10), grace=timedelta(minutes=2)),
    ),
]
