"""A combiner changes nothing: however a batch is split, a stream says the same, and what a plain computation says.

Every stream of the catalog that declares one is tried; the plain computations are those of the shipped ones.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.metrics import bundles, metrics_settings, minutes, summaries
from jobs.quality import counts, rules, validity
from penstock import catalog
from penstock.codec import event_time
from penstock.errors import DeclarationError
from penstock.model.schema import schema
from penstock.streams import Combiner, EmitFinal, F, Input, Stream, Table, Topic, TopicOutput
from penstock.testing import splits
from tests.support import json_model, json_texts
from tests.support.statistics_model import order, plain, truncated

pytestmark = pytest.mark.integration

# Sums of squares and what is made of them depend on the order of additions; all else is exact.
MOMENTS = ("average", "m2", "stddev")
START = 1_700_000_400_000
SEED = 1
TOPICS = ("receipts", "other", "more")
REALS: dict[str, Callable[[random.Random], float]] = {
    "even": lambda r: r.uniform(-50, 50),
    "skewed": lambda r: r.lognormvariate(3, 1),
    "ties": lambda r: r.choice([0.0, 1.239, 1.231, -0.0, -1.239]),
    "far": lambda r: 1e6 + r.random(),
    "huge": lambda r: r.choice([1e15, 9.007199254740993e15, 1e300, -1e300, 3.5]),
    "large": lambda r: r.choice([9e99, -9e99, 1e99, 1e100]),
    "tiny": lambda r: r.choice([5e-324, -5e-324, 1e-9, 0.009999]),
    "odd": lambda r: r.choice([math.nan, math.inf, -math.inf, 1.0]),
    "same": lambda _: 0.1,
}
Record = dict[str, Any]
Row = dict[str, Any]


# Two stages that count what `metric-minutes` counts in one.
LONG = ("metric-bundles", "metric-summaries")


def combining() -> Iterator[tuple[Stream, str]]:
    """Every input of the project that has a combiner, with its stream."""
    for stream in catalog.load().streams.values():
        yield from ((stream, name) for name, given in stream.sources.items() if given.combine)


def at_random(given: Input, seed: int) -> list[Record]:
    """Records of an input: in groups of one and of thousands, each of one kind of values, over some windows."""
    chance = random.Random(seed)
    if not given.schema:
        return raw(chance)
    found = []
    for number, kind in enumerate(REALS):
        start = chance.choice([START, -60_000 * 7])
        sizes = [1, 2, 7, 8, 9, 40, 333] + [10_000] * (number == seed % len(REALS))
        for name, size in enumerate(sizes):
            spread = chance.choice([1, 400_000, 1_200_000])
            for _ in range(size):
                found.append(record(given, f"{kind}-{name}", REALS[kind](chance), start + chance.randrange(spread)))
    chance.shuffle(found)
    return found


def record(given: Input, name: str, real: float, at: int) -> Record:
    """A record whose texts are a name and whose reals are one number; `at` is its event time, epoch ms."""
    timed = set(re.findall(r"\w+", given.event_time))
    made: Record = {}
    for field in schema(given.schema, given.source):
        match field.type.kind:
            case "string":
                made[field.name] = name
            case "float" | "double":
                named = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(real, "NaN" if math.isnan(real) else real)
                made[field.name] = named
            case "bigint" | "int":
                made[field.name] = at if field.name in timed else at % 7
            case "boolean":
                made[field.name] = at % 2 == 0
            case kind:
                raise AssertionError(f"a field of type {kind}: say here what it may hold")
    return made


def raw(chance: random.Random) -> list[Record]:
    """Records of three topics over some seconds: valid, invalid and tombstones."""
    make = json_texts.Texts(counts.RULES["receipts"].fields, chance.randrange(99))
    values = [*make(1500), *(text.encode() for text in json_texts.SPECIAL), *[None] * 40]
    values += [b'{"environment":"e","metric":"m","value":1,"timestamp":7}'] * 200
    found = []
    for value in values:
        at = chance.choice([0, -1, 999, 1000, -1000, START, START + chance.randrange(3000)])
        found.append({"topic": chance.choice(TOPICS), "key": None, "value": value, "timestamp": at})
    return found


def bundles_at_random(seed: int) -> list[Record]:
    """Bundles as the first stage writes them: each time with more receipts, repeated, and without their values."""
    chance = random.Random(seed)
    found = []
    for metric in range(20):
        window = (START // 300_000 + chance.randrange(6)) * 300_000
        values = [round(chance.gauss(50, 20), 2) for _ in range(chance.choice([1, 5, 300]))]
        for count in sorted(chance.choices(range(1, len(values) + 1), k=8)):
            some = values[:count]
            mean = sum(some) / count
            known = count % 5 != 0
            made = {"environment": "prod", "metric": f"m{metric}", "window": window, "count": count, "average": mean}
            made |= {"m2": sum((v - mean) ** 2 for v in some), "min": min(some), "max": max(some)}
            found.append({**made, "values": some if known else None, "counts": [1] * count if count % 2 else None})
    chance.shuffle(found)
    return found


def told_apart(row: Row) -> str:
    """What names a row: all that is no number with a point."""
    return repr({name: value for name, value in row.items() if not isinstance(value, float | list)})


def same(found: Sequence[Row], wanted: Sequence[Row], what: str) -> None:
    """AssertionError if rows differ, by more than the order of additions in MOMENTS."""
    one, other = (sorted(rows, key=told_apart) for rows in (found, wanted))
    assert [told_apart(r) for r in one] == [told_apart(r) for r in other], what
    for row, like in zip(one, other, strict=True):
        for name, value in row.items():
            near = slack(name, row) if name in MOMENTS else None
            close(value, like[name], f"{what}: {name} of {row}, not {like}", near)


def slack(name: str, row: Row) -> float:
    """How far apart moments may be beside a billionth: of large values that cancel each other, the last digits."""
    last = 1e-12 * max(abs(row["min"]), abs(row["max"]), 1.0)
    found = last * last * row["count"] if name == "m2" else last
    return found if math.isfinite(found) else 0.0


def close(value: Any, wanted: Any, what: str, near: float | None) -> None:
    """near: None if they must be equal."""
    if isinstance(value, list) and isinstance(wanted, list):
        assert sorted(map(order, value)) == sorted(map(order, wanted)), what
    elif near is not None and not (math.isnan(value) and math.isnan(wanted)):
        assert math.isclose(value, wanted, rel_tol=1e-9, abs_tol=near), what
    else:
        assert value == wanted or order(value) == order(wanted), what


@pytest.mark.parametrize(
    ("stream", "name"),
    [pytest.param(s, n, id=f"{s.name}-{n}", marks=[pytest.mark.long] * (s.name in LONG)) for s, n in combining()],
)
def test_any_split_of_a_batch_gives_the_same_rows(spark: SparkSession, stream: Stream, name: str) -> None:
    absolute = stream.name == summaries.STREAM.name
    given = bundles_at_random(SEED) if absolute else at_random(stream.sources[name], SEED)
    whole, *others = splits(spark, stream, name, given, seed=SEED)
    assert len(whole) > 15
    for number, found in enumerate(others, 1):
        same(found, whole, f"split {number}")
    if stream.name in PLAIN:
        same(whole, PLAIN[stream.name](given), "the plain computation")


def receipts(given: Sequence[Record], size: int) -> Mapping[tuple[str, str, int], list[float]]:
    groups: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for r in given:
        groups[r["environment"], r["metric"], r["timestamp"] // size * size].append(float(r["value"]))
    return groups


def plain_minutes(given: Sequence[Record]) -> list[Row]:
    found = []
    settings = metrics_settings()
    for (environment, metric, window), values in receipts(given, 60_000).items():
        # 1e300 squared is beyond a double.
        figures = {"stddev": math.inf, **plain(values, settings.quantiles, settings.decimals)}
        found.append({"environment": environment, "metric": metric, "window": window, **figures})
    return found


def plain_bundles(given: Sequence[Record]) -> list[Row]:
    found = []
    settings = metrics_settings()
    for (environment, metric, window), values in receipts(given, 300_000).items():
        figures = plain(values, (), settings.decimals)
        found.append(
            {
                "key": f"environment={environment}:metric={metric}",
                "environment": environment,
                "metric": metric,
                "window": window,
                "count": len(values),
                "average": figures["average"],
                "m2": figures["stddev"] ** 2 * len(values) if "stddev" in figures else math.inf,
                "min": figures["min"],
                "max": figures["max"],
                "values": [truncated(v, settings.decimals) for v in values],
                "counts": None,
            }
        )
    return found


def plain_counts(given: Sequence[Record]) -> list[Row]:
    found: Counter[tuple[str, int, str]] = Counter()
    fields = {topic: rule.fields for topic, rule in counts.RULES.items() if topic in TOPICS}
    for r in given:
        value, topic = r["value"], r["topic"]
        valid = value is None or json_model.is_json(value)
        if valid and value is not None and topic in fields:
            row, _ = json_model.record(value, fields[topic])
            valid = row is not None and bool(
                row["environment"] and re.search(r"^[a-z][A-Za-z0-9._:-]*$", row["metric"]) and row["timestamp"] > 0
            )
        found[topic, r["timestamp"] // 1000 * 1000, "valid" if valid else "invalid"] += 1
    return [{"topic": t, "window": w, "status": s, "count": n} for (t, w, s), n in found.items()]


PLAIN: dict[str, Callable[[Sequence[Record]], list[Row]]] = {
    minutes.STREAM.name: plain_minutes,
    bundles.STREAM.name: plain_bundles,
    counts.STREAM.name: plain_counts,
}


@pytest.mark.long
def test_rows_judged_by_spark_are_the_same_for_any_split(spark: SparkSession, tmp_path: Path) -> None:
    rule = "-- topic: other\n-- format: json\n-- schema: value DOUBLE, metric STRING\nvalue * 2 > 3"
    (tmp_path / "a.sql").write_text(rule)
    (tmp_path / "b.sql").write_text("-- topic: more\n-- format: text\nlength(value) % 2 = 0")
    own = rules.load(tmp_path)

    def transform(records: DataFrame) -> DataFrame:
        return validity.add_status(records, own).groupBy("topic", "status").agg({"n": "sum"})

    stream = replace(
        counts.STREAM, inputs={"records": replace(counts.RECORDS, combine=validity.combiner(own))}, transform=transform
    )
    whole, *others = splits(spark, stream, "records", raw(random.Random(5)))
    assert len(whole) == 6
    for found in others:
        same(found, whole, "a split")


BY_SHOP = Combiner(
    "shop STRING NOT NULL, n BIGINT NOT NULL, total DOUBLE NOT NULL",
    "SELECT shop, count(*) AS n, sum(amount) AS total, max(event_time) AS event_time FROM records "
    f"GROUP BY shop, {event_time.window_number('event_time', 60_000_000)}",
)


def by_town(sales: DataFrame, shops: DataFrame) -> DataFrame:
    minutes = sales.join(shops, sales.shop == shops.key).groupBy("town", F.window("event_time", "1 minute"))
    return minutes.agg(F.sum("n").alias("sales"), F.sum("total").alias("total"))


@pytest.mark.long
def test_a_combined_stream_is_split_beside_its_table(spark: SparkSession) -> None:
    sales = Input(
        Topic("sales"),
        schema="shop STRING NOT NULL, amount DOUBLE NOT NULL, at BIGINT NOT NULL",
        event_time="timestamp_millis(at)",
        combine=BY_SHOP,
    )
    stream = Stream(
        name="towns",
        app="tests",
        inputs={"sales": sales, "shops": Table(Topic("shops", compacted=True), schema="town STRING NOT NULL")},
        transform=by_town,
        output=TopicOutput(Topic("towns"), key="town", value="total"),
        output_mode=EmitFinal(timedelta(minutes=1), timedelta(minutes=1)),
    )
    given = [{"shop": f"s{n % 3}", "amount": 1.0, "at": START + n * 7_000} for n in range(60)]
    shops = [{"key": "s0", "town": "Aachen"}, {"key": "s1", "town": "Bonn"}]
    whole, *others = splits(spark, stream, "sales", given, others={"shops": shops})
    assert sum(row["sales"] for row in whole) == 40
    for found in others:
        assert sorted(found, key=repr) == sorted(whole, key=repr)
    with pytest.raises(DeclarationError, match="has other inputs; got: sales; hint: sales, shops"):
        splits(spark, stream, "sales", given)
    uncombined = replace(stream, inputs={**stream.inputs, "sales": replace(sales, combine=None)})
    with pytest.raises(DeclarationError, match="input sales of stream towns has no combiner"):
        splits(spark, uncombined, "sales", given, others={"shops": shops})


@pytest.mark.long
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("n := n,", "n := 1::BIGINT,"),
        ("min(value) AS smallest", "any_value(value) AS smallest"),
        ("var_pop(value)", "var_samp(value)"),
    ],
)
def test_a_wrong_combiner_is_found(spark: SparkSession, right: str, wrong: str) -> None:
    given = minutes.STREAM.inputs["receipts"]
    assert isinstance(given, Input)
    assert given.combine
    assert right in given.combine.sql
    combiner = Combiner(given.combine.schema, given.combine.sql.replace(right, wrong))
    stream = replace(minutes.STREAM, inputs={"receipts": replace(given, combine=combiner)})
    made = [r for r in at_random(given, SEED) if r["metric"].startswith("skewed")]
    whole, alone = splits(spark, stream, "receipts", made, tries=2)

    def compare() -> None:
        same(alone, whole, "many by themselves")
        same(whole, plain_minutes(made), "the plain computation")

    with pytest.raises(AssertionError):
        compare()
