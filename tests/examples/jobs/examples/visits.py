"""Chains of two stateful steps: visits of an hour, and clicks of a minute, each click once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.streams import EmitFinal, F, Input, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE, HOUR, GAP = timedelta(minutes=1), timedelta(hours=1), timedelta(minutes=5)
CLICKS = Input(
    Topic("clicks", partitions=2),
    schema="id BIGINT NOT NULL, who STRING NOT NULL, at TIMESTAMP NOT NULL",
    event_time="at",
)


def visits(clicks: DataFrame) -> DataFrame:
    """A visit ends when its visitor does not click for five minutes, and counts in the hour of its end."""
    each = clicks.groupBy("who", F.session_window("event_time", "5 minutes")).agg(F.count("*").alias("clicks"))
    hours = each.groupBy(F.window(F.window_time("session_window"), "1 hour").alias("w"))
    return hours.agg(F.count("*").alias("visits"), F.max("clicks").alias("longest")).select(
        F.unix_millis("w.start").alias("hour"), "visits", "longest"
    )


def once(clicks: DataFrame) -> DataFrame:
    """A click is the same if its id comes again within the grace."""
    minutes = clicks.dropDuplicatesWithinWatermark(["id"]).groupBy(F.window("event_time", "1 minute").alias("w"))
    return minutes.agg(F.count("*").alias("clicks")).select(F.unix_millis("w.start").alias("minute"), "clicks")


def busiest(clicks: DataFrame) -> DataFrame:
    """Of each hour the most clicks that one of its minutes had."""
    minutes = clicks.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("clicks"))
    hours = minutes.groupBy(F.window(F.window_time("w"), "1 hour").alias("h")).agg(F.max("clicks").alias("most"))
    return hours.select(F.unix_millis("h.start").alias("hour"), "most")


STREAMS = [
    Stream(
        name="visits",
        app="examples",
        inputs={"clicks": CLICKS},
        transform=visits,
        output=TopicOutput(Topic("visits", partitions=1), key="hour", value=("visits", "longest")),
        output_mode=EmitFinal(window=HOUR, grace=MINUTE, first_step=GAP),
        steps=2,
    ),
    Stream(
        name="clicks-once",
        app="examples",
        inputs={"clicks": CLICKS},
        transform=once,
        output=TopicOutput(Topic("clicks-once", partitions=1), key="minute", value="clicks"),
        output_mode=EmitFinal(window=MINUTE, grace=MINUTE, first_step=timedelta(0)),
        steps=2,
    ),
    Stream(
        name="busiest",
        app="examples",
        inputs={"clicks": CLICKS},
        transform=busiest,
        output=TopicOutput(Topic("busiest", partitions=1), key="hour", value="most"),
        output_mode=EmitFinal(window=HOUR, grace=MINUTE, first_step=timedelta(0)),
        steps=2,
    ),
]
