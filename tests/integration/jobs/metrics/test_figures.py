"""Bundles and summaries against a plain computation, on data chosen to be awkward."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobs.metrics import bundles as bundles_job
from jobs.metrics import receipts, statistics
from jobs.metrics import summaries as summaries_job
from jobs.metrics.partials import receipt_combiner
from penstock.streams import Stream
from penstock.testing import frames
from tests.support.statistics_model import plain

pytestmark = pytest.mark.integration

BUNDLE, SUMMARY = timedelta(minutes=5), timedelta(minutes=10)
QUANTILES = (0.01, 0.5, 0.9, 0.999, 1.0)
NAMES = statistics.quantile_names(QUANTILES)
START = 1_700_000_400_000
Receipt = tuple[str, float, int]
"""Metric, value, time in epoch ms."""


def frame(spark: SparkSession, stream: Stream, receipts: Iterable[Receipt]) -> DataFrame:
    """Receipts as the transform of a stream gets them: in parts."""
    return frames(spark, stream, receipts=[text(r) for r in receipts])["receipts"]


def text(receipt: Receipt) -> str:
    metric, value, at = receipt
    named = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN" if math.isnan(value) else value)
    return json.dumps({"environment": "prod", "metric": metric, "value": named, "timestamp": at})


def over(window: timedelta, decimals: int = 2) -> Stream:
    """A stream whose receipts come in parts for such a window."""
    given = replace(receipts(window), combine=receipt_combiner(window, decimals))
    return replace(bundles_job.STREAM, inputs={"receipts": given})


def bundles(spark: SparkSession, receipts: Iterable[Receipt], decimals: int = 2, distinct: int = 1000) -> DataFrame:
    """Bundles as the second stage reads them: through the text on the topic."""
    made = statistics.bundle_receipts(frame(spark, over(BUNDLE, decimals), receipts), BUNDLE, decimals, distinct)
    return frames(spark, summaries_job.STREAM, bundles=[r.value for r in encoded(made)])["bundles"]


def encoded(made: DataFrame) -> list[Row]:
    """Bundles as they lie on the topic."""
    [output] = bundles_job.STREAM.outputs.values()
    return made.select(*output.columns()).collect()


def summaries(made: DataFrame, quantiles: Sequence[float] = QUANTILES) -> dict[tuple[str, int], dict[str, Any]]:
    rows = statistics.merge_bundles(made, BUNDLE, SUMMARY, quantiles).collect()
    return {(r.metric, r.window): r.asDict() for r in rows}


def check(found: dict[tuple[str, int], dict[str, Any]], receipts: Iterable[Receipt], rel: float = 1e-9) -> None:
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    size = int(SUMMARY.total_seconds() * 1000)
    for metric, value, at in receipts:
        groups[metric, at // size * size].append(value)
    assert found.keys() == groups.keys()
    for group, values in groups.items():
        for name, wanted in plain(values, QUANTILES).items():
            got = found[group][name]
            exact = name in ("count", "min", "max") or name in NAMES
            assert got == pytest.approx(wanted, rel=0 if exact else rel, abs=0 if exact else rel, nan_ok=True), (
                f"{name} of {group}: {got}, not {wanted}, over {len(values)} values"
            )


def at_random(seed: int) -> list[Receipt]:
    random.seed(seed)
    kinds: dict[str, Callable[[], float]] = {
        "even": lambda: random.uniform(-50, 50),
        "skewed": lambda: random.lognormvariate(3, 1),
        "ties": lambda: random.choice([0.0, 1.239, 1.231, -0.0, -1.239]),
        "huge": lambda: random.choice([1e15, 9.007199254740993e15, 1e300, -1e300, 3.5]),
        "tiny": lambda: random.choice([5e-324, -5e-324, 1e-9, 0.009999]),
        "odd": lambda: random.choice([math.nan, math.inf, -math.inf, 1.0]),
    }
    found = [
        (kind, make(), START + random.randrange(1_200_000))
        for kind, make in kinds.items()
        for _ in range(random.choice([40, 333]))
    ]
    return [*found, ("one", 3.14159, START)]


@pytest.mark.long
def test_two_stages_give_what_a_plain_computation_gives(spark: SparkSession) -> None:
    receipts = [(f"{metric}-{seed}", value, at) for seed in range(4) for metric, value, at in at_random(seed)]
    finite = [r for r in receipts if not r[0].startswith("huge")]
    check(summaries(bundles(spark, finite)), finite)
    # 1e300 squared is beyond a double: of such values only what is ordered can be asked.
    huge = [r for r in receipts if r[0].startswith("huge")]
    for group, got in summaries(bundles(spark, huge)).items():
        values = [v for m, v, at in huge if (m, at // 600_000 * 600_000) == group]
        wanted = plain(values, QUANTILES)
        assert {n: got[n] for n in (*NAMES, "count", "min", "max")} == {
            n: wanted[n] for n in (*NAMES, "count", "min", "max")
        }


def test_one_stage_agrees_with_two(spark: SparkSession) -> None:
    receipts = [r for r in at_random(9) if r[0] not in ("huge", "odd")]
    one = statistics.summarize(frame(spark, over(SUMMARY), receipts), SUMMARY, 2, QUANTILES).collect()
    check({(r.metric, r.window): r.asDict() for r in one}, receipts)


def test_the_deviation_of_close_values_far_from_zero_does_not_cancel(spark: SparkSession) -> None:
    receipts = [("far", 1e9 + (i % 7) * 1e-3, START + i * 500) for i in range(1200)]
    check(summaries(bundles(spark, receipts)), receipts, rel=1e-6)


@pytest.mark.long
def test_a_bundle_repeated_grown_or_overtaken_counts_once(spark: SparkSession) -> None:
    receipts = [("m", float(i % 13), START + i * 900) for i in range(600)]
    stages = [bundles(spark, receipts[:n]) for n in (400, 600, 150, 600)]
    together = stages[0].unionByName(stages[1]).unionByName(stages[2]).unionByName(stages[3])
    check(summaries(together), receipts)


@pytest.mark.long
def test_too_many_values_give_no_quantiles_rather_than_wrong_ones(spark: SparkSession) -> None:
    receipts = [("wide", i / 7, START + i % 1000) for i in range(20_000)]
    made = bundles(spark, [*receipts, ("narrow", 1.0, START)], distinct=100).cache()
    held = {r.metric: r.values for r in made.select("metric", F.col("values")).collect()}
    assert held == {"wide": None, "narrow": [1.0]}
    found = summaries(made)
    wide = next(row for (metric, _), row in found.items() if metric == "wide")
    assert {wide[name] for name in NAMES} == {None}
    assert (wide["count"], wide["min"], wide["max"]) == (20_000, 0.0, 19_999 / 7)


def test_a_bundle_of_many_receipts_counts_its_values(spark: SparkSession) -> None:
    receipts = [r for r in at_random(11) if r[0] in ("ties", "tiny", "odd")]
    made = bundles(spark, receipts, distinct=6).cache()
    # Zero and minus zero are one value here.
    values = made.where("metric = 'ties' AND counts IS NOT NULL").select("values", "counts", "count").collect()
    assert values
    for row in values:
        assert sorted(row["values"]) == [-1.23, 0.0, 1.23]
        assert sum(row.counts) == row["count"]
    check(summaries(made), receipts)


@pytest.mark.long
@pytest.mark.parametrize("distinct", [6, pytest.param(1000, marks=pytest.mark.long)])
def test_groups_too_large_to_unfold_give_the_same(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, distinct: int
) -> None:
    receipts = at_random(11)
    made = bundles(spark, receipts, distinct=distinct).where("values IS NOT NULL").cache()
    wanted = summaries(made)
    monkeypatch.setattr(statistics, "MAX_SORTED", 20)
    assert repr(summaries(made)) == repr(wanted)


def test_a_bundle_costs_what_it_holds_and_not_what_it_counts(spark: SparkSession) -> None:
    """Three records of 200 bytes: unfolded, they filled the memory of the driver."""
    rows = [("prod", "m", START + 300_000 * i, 2**50, 1.0, 0.0, 1.0, 2.0, [2.0, 1.0], [1, 2**50 - 1]) for i in (0, 1)]
    rows.append(("prod", "m", START, 3, 1.0, 0.0, 1.0, 2.0, [2.0, 1.0], [1, 2]))
    made = spark.createDataFrame(rows, statistics.BUNDLE_SCHEMA.replace(" NOT NULL", ""))
    made = made.withColumn("event_time", F.timestamp_millis("window"))
    [found] = summaries(made, (0.5, 1.0)).values()
    assert (found["count"], found["p50"], found["p100"]) == (2**51, 1.0, 2.0)


@pytest.mark.long
def test_ranks_are_not_rounded_away(spark: SparkSession) -> None:
    receipts = [(str(n), float(i), START) for n in (1, 2, 3, 7, 10, 29, 100, 1000) for i in range(n)]
    quantiles = (0.01, 0.07, 0.14, 0.28, 0.29, 0.55, 0.57, 0.58, 1 / 3, 0.7, 0.9, 0.999, 1.0)
    names = statistics.quantile_names(quantiles)
    for (n, _), found in summaries(bundles(spark, receipts), quantiles).items():
        wanted = plain([float(i) for i in range(int(n))], quantiles)
        assert {name: found[name] for name in names} == {name: wanted[name] for name in names}, n


def test_the_encoding_of_a_bundle(spark: SparkSession) -> None:
    two = frame(spark, over(BUNDLE), [("dbWaitTime", 2.345, START), ("dbWaitTime", 2.341, START)])
    [row] = encoded(statistics.bundle_receipts(two, BUNDLE, 2, 100))
    assert row.key == b"environment=prod:metric=dbWaitTime"
    value = json.loads(row.value)
    assert list(value) == list(statistics.BUNDLE)
    assert (value["count"], value["values"], value["counts"]) == (2, [2.34, 2.34], None)
