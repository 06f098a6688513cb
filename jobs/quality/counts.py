"""Valid and invalid records of every topic, per second of their own time, topics created later included."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.quality import rules
from penstock.settings import settings
from penstock.streams import F, Input, Stream, Topic, Updates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

METRICS = Topic("metrics", partitions=2, compacted=True)

# Its own output must not feed it, nor what only Penstock and the broker write.
EVERY_TOPIC = r"(?!metrics$|__|penstock\.).*(?<!-dead-letter)(?<!-late)"

RULES = rules.load(settings().project / "sql" / "quality")


def transform(records: DataFrame) -> DataFrame:
    """topic STRING, window BIGINT (start of the second, epoch ms), status STRING, count BIGINT."""
    return counted(rules.judged(records, RULES))


def counted(records: DataFrame) -> DataFrame:
    second = F.window("event_time", "1 second").alias("w")
    return (
        records.groupBy("topic", second, "status")
        .agg(F.count("*").alias("count"))
        .select("topic", F.unix_millis("w.start").alias("window"), "status", "count")
    )


STREAM = Stream(
    name="topic-quality",
    app="quality",
    inputs={"records": Input(pattern=EVERY_TOPIC)},
    transform=transform,
    output=METRICS,
    key=("topic", "window", "status"),
    value="count",
    promise=Updates(window=timedelta(seconds=1), late_by=timedelta(hours=1)),
    shuffle_partitions=2,
    every=10.0,
)
