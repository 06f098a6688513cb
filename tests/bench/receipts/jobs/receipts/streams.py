"""The hot jobs as they are declared, for the throughput benchmarks: an app each, batches without a pause."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.metrics import bundles, metrics_settings, receipts, summaries
from jobs.metrics.statistics import KEY, MOMENTS, quantile_names, summarize
from jobs.presence import walk_ins
from jobs.quality import counts
from penstock.streams import Avro, EmitChanges, Protobuf, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.streams import Input

S = metrics_settings()
# As in tests/bench/peer.
FOLDER = Path(__file__).parents[2]
FORMATS = {"avro": Avro.read(FOLDER / "receipt.avsc"), "protobuf": Protobuf.read(FOLDER / "receipt.proto")}
TOPICS = {
    name: Topic(f"receipts-{name}", partitions=4, config={"retention.ms": "-1"}, schema=schema)
    for name, schema in FORMATS.items()
}


def one_stage(receipts: DataFrame) -> DataFrame:
    return summarize(receipts, S.summary, S.decimals, S.quantiles)


def summaries_of(source: Input, app: str) -> Stream:
    return Stream(
        name=f"{app}-summaries",
        app=app,
        inputs={"receipts": source},
        transform=one_stage,
        output=TopicOutput(
            Topic(f"{app}-summaries", partitions=2, compacted=True),
            key=KEY,
            value=(*KEY, *MOMENTS, *quantile_names(S.quantiles)),
        ),
        output_mode=EmitChanges(window=S.summary, grace=timedelta(hours=1)),
        shuffle_partitions=int(os.environ.get("SHUFFLE_PARTITIONS", bundles.STREAM.shuffle_partitions)),
        max_records=bundles.STREAM.max_records,
    )


STREAMS = [
    # The pattern keeps what the benchmark itself writes out of the count.
    replace(counts.STREAM, inputs={"records": replace(counts.RECORDS, pattern="receipts")}, every=0.0),
    summaries_of(receipts(S.summary), "one-stage"),
    *(
        summaries_of(replace(receipts(S.summary), topic=TOPICS[name], schema=of.ddl), name)
        for name, of in FORMATS.items()
    ),
    replace(bundles.STREAM, app="two-stages", every=0.0),
    replace(summaries.STREAM, app="two-stages", every=0.0),
    replace(walk_ins.STREAM, app="walk-ins", every=0.0),
]
