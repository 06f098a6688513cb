"""Sales without state, in windows, joined with their refunds, and summed by a fold."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.model.output_mode import OutputMode
from penstock.streams import (
    EmitChanges,
    EmitFinal,
    F,
    Fold,
    Input,
    KeyedState,
    Stateless,
    Stream,
    StreamJoin,
    Topic,
    TopicOutput,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE = timedelta(minutes=1)
SALE = "shop STRING NOT NULL, amount BIGINT NOT NULL, at TIMESTAMP NOT NULL"
SALES = Input(Topic("sales", partitions=2), schema=SALE, event_time="at")
REFUNDS = Input(Topic("refunds", partitions=2), schema=SALE, event_time="at")
TOTALS = Fold(
    name="totals",
    key=("shop",),
    state_schema="total BIGINT, since BIGINT",
    update_sql="SELECT shop, sum(amount)::BIGINT + coalesce(any_value(state.total), 0) AS total, "
    "coalesce(any_value(state.since), min(epoch_ms(records.event_time))) AS since "
    "FROM records LEFT JOIN state USING (shop) GROUP BY shop",
    emit_sql="SELECT shop, total, since FROM folded ORDER BY shop",
    output_schema="shop STRING, total BIGINT, since BIGINT",
)


def doubled(sales: DataFrame) -> DataFrame:
    return sales.select("shop", (F.col("amount") * 2).alias("amount"))


def sums_by(window: Callable[[], Column], name: str) -> Callable[[DataFrame], DataFrame]:
    """A transform that sums the sales of each shop in each window."""

    def transform(sales: DataFrame) -> DataFrame:
        sums = sales.groupBy("shop", window()).agg(F.sum("amount").alias("amount"), F.max("amount").alias("largest"))
        return sums.select("shop", F.unix_millis(f"{name}.start").alias("start"), "amount", "largest")

    return transform


def refunded(sales: DataFrame, refunds: DataFrame) -> DataFrame:
    returned = refunds.select("shop", F.col("amount").alias("refund"), F.col("event_time").alias("refunded_at"))
    near = F.expr("refunded_at BETWEEN event_time AND event_time + INTERVAL 10 MINUTES")
    return sales.join(returned, "shop").where(near).select("shop", "amount", "refund")


def totals(sales: DataFrame) -> DataFrame:
    return TOTALS(sales)


def sales_stream(
    name: str, transform: Callable[..., DataFrame], mode: OutputMode, *values: str, key: str | tuple[str, ...] = "shop"
) -> Stream:
    """A stream that reads sales and writes to the topic of its name."""
    output = TopicOutput(Topic(name, partitions=1), key=key, value=values)
    return Stream(name, "kinds", {"sales": SALES}, transform, output, mode, shuffle_partitions=2)


WINDOW, VALUES = ("shop", "start"), ("amount", "largest")
TUMBLING = sums_by(lambda: F.window("event_time", "1 minute"), "window")
STREAMS = [
    sales_stream("doubled-sales", doubled, Stateless(), "amount"),
    sales_stream("minute-sales", TUMBLING, EmitFinal(window=MINUTE, grace=MINUTE), *VALUES, key=WINDOW),
    sales_stream("changing-sales", TUMBLING, EmitChanges(window=MINUTE, grace=MINUTE), *VALUES, key=WINDOW),
    sales_stream(
        "sliding-sales",
        sums_by(lambda: F.window("event_time", "2 minutes", "1 minute"), "window"),
        EmitFinal(window=MINUTE, grace=MINUTE),
        *VALUES,
        key=WINDOW,
    ),
    sales_stream(
        "session-sales",
        sums_by(lambda: F.session_window("event_time", "2 minutes"), "session_window"),
        EmitFinal(window=MINUTE, grace=MINUTE, first_step=2 * MINUTE),
        *VALUES,
        key=WINDOW,
    ),
    sales_stream("shop-totals", totals, KeyedState(grace=MINUTE), "total", "since"),
    Stream(
        name="refunded-sales",
        app="kinds",
        inputs={"sales": SALES, "refunds": REFUNDS},
        transform=refunded,
        output=TopicOutput(Topic("refunded-sales", partitions=1), key="shop", value=("amount", "refund")),
        output_mode=StreamJoin(within=timedelta(minutes=10), grace=MINUTE),
        shuffle_partitions=2,
    ),
]
