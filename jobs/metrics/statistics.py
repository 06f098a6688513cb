"""Summary statistics of receipts: in one stage, or in two through bundles.

A bundle holds what is needed to summarise its receipts exactly, also together with other bundles: the moments, and all
truncated values, or how often each occurs. It is an absolute value, not an increment: of two bundles of one window the
one with more receipts contains all of the other. So bundles may be repeated and may overtake one another.

Quantiles are the nearest rank over values truncated towards zero (PERCENTILE_DISC of SQL:2003). The standard deviation
is that of the population; moments are merged by Chan, Golub and LeVeque (1979), which does not cancel. As everywhere in
Spark SQL, NaN is greater than every number, infinity included; averages are then NaN too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.metrics.partials import all_moments, all_truncated, collect_partials
from penstock.streams import Combiner, F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Up to so many receipts the values are sorted one by one, which is fast; more would fill the JVM's memory.
MAX_SORTED = 2**17
# Receipts that a bundle may count, so that sums of counts fit a BIGINT.
MAX_COUNT = 2**53
KEY = ("environment", "metric", "window")
MOMENTS = ("count", "average", "min", "max", "stddev")
BUNDLE = ("environment", "metric", "window", "count", "average", "m2", "min", "max", "values", "counts")
BUNDLE_SCHEMA = (
    "environment STRING NOT NULL, metric STRING NOT NULL, window BIGINT NOT NULL, count BIGINT NOT NULL, "
    "average DOUBLE NOT NULL, m2 DOUBLE NOT NULL, min DOUBLE NOT NULL, max DOUBLE NOT NULL, "
    "values ARRAY<DOUBLE>, counts ARRAY<BIGINT>"
)


def quantile_names(quantiles: Sequence[float]) -> tuple[str, ...]:
    """Column names of quantiles: `p90` for 0.9, `p99_9` for 0.999."""
    return tuple(f"p{100 * q:.10g}".replace(".", "_") for q in quantiles)


def summarize(parts: DataFrame, window: timedelta, decimals: int, quantiles: Sequence[float]) -> DataFrame:
    """Summarise receipts in one stage.

    Args:
        parts: Partial aggregates: the columns of `jobs.metrics.partials.SCHEMA`, and `event_time TIMESTAMP`.
        window: Length of the windows.
        decimals: Decimals to which values are truncated before quantiles are computed.
        quantiles: Quantiles, over 0 and at most 1.

    Returns:
        One row per environment, metric and window: the columns of KEY (`window` is its start, epoch ms), MOMENTS and
        one per quantile. `count` is BIGINT, the others DOUBLE.
    """
    n, names = F.col("count"), quantile_names(quantiles)
    # percentile_disc takes twice the time: it keeps a table of counts in state instead of lists.
    return (
        _moments(_grouped(parts, window))
        .withColumn("stddev", F.sqrt(F.col("m2") / n))
        .withColumn("sorted", F.sort_array(all_truncated(decimals)))
        .select(
            "environment",
            "metric",
            F.unix_millis("w.start").alias("window"),
            *MOMENTS,
            *(_nearest_rank(q, n).alias(name) for q, name in zip(quantiles, names, strict=True)),
        )
    )


def bundle_receipts(parts: DataFrame, window: timedelta, decimals: int, distinct: int) -> DataFrame:
    """Make one bundle per environment, metric and window of receipts.

    Args:
        parts: Partial aggregates: the columns of `jobs.metrics.partials.SCHEMA`, and `event_time TIMESTAMP`.
        window: Length of the windows.
        decimals: Decimals to which values are truncated.
        distinct: Number of values that a bundle may hold. A bundle of more receipts has each distinct value once, and
            its count in `counts`; if there are more distinct values than that, `values` and `counts` are NULL. In
            other bundles `values` has a value for each receipt, and `counts` is NULL.

    Returns:
        `key STRING` (`environment=prod:metric=dbWaitTime`) and the columns of BUNDLE_SCHEMA.
    """
    return (
        # Counting values in state, with a sketch that is exact while small, took 1.7 times as long in both stages.
        _moments(_grouped(parts, window))
        .withColumn("all", all_truncated(decimals))
        .withColumn("sorted", F.when(F.col("count") > distinct, F.sort_array("all")))
        .withColumn("starts", F.expr("filter(sequence(0, size(sorted) - 1), i -> i = 0 OR sorted[i] <> sorted[i - 1])"))
        .withColumn("runs", F.expr(f"CASE WHEN size(starts) <= {distinct} THEN starts END"))
        .select(
            F.concat(F.lit("environment="), "environment", F.lit(":metric="), "metric").alias("key"),
            "environment",
            "metric",
            F.unix_millis("w.start").alias("window"),
            *("count", "average", "m2", "min", "max"),
            F.expr("CASE WHEN sorted IS NULL THEN all ELSE transform(runs, i -> sorted[i]) END").alias("values"),
            F.expr(
                "zip_with(runs, concat(slice(runs, 2, size(runs)), array(size(sorted))), (i, next) -> bigint(next - i))"
            ).alias("counts"),
        )
    )


def _grouped(parts: DataFrame, window: timedelta) -> DataFrame:
    """Groups of partial aggregates, with all their moments: `partials ARRAY<STRUCT<n, mean, m2, min, max>>`."""
    groups = parts.groupBy("environment", "metric", _window(window)).agg(*collect_partials())
    return groups.withColumn("partials", all_moments())


def _moments(groups: DataFrame) -> DataFrame:
    """Groups with `count`, `average`, `m2`, `min` and `max`, merged from `partials`."""
    n, mean, zero = F.col("count"), F.col("average"), F.lit(0.0)
    return (
        groups.withColumn("count", F.aggregate("partials", F.lit(0).cast("bigint"), lambda total, p: total + p["n"]))
        .withColumn("average", F.aggregate("partials", zero, lambda total, p: total + p["mean"] * (p["n"] / n)))
        .withColumn(
            "m2",
            F.aggregate(
                "partials",
                zero,
                lambda total, p: total + p["m2"] + p["n"] * (p["mean"] - mean) * (p["mean"] - mean),
            ),
        )
        .withColumn("min", F.array_min(F.col("partials.min")))
        .withColumn("max", F.array_max(F.col("partials.max")))
    )


def merge_bundles(bundles: DataFrame, bundle: timedelta, summary: timedelta, quantiles: Sequence[float]) -> DataFrame:
    """Summarise bundles: of each bundle window the one with the most receipts counts.

    Args:
        bundles: The columns of BUNDLE_SCHEMA, and `event_time TIMESTAMP`, the start of the bundle.
        bundle: Length of the windows of bundles.
        summary: Length of the windows of summaries, a multiple of `bundle`.
        quantiles: Quantiles, over 0 and at most 1.

    Returns:
        One row per environment, metric and summary window, with the columns of `summarize`. Quantiles are NULL if a
        bundle has no values.
    """
    step, size = (int(d.total_seconds() * 1000) for d in (bundle, summary))
    slots = [f"s{i}" for i in range(size // step)]
    largest = [F.expr(f"max_by(bundle, count) FILTER (WHERE slot = {i})").alias(s) for i, s in enumerate(slots)]
    n, names = F.col("count"), quantile_names(quantiles)
    moments = F.transform(
        "bundles",
        lambda s: F.struct(s["count"].alias("n"), s["average"].alias("mean"), s["m2"], s["min"], s["max"]),
    )
    return (
        _moments(
            bundles.withColumn("slot", F.floor((F.col("window") % size) / step))
            .withColumn("bundle", F.struct(*BUNDLE[3:]))
            .groupBy("environment", "metric", _window(summary))
            .agg(*largest)
            .withColumn("bundles", F.filter(F.array(*slots), lambda s: s.isNotNull()))
            .withColumn("partials", moments)
        )
        .withColumn("stddev", F.sqrt(F.col("m2") / n))
        .withColumn("sorted", F.when(n <= MAX_SORTED, F.sort_array(F.flatten(F.transform("bundles", _repeated)))))
        .withColumn("runs", F.when(n > MAX_SORTED, F.sort_array(F.flatten(F.transform("bundles", _runs)))))
        .select(
            "environment",
            "metric",
            F.unix_millis("w.start").alias("window"),
            *MOMENTS,
            *(
                F.when(n <= MAX_SORTED, _nearest_rank(q, n)).otherwise(_nearest_rank_of_runs(q, n)).alias(name)
                for q, name in zip(quantiles, names, strict=True)
            ),
        )
    )


def largest_bundle() -> Combiner:
    """A combiner that keeps the bundle with the most receipts of each environment, metric and window.

    A bundle that counts no receipts, or more than MAX_COUNT, is left out. If the number of its values differs from its
    count, its values are NULL.
    """
    names = [f'"{name}"' for name in BUNDLE[3:]]
    # arg_max of each column would ignore a NULL of the largest bundle, so the columns are packed.
    packed = ", ".join(f"{name} := {name}" for name in names)
    unpacked = ", ".join(f"largest.{name} AS {name}" for name in names)
    return Combiner(
        BUNDLE_SCHEMA,
        f"""
        WITH checked AS (
          SELECT * REPLACE ({_if_complete("values")}, {_if_complete("counts")})
          FROM records
          WHERE "count" BETWEEN 1 AND {MAX_COUNT}
        ), grouped AS (
          SELECT environment, metric, "window", arg_max(struct_pack({packed}), "count") AS largest,
            max(event_time) AS event_time
          FROM checked
          GROUP BY environment, metric, "window"
        )
        SELECT environment, metric, "window", {unpacked}, event_time
        FROM grouped
        """,
    )


def _if_complete(name: str) -> str:
    """A bundle's list as SQL, NULL if its lists do not hold as many values as it counts."""
    v, n = '"values"', '"counts"'
    is_valid = f"list_count({v}) = len({v}) AND coalesce(list_count({n}) = len({n}) AND list_min({n}) > 0, true)"
    total = f"CASE WHEN {n} IS NULL THEN len({v}) WHEN len({n}) = len({v}) THEN list_sum({n}) END"
    return f'CASE WHEN {is_valid} AND {total} = "count" THEN "{name}" END AS "{name}"'


