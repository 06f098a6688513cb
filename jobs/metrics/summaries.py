"""Second stage: summaries of the bundles, updated while receipts still come in."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.metrics import metrics_settings
from jobs.metrics.bundles import BUNDLES
from jobs.metrics.statistics import BUNDLE_SCHEMA, KEY, MOMENTS, largest_bundle, merge_bundles, quantile_names
from penstock.streams import EmitChanges, Input, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

S = metrics_settings()

SUMMARIES = Topic(
    "metric-summaries",
    partitions=2,
    compacted=True,
    config={
        "cleanup.policy": "compact,delete",
        "retention.ms": str(timedelta(days=30) // timedelta(milliseconds=1)),
    },
)


def transform(bundles: DataFrame) -> DataFrame:
    return merge_bundles(bundles, S.bundle, S.summary, S.quantiles)


STREAM = Stream(
    name="metric-summaries",
    app="metrics",
    inputs={
        "bundles": Input(BUNDLES, schema=BUNDLE_SCHEMA, event_time="timestamp_millis(window)", combine=largest_bundle())
    },
    transform=transform,
    output=TopicOutput(SUMMARIES, key=KEY, value=(*KEY, *MOMENTS, *quantile_names(S.quantiles))),
    # Whatever the first stage let in is in time here: its rows move time as far as it has come itself, and a heartbeat,
    # should the topic get some, no further than the clock. A bundle's own time is its window's start.
    output_mode=EmitChanges(window=S.summary, grace=S.grace + S.summary),
    shuffle_partitions=2,
    every=10.0,
)
