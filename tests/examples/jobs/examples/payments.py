"""Two streams: each order with the payment that came within ten minutes of it, or without one."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.streams import F, Input, Stream, StreamJoin, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NEAR = "id = of AND paid_at BETWEEN event_time AND event_time + INTERVAL 10 MINUTES"


def transform(orders: DataFrame, payments: DataFrame) -> DataFrame:
    paid = payments.select("of", "amount", F.col("event_time").alias("paid_at"))
    return orders.join(paid, F.expr(NEAR), "left").select("id", "amount")


STREAM = Stream(
    name="paid-orders",
    app="examples",
    inputs={
        "orders": Input(
            Topic("orders", partitions=2), schema="id BIGINT NOT NULL, at TIMESTAMP NOT NULL", event_time="at"
        ),
        "payments": Input(
            Topic("payments", partitions=2),
            schema="of BIGINT NOT NULL, amount DOUBLE NOT NULL, at TIMESTAMP NOT NULL",
            event_time="at",
        ),
    },
    transform=transform,
    output=TopicOutput(Topic("paid-orders", partitions=1), key="id", value="amount"),
    output_mode=StreamJoin(within=timedelta(minutes=10), grace=timedelta(minutes=1)),
)
