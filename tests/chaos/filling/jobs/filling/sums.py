"""Sums of numbers: what is read twice counts twice, and what is passed over is missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.streams import Fold, Input, KeyedState, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A newer version keeps more, and cannot read what this one kept.
WIDER = bool(os.environ.get("FILLING_WIDER"))
PAID = Topic("paid", partitions=2, heartbeat_every=0, config={"retention.ms": "-1"})
SUMS = Fold(
    name="sums",
    key=("who",),
    state_schema="total BIGINT, most BIGINT" if WIDER else "total BIGINT",
    update_sql="SELECT who, sum(amount)::BIGINT + coalesce(any_value(state.total), 0) AS total"
    + (", greatest(max(amount), coalesce(any_value(state.most), 0)) AS most" if WIDER else "")
    + " FROM records LEFT JOIN state USING (who) GROUP BY who",
    emit_sql="SELECT who, total FROM folded",
    output_schema="who STRING, total BIGINT",
    restore_sql="SELECT who, total, 0::BIGINT AS most FROM output" if WIDER else "SELECT who, total FROM output",
)


def transform(paid: DataFrame) -> DataFrame:
    return SUMS(paid)


STREAM = Stream(
    name="sums",
    app="filling",
    inputs={"paid": Input(PAID, schema="who STRING NOT NULL, amount BIGINT NOT NULL, at BIGINT NOT NULL",
                          event_time="timestamp_millis(at)")},
    transform=transform,
    output=TopicOutput(Topic("sums", partitions=2, compacted=True), key="who", value=("who", "total")),
    output_mode=KeyedState(),
    shuffle_partitions=2,
)  # fmt: skip
