"""A stream and a table: each sale with the town of its shop as it is known then, and the sums of towns."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.streams import EmitChanges, F, Input, Stateless, Stream, Table, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SALES = Input(
    Topic("sales", partitions=2),
    schema="id BIGINT NOT NULL, shop STRING NOT NULL, amount DOUBLE NOT NULL, at TIMESTAMP NOT NULL",
    event_time="at",
)
SHOPS = Table(Topic("shops", partitions=2, compacted=True, may_add_partitions=False), schema="town STRING NOT NULL")


def with_towns(sales: DataFrame, shops: DataFrame) -> DataFrame:
    return sales.join(shops, sales.shop == shops.key, "left").select("id", "shop", "town", "amount")


def by_town(sales: DataFrame, shops: DataFrame) -> DataFrame:
    known = sales.join(shops, sales.shop == shops.key)
    return known.groupBy("town", F.window("event_time", "1 hour")).agg(F.sum("amount").alias("amount")).select(
        "town", F.unix_millis("window.start").alias("hour"), "amount"
    )  # fmt: skip


STREAMS = [
    Stream(
        name="named-sales",
        app="examples",
        inputs={"sales": SALES, "shops": SHOPS},
        transform=with_towns,
        output=TopicOutput(Topic("named-sales", partitions=1), key="id", value=("shop", "town", "amount")),
        output_mode=Stateless(),
    ),
    Stream(
        name="towns",
        app="examples",
        inputs={"sales": SALES, "shops": SHOPS},
        transform=by_town,
        output=TopicOutput(Topic("towns", partitions=1, compacted=True), key=("town", "hour"), value="amount"),
        output_mode=EmitChanges(window=timedelta(hours=1), grace=timedelta(hours=1)),
    ),
]
