"""Sums per person: a record that is read twice counts twice, and one that is skipped is missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.streams import Fold, Input, KeyedState, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The next release keeps another column and cannot read the state of this one.
WIDER_STATE = bool(os.environ.get("WIDER_STATE"))
PAID = Topic("paid", partitions=2, heartbeat_every=0, config={"retention.ms": "-1"})
SUMS = Fold(
    name="sums",
    key=("who",),
    state_schema="total BIGINT, largest BIGINT" if WIDER_STATE else "total BIGINT",
    update_sql="SELECT who, sum(amount)::BIGINT + coalesce(any_value(state.total), 0) AS total"
    + (", greatest(max(amount), coalesce(any_value(state.largest), 0)) AS largest" if WIDER_STATE else "")
    + " FROM records LEFT JOIN state USING (who) GROUP BY who",
    emit_sql="SELECT who, total FROM folded",
    output_schema="who STRING, total BIGINT",
    restore_sql="SELECT who, total, 0::BIGINT AS largest FROM output"
    if WIDER_STATE
    else "SELECT who, total FROM output",
)


def transform(paid: DataFrame) -> DataFrame:
    return SUMS(paid)


STREAM = Stream(
    name="sums",
    app="backfills",
    inputs={"paid": Input(PAID, schema="who STRING NOT NULL, amount BIGINT NOT NULL, at BIGINT NOT NULL",
                          event_time="timestamp_millis(at)")},
    transform=transform,
    output=TopicOutput(Topic("sums", partitions=2, compacted=True), key="who", value=("who", "total")),
    output_mode=KeyedState(),
    shuffle_partitions=2,
)  # fmt: skip
