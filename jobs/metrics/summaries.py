"""Second stage: summaries of bundles, updated while receipts arrive."""

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
    # With this grace no bundle is late here: the event time of a bundle is the start of its window, and the rows of a
    # stream advance the watermark of its readers no further than its own.
    output_mode=EmitChanges(window=S.summary, grace=S.grace + S.summary),
    shuffle_partitions=2,
    every=10.0,
)
