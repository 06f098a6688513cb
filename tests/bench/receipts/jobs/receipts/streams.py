"""The hot jobs as they are declared, for the throughput benchmarks: an app each, batches without a pause."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.metrics import bundles, metrics_settings, receipts, summaries
from jobs.metrics.statistics import KEY, MOMENTS, quantile_names, summarize
from jobs.presence import walk_ins
from jobs.quality import counts
from penstock.streams import EmitChanges, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

S = metrics_settings()


def one_stage(receipts: DataFrame) -> DataFrame:
    return summarize(receipts, S.summary, S.decimals, S.quantiles)


STREAMS = [
    # The pattern keeps what the benchmark itself writes out of the count.
    replace(counts.STREAM, inputs={"records": replace(counts.RECORDS, pattern="receipts")}, every=0.0),
    Stream(
        name="one-stage-summaries",
        app="one-stage",
        inputs={"receipts": receipts(S.summary)},
        transform=one_stage,
        output=TopicOutput(
            Topic("one-stage-summaries", partitions=2, compacted=True),
            key=KEY,
            value=(*KEY, *MOMENTS, *quantile_names(S.quantiles)),
        ),
        output_mode=EmitChanges(window=S.summary, grace=timedelta(hours=1)),
        shuffle_partitions=int(os.environ.get("SHUFFLE_PARTITIONS", bundles.STREAM.shuffle_partitions)),
        max_records=bundles.STREAM.max_records,
    ),
    replace(bundles.STREAM, app="two-stages", every=0.0),
    replace(summaries.STREAM, app="two-stages", every=0.0),
    replace(walk_ins.STREAM, app="walk-ins", every=0.0),
]
