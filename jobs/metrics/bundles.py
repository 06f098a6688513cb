"""First stage: the receipts of a metric are bundled over some minutes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.metrics import metrics_settings, receipts
from jobs.metrics.statistics import BUNDLE, bundle_receipts
from penstock.streams import EmitChanges, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

S = metrics_settings()

BUNDLES = Topic("metric-bundles", partitions=4, retention=timedelta(days=2))


def transform(receipts: DataFrame) -> DataFrame:
    return bundle_receipts(receipts, S.bundle, S.decimals, S.distinct)


STREAM = Stream(
    name="metric-bundles",
    app="metrics",
    inputs={"receipts": receipts(S.bundle, late="keep")},
    transform=transform,
    output=TopicOutput(BUNDLES, key="key", value=BUNDLE),
    output_mode=EmitChanges(window=S.bundle, grace=S.grace),
    shuffle_partitions=2,
    every=10.0,
    # The values of all bundles of a batch are in memory together.
    max_records=2_000_000,
)
