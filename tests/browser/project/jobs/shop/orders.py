"""Orders by the minute, and what failed of them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.sinks.influxdb.config import InfluxDB
from penstock.streams import EmitChanges, EmitFinal, F, Input, Stateless, Stream, Table, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = "shop STRING NOT NULL, amount DOUBLE NOT NULL, at BIGINT NOT NULL"
ORDERS = Topic("orders")
MINUTES = Topic("order-minutes", compacted=True)
SHOPS = Topic("shops", partitions=4, compacted=True, heartbeat_every=0, may_add_partitions=False)


def minutes(orders: DataFrame, shops: DataFrame) -> DataFrame:
    return orders.join(shops, orders["shop"] == shops["key"])


def lines(minutes: DataFrame) -> DataFrame:
    return minutes.selectExpr("CAST(value AS STRING) AS line")


def counts(records: DataFrame) -> DataFrame:
    return records.groupBy("topic", F.window("event_time", "1 minute")).count()


STREAMS = [
    Stream(
        name="order-minutes",
        app="shop",
        inputs={
            "orders": Input(ORDERS, schema=ORDER, event_time="timestamp_millis(at)"),
            "shops": Table(SHOPS, schema="name STRING"),
        },
        transform=minutes,
        output=TopicOutput(MINUTES, key="shop", value="total"),
        output_mode=EmitFinal(window=timedelta(minutes=1), grace=timedelta(seconds=10)),
    ),
    Stream(
        name="order-points",
        app="shop",
        inputs={"minutes": Input(MINUTES)},
        transform=lines,
        output=InfluxDB(sink="order-points", database="shop", measurement="orders"),
        output_mode=Stateless(),
    ),
    Stream(
        name="order-counts",
        app="audit",
        inputs={"records": Input(pattern="order.*")},
        transform=counts,
        output=TopicOutput(Topic("counts"), key="topic", value="count"),
        output_mode=EmitChanges(window=timedelta(minutes=1), grace=timedelta(seconds=10)),
    ),
]
