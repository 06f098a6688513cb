"""Receipts of a batch, grouped before they reach Spark: a part is some receipts of one metric and window.

A part of many receipts has their moments, and each value cut to so many decimals; of few, or if one of them is too
large to be squared, it has the values themselves, and the moments are made of those. Either way parts are merged to
the same figures however a batch was split, but for the order of additions.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.codec import event_time
from penstock.streams import Combiner, F

if TYPE_CHECKING:
    from pyspark.sql import Column

# Beyond it a double has no decimals left to cut.
EXACT = float(2**53)
# A part's moments take as much state as so many values.
FEW = 8
# Such values can be squared and added up.
TAME = 1e100
MOMENTS = ("n", "mean", "m2", "min", "max")
SCHEMA = (
    "environment STRING NOT NULL, metric STRING NOT NULL, "
    "moments STRUCT<n: BIGINT, mean: DOUBLE, m2: DOUBLE, min: DOUBLE, max: DOUBLE>, "
    "cuts ARRAY<DOUBLE>, few ARRAY<DOUBLE>"
)


def receipt_combiner(window: timedelta, decimals: int) -> Combiner:
    """One row per environment, metric and window of a batch's receipts: SCHEMA."""
    micros, scale = window // timedelta(microseconds=1), float(10**decimals)
    tame = f"FILTER (WHERE abs(value) < {TAME!r})"
    # A sum with zero makes a plain zero of minus zero.
    cut = f"CASE WHEN abs(v * {scale!r}) < {EXACT!r} THEN (trunc(v * {scale!r}) + 0.0) / {scale!r} ELSE v END"
    return Combiner(
        SCHEMA,
        f"""
        SELECT environment, metric, event_time,
            CASE WHEN many THEN struct_pack(n := n, mean := mean, m2 := m2, "min" := least, "max" := greatest) END
                AS moments,
            CASE WHEN many THEN list_transform(given, lambda v: {cut}) END AS cuts,
            CASE WHEN NOT many THEN given END AS few
        FROM (
            SELECT *, n >= {FEW} AND n = tame AS many
            FROM (
                SELECT environment, metric, max(event_time) AS event_time, count(*) AS n, count(*) {tame} AS tame,
                    avg(value) {tame} AS mean, var_pop(value) {tame} * count(*) AS m2,
                    min(value) AS least, max(value) AS greatest, list(value) AS given
                FROM records
                GROUP BY environment, metric, {event_time.window_number("event_time", micros)}
            )
        )
        """,
    )


def truncated(value: Column, decimals: int) -> Column:
    """A value cut towards zero to so many decimals; what is too large to have decimals stays as it is."""
    scale = 10**decimals
    scaled = value * scale
    # What is never NULL should look so: Spark sorts lists of such values twice as fast.
    return F.coalesce(F.when(F.abs(scaled) < EXACT, scaled.cast("bigint") / scale), value)


def collect_partials() -> list[Column]:
    """Aggregates that keep all parts of a group: `moments`, `cuts` and `few`, a list each."""
    return [F.collect_list(name).alias(name) for name in ("moments", "cuts", "few")]


def all_moments() -> Column:
    """The moments of all parts of a group: those of few receipts are one for each receipt."""
    one = F.transform(
        F.flatten("few"),
        lambda v: F.struct(
            F.lit(1).cast("bigint").alias("n"), v.alias("mean"), F.lit(0.0).alias("m2"), v.alias("min"), v.alias("max")
        ),
    )
    return F.concat("moments", one)


def all_cuts(decimals: int) -> Column:
    """All values of a group, cut."""
    return F.concat(F.flatten("cuts"), F.transform(F.flatten("few"), lambda v: truncated(v, decimals)))
