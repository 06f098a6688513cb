"""The figures of groups of receipts: at once, or in two stages through bundles.

A bundle holds what is needed to summarise its receipts exactly, also together with other bundles: the moments, and
every truncated value, or how often each occurs. It is absolute, never an increment: of two bundles of one window the
one with more receipts holds all of the other, so bundles may be repeated and may overtake one another.

Order statistics are the nearest rank over values truncated towards zero (PERCENTILE_DISC of SQL:2003). The standard
deviation is that of the population; moments are merged by Chan, Golub and LeVeque (1979), which does not cancel. NaN
counts as greater than every number, infinity included, as everywhere in Spark SQL; averages are then NaN too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.metrics.partials import all_cuts, all_moments, collect_partials
from penstock.streams import Combiner, F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Of so many receipts the values are sorted one by one, which is fast; of more they would fill the JVM's memory.
UNFOLDED = 2**17
# Receipts that a bundle may count, so that no sum of some is beyond a BIGINT.
COUNTED = 2**53
KEY = ("environment", "metric", "window")
MOMENTS = ("count", "average", "min", "max", "stddev")
BUNDLE = ("environment", "metric", "window", "count", "average", "m2", "min", "max", "values", "counts")
BUNDLE_SCHEMA = (
    "environment STRING NOT NULL, metric STRING NOT NULL, window BIGINT NOT NULL, count BIGINT NOT NULL, "
    "average DOUBLE NOT NULL, m2 DOUBLE NOT NULL, min DOUBLE NOT NULL, max DOUBLE NOT NULL, "
    "values ARRAY<DOUBLE>, counts ARRAY<BIGINT>"
)


def quantile_names(quantiles: Sequence[float]) -> tuple[str, ...]:
    """`p90` for 0.9, `p99_9` for 0.999."""
    return tuple(f"p{100 * q:.10g}".replace(".", "_") for q in quantiles)


def summarize(parts: DataFrame, window: timedelta, decimals: int, quantiles: Sequence[float]) -> DataFrame:
    """One row per environment, metric and window of receipts, in one stage.

    parts: the columns of `jobs.metrics.partials.SCHEMA` and event_time TIMESTAMP.
    Returns the columns of KEY (window: its start, epoch ms), MOMENTS and one per quantile: count BIGINT, the others
    DOUBLE.
    """
    n, names = F.col("count"), quantile_names(quantiles)
    # percentile_disc keeps a table of counts in state instead of lists: twice the time.
    return (
        _moments(_grouped(parts, window))
        .withColumn("stddev", F.sqrt(F.col("m2") / n))
        .withColumn("sorted", F.sort_array(all_cuts(decimals)))
        .select(
            "environment",
            "metric",
            F.unix_millis("w.start").alias("window"),
            *MOMENTS,
            *(_nearest_rank(q, n).alias(name) for q, name in zip(quantiles, names, strict=True)),
        )
    )


def bundle_receipts(parts: DataFrame, window: timedelta, decimals: int, distinct: int) -> DataFrame:
    """One bundle per environment, metric and window of receipts.

    parts: the columns of `jobs.metrics.partials.SCHEMA` and event_time TIMESTAMP.
    Returns `key STRING` (`environment=prod:metric=dbWaitTime`) and the columns of BUNDLE_SCHEMA. A bundle of more than
    `distinct` receipts has each truncated value once and its count beside it; others have their values one by one, and
    counts are NULL. Both are NULL where the values are more than `distinct` even so.
    """
    return (
        # To count values in state, by a sketch that is exact while it is small, took 1.7 times as long, both stages.
        _moments(_grouped(parts, window))
        .withColumn("all", all_cuts(decimals))
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
    """Groups of parts, with `merging ARRAY<STRUCT<n, mean, m2, min, max>>`."""
    groups = parts.groupBy("environment", "metric", _window(window)).agg(*collect_partials())
    return groups.withColumn("merging", all_moments())


def _moments(groups: DataFrame) -> DataFrame:
    """Groups with count, average, m2, min and max of all that `merging` holds."""
    n, mean, zero = F.col("count"), F.col("average"), F.lit(0.0)
    return (
        groups.withColumn("count", F.aggregate("merging", F.lit(0).cast("bigint"), lambda a, s: a + s["n"]))
        .withColumn("average", F.aggregate("merging", zero, lambda a, s: a + s["mean"] * (s["n"] / n)))
        .withColumn(
            "m2",
            F.aggregate("merging", zero, lambda a, s: a + s["m2"] + s["n"] * (s["mean"] - mean) * (s["mean"] - mean)),
        )
        .withColumn("min", F.array_min(F.col("merging.min")))
        .withColumn("max", F.array_max(F.col("merging.max")))
    )


def merge_bundles(bundles: DataFrame, bundle: timedelta, summary: timedelta, quantiles: Sequence[float]) -> DataFrame:
    """One row per environment, metric and summary window of the bundles in it, of each the one with most receipts.

    bundles: the columns of BUNDLE_SCHEMA and event_time TIMESTAMP, the start of the bundle.
    Returns the columns of `summarize`; quantiles are NULL if a bundle does not know its values.
    """
    step, size = (int(d.total_seconds() * 1000) for d in (bundle, summary))
    slots = [f"s{i}" for i in range(size // step)]
    newest = [F.expr(f"max_by(bundle, count) FILTER (WHERE slot = {i})").alias(s) for i, s in enumerate(slots)]
    n, names = F.col("count"), quantile_names(quantiles)
    moments = F.transform(
        "parts",
        lambda s: F.struct(s["count"].alias("n"), s["average"].alias("mean"), s["m2"], s["min"], s["max"]),
    )
    return (
        _moments(
            bundles.withColumn("slot", F.floor((F.col("window") % size) / step))
            .withColumn("bundle", F.struct(*BUNDLE[3:]))
            .groupBy("environment", "metric", _window(summary))
            .agg(*newest)
            .withColumn("parts", F.filter(F.array(*slots), lambda s: s.isNotNull()))
            .withColumn("merging", moments)
        )
        .withColumn("stddev", F.sqrt(F.col("m2") / n))
        .withColumn("sorted", F.when(n <= UNFOLDED, F.sort_array(F.flatten(F.transform("parts", _each)))))
        .withColumn("runs", F.when(n > UNFOLDED, F.sort_array(F.flatten(F.transform("parts", _runs)))))
        .select(
            "environment",
            "metric",
            F.unix_millis("w.start").alias("window"),
            *MOMENTS,
            *(
                F.when(n <= UNFOLDED, _nearest_rank(q, n)).otherwise(_of_runs(q, n)).alias(name)
                for q, name in zip(quantiles, names, strict=True)
            ),
        )
    )


def largest_bundle() -> Combiner:
    """Of the bundles of a metric and window that come together, the one with most receipts.

    One that counts none, or more than COUNTED, is left out. One whose values are not as many as it counts does not know
    them.
    """
    names = [f'"{name}"' for name in BUNDLE[3:]]
    # As a whole: column by column, a NULL of the newest would be passed over for an older value.
    packed = ", ".join(f"{name} := {name}" for name in names)
    taken = ", ".join(f"newest.{name} AS {name}" for name in names)
    return Combiner(
        BUNDLE_SCHEMA,
        f'SELECT environment, metric, "window", {taken}, event_time FROM ('
        f'SELECT environment, metric, "window", arg_max(struct_pack({packed}), count) AS newest, '
        f"max(event_time) AS event_time FROM (SELECT * REPLACE ({_known('values')}, {_known('counts')}) FROM records) "
        f'WHERE "count" BETWEEN 1 AND {COUNTED} GROUP BY environment, metric, "window")',
    )


def _known(name: str) -> str:
    """A bundle's list, NULL if its lists do not come to as many values as it counts."""
    v, n = '"values"', '"counts"'
    held = f"list_count({v}) = len({v}) AND coalesce(list_count({n}) = len({n}) AND list_min({n}) > 0, true)"
    total = f"CASE WHEN {n} IS NULL THEN len({v}) WHEN len({n}) = len({v}) THEN list_sum({n}) END"
    return f'CASE WHEN {held} AND {total} = "count" THEN "{name}" END AS "{name}"'


