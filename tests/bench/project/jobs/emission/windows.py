"""Ten-second windows for the emission benchmark: one stream in the app `one`, six in the app `six`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.streams import EmitFinal, F, Input, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW = timedelta(seconds=10)


def transform(events: DataFrame) -> DataFrame:
    counted = events.groupBy(F.window("event_time", "10 seconds").alias("w")).agg(F.count("*").alias("count"))
    return counted.select(F.unix_millis("w.start").alias("window"), "count")


def stream(app: str, number: int) -> Stream:
    name = f"emission-{app}-{number}"
    return Stream(
        name=name,
        app=app,
        inputs={"events": Input(Topic(f"{name}-in"), schema="at BIGINT NOT NULL", event_time="timestamp_millis(at)")},
        transform=transform,
        output=TopicOutput(Topic(f"{name}-out", partitions=1), key="window", value=("window", "count")),
        output_mode=EmitFinal(window=WINDOW, grace=timedelta(0)),
    )


STREAMS = [stream("one", 1), *(stream("six", number) for number in range(1, 7))]
