"""Topic quality in InfluxDB: a measurement per topic with the fields `valid` and `invalid`, a point per second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.quality.counts import METRICS
from penstock.declare.topic import TOPIC_NAME
from penstock.settings import settings
from penstock.sinks.influxdb import InfluxDB
from penstock.streams import Each, F, Input, Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# The ms since 1970, before and after it, that InfluxDB has: the years 1677 to 2262.
REACH = 9_223_372_036_854
# Nothing of it is escaped in the line protocol.
TOPIC = rf"\A{TOPIC_NAME.pattern}\z"


def transform(metrics: DataFrame) -> DataFrame:
    """line STRING: `tx valid=7i 1501273548000`. Counts of seconds that InfluxDB does not have are left out."""
    key = F.from_json(F.col("key").cast("string"), "topic STRING, window BIGINT, status STRING")
    count = F.col("value").cast("string").try_cast("bigint")
    return (
        metrics.select(key.alias("k"), count.alias("count"))
        .where(F.col("k.topic").rlike(TOPIC) & F.col("k.window").between(-REACH, REACH))
        .where("k.status IN ('valid', 'invalid') AND count >= 0")
        .selectExpr("concat(k.topic, ' ', k.status, '=', count, 'i ', k.window) AS line")
    )


SINK = Stream(
    name="quality-influxdb",
    app="quality",
    inputs={"metrics": Input(METRICS)},
    transform=transform,
    output=InfluxDB("penstock"),
    promise=Each(),
    every=10.0,
)
# Without a server there is nothing to keep running.
STREAMS = [SINK] if settings().influxdb_url.get_secret_value() else []
