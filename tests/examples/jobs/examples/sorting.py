"""Several outputs: large sales go to one topic, small ones to another, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LARGE = 1000


def transform(sales: DataFrame) -> DataFrame:
    large = F.when(F.col("amount") >= LARGE, "large").otherwise("small")
    return sales.select("id", "shop", "amount", large.alias("output"))


STREAM = Stream(
    name="sorted-sales",
    app="examples",
    inputs={
        "sales": Input(
            Topic("sales", partitions=2),
            schema="id BIGINT NOT NULL, shop STRING NOT NULL, amount DOUBLE NOT NULL, at TIMESTAMP NOT NULL",
            event_time="at",
        )
    },
    transform=transform,
    output={
        "large": TopicOutput(Topic("large-sales", partitions=1), key="id", value=("shop", "amount")),
        "small": TopicOutput(Topic("small-sales", partitions=1), value="amount"),
    },
    output_mode=Stateless(),
)
