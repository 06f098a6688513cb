"""Backfills of each kind, whose process is killed several times."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.streams import Archive, Backfill, EmitChanges, F, Input, RowsQuery, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT = "who STRING NOT NULL, n BIGINT NOT NULL, at BIGINT NOT NULL"
EVENTS = Topic("events", partitions=2, heartbeat_every=0)
ARCHIVE = Archive(
    "events-archive",
    EVENTS,
    bucket="lake",
    prefix="backfills",
    event_time="timestamp_millis(cast(get_json_object(cast(value as string), '$.at') as bigint))",
)


def transform(events: DataFrame) -> DataFrame:
    rows = events.groupBy(F.window("event_time", "1 minute").alias("w"), (F.col("n") % 10).alias("digit"))
    counts = rows.agg(F.count("*").alias("count"), F.sum("n").alias("sum"))
    return counts.select(F.unix_millis("w.start").alias("start"), "digit", "count", "sum")


STREAM = Stream(
    name="digits",
    app="backfills",
    inputs={"events": Input(EVENTS, schema=EVENT, event_time="timestamp_millis(at)")},
    transform=transform,
    output=TopicOutput(Topic("digits", partitions=2, compacted=True), key=("start", "digit"), value=("count", "sum")),
    output_mode=EmitChanges(window=timedelta(minutes=1), grace=timedelta(minutes=10)),
)

COPY = Topic("events-copy", partitions=3, heartbeat_every=0, config={"retention.ms": "-1"})
TOTALS = TopicOutput(Topic("backfilled-totals", partitions=2, compacted=True), key=("who",), value=("who", "total"))
SLOW_QUERY = """SELECT 'all' AS who, sum(n)::BIGINT AS total,
  (SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b) AS hours FROM records"""
BACKFILLS = [
    Backfill("unchanged", ARCHIVE, COPY),
    Backfill(
        "by-query", ARCHIVE, TOTALS,
        rows=RowsQuery(
            "timestamp_millis(at)", "SELECT who, sum(n)::BIGINT AS total FROM records GROUP BY who", schema=EVENT
        ),
    ),
    Backfill("through-a-stream", ARCHIVE, STREAM),
    # A query that takes hours, so that it is stopped while it runs.
    Backfill(
        "slow-query", ARCHIVE, TOTALS,
        rows=RowsQuery("timestamp_millis(at)", SLOW_QUERY, schema=EVENT),
    ),
]  # fmt: skip
