"""Valid and invalid records of every topic, per second of event time. Topics that are created later are included."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.quality import rules, validity
from penstock.registry.endpoint import is_configured
from penstock.settings import settings
from penstock.streams import EmitChanges, F, Input, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

METRICS = Topic("metrics", partitions=2, compacted=True)

# All topics except the output of this stream, and those that by their names only Penstock and the broker write.
EVERY_TOPIC = r"(?!metrics$|__|penstock\.).*(?<!-dead-letter)(?<!-late)"

RULES = rules.load(settings().project / "sql" / "quality")


def transform(records: DataFrame) -> DataFrame:
    """Returns `topic STRING, window BIGINT, status STRING, count BIGINT`; `window` is its start, epoch ms."""
    second = F.window("event_time", "1 second").alias("w")
    return (
        validity.add_status(records, RULES)
        .groupBy("topic", second, "status")
        .agg(F.sum("n").alias("count"))
        .select("topic", F.unix_millis("w.start").alias("window"), "status", "count")
    )


RECORDS = Input(pattern=EVERY_TOPIC, combine=validity.combiner(RULES, by_registry=is_configured()))

STREAM = Stream(
    name="topic-quality",
    app="quality",
    inputs={"records": RECORDS},
    transform=transform,
    output=TopicOutput(METRICS, key=("topic", "window", "status"), value="count"),
    output_mode=EmitChanges(window=timedelta(seconds=1), grace=timedelta(hours=1)),
    shuffle_partitions=2,
    # A backlog is read in several batches, so that a crash repeats only one of them.
    max_records=5_000_000,
    every=10.0,
)
