"""Totals of each shop and minute."""

from datetime import timedelta

from penstock.streams import EmitFinal, F, Input, Stream, Topic, TopicOutput

ORDER = "shop STRING NOT NULL, amount DOUBLE NOT NULL, at BIGINT NOT NULL"


def transform(orders):
    minute = F.window("event_time", "1 minute").alias("minute")
    totals = orders.groupBy("shop", minute).agg(F.sum("amount").alias("total"))
    return totals.select("shop", F.unix_millis("minute.start").alias("minute"), "total")


STREAM = Stream(
    name="order-minutes",
    app="orders",
    inputs={"orders": Input(Topic("orders"), schema=ORDER, event_time="timestamp_millis(at)")},
    transform=transform,
    output=TopicOutput(Topic("order-minutes"), key=("shop", "minute"), value="total"),
    output_mode=EmitFinal(window=timedelta(minutes=1), grace=timedelta(seconds=10)),
)
