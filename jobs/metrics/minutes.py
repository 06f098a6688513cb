"""One final row per metric and minute, which never changes: for charts and alarms."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.metrics import metrics_settings, receipts
from jobs.metrics.statistics import KEY, MOMENTS, quantile_names, summarize
from penstock.streams import EmitFinal, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


S = metrics_settings()
MINUTE = timedelta(minutes=1)


def transform(receipts: DataFrame) -> DataFrame:
    return summarize(receipts, MINUTE, S.decimals, S.quantiles)


STREAM = Stream(
    name="metric-minutes",
    app="metrics",
    inputs={"receipts": receipts(MINUTE)},
    transform=transform,
    output=TopicOutput(
        Topic("metric-minutes", partitions=2, retention=timedelta(days=2)),
        key=KEY,
        value=(*KEY, *MOMENTS, *quantile_names(S.quantiles)),
    ),
    output_mode=EmitFinal(window=MINUTE, grace=timedelta(seconds=10)),
    every=10.0,
    partition="hour",
)
