"""Numbers in three streams: without state, counted per window in Spark's state, and summed in the state of a fold."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.streams import EmitChanges, F, Fold, Input, KeyedState, Stateless, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMBERS = Input(
    Topic("numbers", partitions=2, heartbeat_every=0, config={"retention.ms": "-1"}),
    schema="n BIGINT NOT NULL, at BIGINT NOT NULL",
    event_time="timestamp_millis(at)",
)
SUMS = Fold(
    name="sums",
    key=("residue",),
    state_schema="total BIGINT",
    update_sql="SELECT residue, sum(n)::BIGINT + coalesce(any_value(state.total), 0) AS total"
    " FROM records LEFT JOIN state USING (residue) GROUP BY residue",
    emit_sql="FROM folded",
    output_schema="residue BIGINT, total BIGINT",
)


def evens(numbers: DataFrame) -> DataFrame:
    return numbers.where("n % 2 = 0").select("n")


def digits(numbers: DataFrame) -> DataFrame:
    rows = numbers.groupBy(F.window("event_time", "1 minute").alias("w"), (F.col("n") % 10).alias("digit"))
    counts = rows.agg(F.count("*").alias("count"), F.sum("n").alias("sum"))
    return counts.select(F.unix_millis("w.start").alias("start"), "digit", "count", "sum")


def sums(numbers: DataFrame) -> DataFrame:
    return SUMS(numbers.withColumn("residue", F.col("n") % 3000))


STREAMS = [
    Stream(
        name="evens", app="checkpoints", inputs={"numbers": NUMBERS}, transform=evens, output_mode=Stateless(),
        output=TopicOutput(Topic("evens", partitions=1), key="n", value=("n",)),
    ),
    Stream(
        name="digits", app="checkpoints", inputs={"numbers": NUMBERS}, transform=digits,
        output=TopicOutput(Topic("digits", partitions=1, compacted=True), key=("start", "digit"),
                           value=("count", "sum")),
        output_mode=EmitChanges(window=timedelta(minutes=1), grace=timedelta(minutes=10)),
    ),
    Stream(
        name="sums", app="checkpoints", inputs={"numbers": NUMBERS}, transform=sums, shuffle_partitions=2,
        output_mode=KeyedState(),
        output=TopicOutput(Topic("sums", partitions=1, compacted=True), key="residue", value=("total",)),
    ),
]  # fmt: skip