def _window(length: timedelta) -> Column:
    return F.window("event_time", f"{int(length.total_seconds() * 1000)} milliseconds").alias("w")


def _repeated(bundle: Column) -> Column:
    """The values of a bundle, each as often as it occurs."""
    expanded = F.zip_with(bundle["values"], bundle["counts"], lambda v, n: F.array_repeat(v, n.cast("int")))
    return F.when(bundle["counts"].isNull(), bundle["values"]).otherwise(F.flatten(expanded))


def _runs(bundle: Column) -> Column:
    """The values of a bundle, each with its number of occurrences: `v DOUBLE, n BIGINT`."""
    single = F.transform(bundle["values"], lambda v: F.struct(v.alias("v"), F.lit(1).cast("bigint").alias("n")))
    counted = F.zip_with(bundle["values"], bundle["counts"], lambda v, n: F.struct(v.alias("v"), n.alias("n")))
    return F.when(bundle["counts"].isNull(), single).otherwise(counted)


def _rank(q: float, n: Column) -> Column:
    """The nearest rank: the least r, from 1 to n, with r / n >= q."""
    # The product is rounded, so the rank may be one lower or one higher.
    low = F.ceil(n * F.lit(q)) - 1
    return F.when((low > 0) & (low / n >= q), low).when((low + 1) / n >= q, low + 1).otherwise(low + 2)


def _nearest_rank(q: float, n: Column) -> Column:
    return F.element_at("sorted", _rank(q, n).cast("int"))


def _nearest_rank_of_runs(q: float, n: Column) -> Column:
    """The value with the rank of a quantile in `runs`."""
    rank = _rank(q, n)
    start = F.struct(F.lit(0).cast("bigint").alias("before"), F.lit(None).cast("double").alias("v"))
    return F.aggregate(
        "runs",
        start,
        lambda a, r: F.struct(
            (a["before"] + r["n"]).alias("before"), F.when(a["before"] < rank, r["v"]).otherwise(a["v"]).alias("v")
        ),
    )["v"]
