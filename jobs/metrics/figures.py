"""The figures of a group of receipts, the same for every window length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.streams import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("environment", "metric", "window")
FIGURES = ("count", "average", "min", "max", "stddev", "p90")
# The source truncates values before it counts them, which bounds what an exact order statistic must hold.
DECIMALS = 2
# Beyond it a double has no decimals left to cut.
EXACT = float(2**53)


def truncated(value: Column, decimals: int = DECIMALS) -> Column:
    """A value cut towards zero to so many decimals; what is too large to have decimals stays as it is."""
    scale = 10**decimals
    scaled = value * scale
    return F.when(F.abs(scaled) < EXACT, scaled.cast("bigint") / scale).otherwise(value)


def summarised(receipts: DataFrame, window: str) -> DataFrame:
    """One row per environment, metric and window of receipts.

    receipts: environment STRING, metric STRING, value DOUBLE, event_time TIMESTAMP.
    Returns the columns of KEY (window: its start, epoch ms) and FIGURES: count BIGINT, the rest DOUBLE. stddev is that
    of the population; p90 is the nearest rank over the truncated values (PERCENTILE_DISC of SQL:2003).
    """
    value = F.col("value")
    return (
        receipts.withColumn("cut", truncated(value))
        .groupBy("environment", "metric", F.window("event_time", window).alias("w"))
        .agg(
            F.count("*").alias("count"),
            F.avg(value).alias("average"),
            F.min(value).alias("min"),
            F.max(value).alias("max"),
            F.stddev_pop(value).alias("stddev"),
            F.expr("percentile_disc(0.9) WITHIN GROUP (ORDER BY cut)").alias("p90"),
        )
        .select("environment", "metric", F.unix_millis("w.start").alias("window"), *FIGURES)
    )
