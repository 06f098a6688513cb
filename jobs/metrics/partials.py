"""Partial aggregates of the receipts of a batch, computed before they reach Spark.

A partial aggregate covers receipts of one metric and window. With many receipts it has their moments and their
truncated values; with few, or if one of them is too large to be squared, it has the values themselves. Either way
partial aggregates merge to the same result however a batch was divided, except for the order of additions.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.codec import event_time
from penstock.streams import Combiner, F

if TYPE_CHECKING:
    from pyspark.sql import Column

# From here on a double has no decimals to truncate.
MAX_EXACT = float(2**53)
# The moments take as much state as so many values.
MANY = 8
# Smaller values can be squared and added up.
MAX_SQUARABLE = 1e100
SCHEMA = (
    "environment STRING NOT NULL, metric STRING NOT NULL, "
    "moments STRUCT<n: BIGINT, mean: DOUBLE, m2: DOUBLE, min: DOUBLE, max: DOUBLE>, "
    "truncated ARRAY<DOUBLE>, values ARRAY<DOUBLE>"
)


def receipt_combiner(window: timedelta, decimals: int) -> Combiner:
    """A combiner that makes one row of SCHEMA per environment, metric and window of a batch's receipts."""
    micros, scale = window // timedelta(microseconds=1), float(10**decimals)
    squarable = f"FILTER (WHERE abs(value) < {MAX_SQUARABLE!r})"
    # Adding zero turns minus zero into zero.
    truncated = f"CASE WHEN abs(v * {scale!r}) < {MAX_EXACT!r} THEN (trunc(v * {scale!r}) + 0.0) / {scale!r} ELSE v END"
    return Combiner(
        SCHEMA,
        f"""
        WITH grouped AS (
          SELECT
            environment,
            metric,
            max(event_time) AS event_time,
            count(*) AS n,
            count(*) {squarable} AS n_squarable,
            avg(value) {squarable} AS mean,
            var_pop(value) {squarable} * count(*) AS m2,
            min(value) AS smallest,
            max(value) AS largest,
            list(value) AS all_values
          FROM records
          GROUP BY environment, metric, {event_time.window_number("event_time", micros)}
        ), sized AS (
          SELECT *, n >= {MANY} AND n = n_squarable AS is_aggregated
          FROM grouped
        )
        SELECT
          environment,
          metric,
          event_time,
          CASE WHEN is_aggregated
            THEN struct_pack(n := n, mean := mean, m2 := m2, "min" := smallest, "max" := largest) END AS moments,
          CASE WHEN is_aggregated THEN list_transform(all_values, lambda v: {truncated}) END AS truncated,
          CASE WHEN NOT is_aggregated THEN all_values END AS "values"
        FROM sized
        """,
    )


def truncate(value: Column, decimals: int) -> Column:
    """A value truncated towards zero to `decimals`; one that is too large to have decimals is unchanged."""
    scale = 10**decimals
    scaled = value * scale
    # The coalesce makes the value not nullable for Spark, which sorts such lists twice as fast.
    return F.coalesce(F.when(F.abs(scaled) < MAX_EXACT, scaled.cast("bigint") / scale), value)


def collect_partials() -> list[Column]:
    """Aggregates that collect all partial aggregates of a group: lists of `moments`, `truncated` and `values`."""
    return [F.collect_list(name).alias(name) for name in ("moments", "truncated", "values")]


def all_moments() -> Column:
    """The moments of a group's partial aggregates, and of each of its single values."""
    of_values = F.transform(
        F.flatten("values"),
        lambda v: F.struct(
            F.lit(1).cast("bigint").alias("n"), v.alias("mean"), F.lit(0.0).alias("m2"), v.alias("min"), v.alias("max")
        ),
    )
    return F.concat("moments", of_values)


def all_truncated(decimals: int) -> Column:
    """All values of a group, truncated."""
    return F.concat(F.flatten("truncated"), F.transform(F.flatten("values"), lambda v: truncate(v, decimals)))