def _window(length: timedelta) -> Column:
    return F.window("event_time", f"{int(length.total_seconds() * 1000)} milliseconds").alias("w")


def _each(bundle: Column) -> Column:
    """The values of a bundle, each as often as it occurs."""
    repeated = F.zip_with(bundle["values"], bundle["counts"], lambda v, n: F.array_repeat(v, n.cast("int")))
    return F.when(bundle["counts"].isNull(), bundle["values"]).otherwise(F.flatten(repeated))


def _runs(bundle: Column) -> Column:
    """The values of a bundle, each with how often it occurs there: v DOUBLE, n BIGINT."""
    alone = F.transform(bundle["values"], lambda v: F.struct(v.alias("v"), F.lit(1).cast("bigint").alias("n")))
    counted = F.zip_with(bundle["values"], bundle["counts"], lambda v, n: F.struct(v.alias("v"), n.alias("n")))
    return F.when(bundle["counts"].isNull(), alone).otherwise(counted)


def _rank(q: float, n: Column) -> Column:
    """Which of n sorted values, from 1, is the first that at least q of them do not exceed."""
    # The product is rounded, so the rank before it or behind it may be the one.
    low = F.ceil(n * F.lit(q)) - 1
    return F.when((low > 0) & (low / n >= q), low).when((low + 1) / n >= q, low + 1).otherwise(low + 2)


def _nearest_rank(q: float, n: Column) -> Column:
    return F.element_at("sorted", _rank(q, n).cast("int"))


def _of_runs(q: float, n: Column) -> Column:
    """The value that this rank falls to in `runs`."""
    rank = _rank(q, n)
    none = F.struct(F.lit(0).cast("bigint").alias("before"), F.lit(None).cast("double").alias("v"))
    return F.aggregate(
        "runs",
        none,
        lambda a, r: F.struct(
            (a["before"] + r["n"]).alias("before"), F.when(a["before"] < rank, r["v"]).otherwise(a["v"]).alias("v")
        ),
    )["v"]
