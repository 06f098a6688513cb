"""What expectations cost: a batch with none, one and five rules, in turn, without reading and writing topics.

A million rows are encoded in Spark, collected as Arrow and checked, as between the decoding and the transaction of a
batch. The rules are `KEEP`; one row in a hundred violates one.

    python -m tests.bench.expectations [rows] [runs of each]
"""

from __future__ import annotations

import statistics
import sys
import time

from penstock.engine.commit.checked_rows import CheckedRows
from penstock.engine.query.encode import encode_rows, split_by_output
from penstock.streams import Expectation, F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import spark_session
from tests.bench.common import table, write

PREDICATES = (
    "twice >= 20", "twice < 5000", "shop RLIKE '^shop-[0-9]+$'", "length(shop) BETWEEN 6 AND 9",
    "twice IS NOT NULL AND shop <> ''",
)  # fmt: skip
COUNTS = (0, 1, 5)


def stream(rules: int) -> Stream:
    given = Input(Topic("sales"), schema="shop STRING, amount DOUBLE, at BIGINT", event_time="timestamp_millis(at)")
    return Stream(
        "doubled", "bench", {"sales": given},
        lambda sales: sales.select("shop", (F.col("amount") * 2).alias("twice")),
        TopicOutput(Topic("doubled"), key="shop", value=("shop", "twice")), Stateless(),
        expectations=tuple(Expectation(f"rule_{n}", sql, "keep") for n, sql in enumerate(PREDICATES[:rules])),
    )  # fmt: skip


def main(records: int, runs: int) -> None:
    times: dict[int, list[float]] = {count: [] for count in COUNTS}
    with spark_session() as spark:
        shop = F.concat(F.lit("shop-"), (F.col("id") % 1000).cast("string")).alias("shop")
        sales = spark.range(0, records, numPartitions=2).select(shop, (F.col("id") % 977 + 0.5).alias("amount"))
        for number in range(len(COUNTS) * (runs + 1)):
            one = stream(count := COUNTS[number % len(COUNTS)])
            at = time.perf_counter()
            checked = CheckedRows.of(one, split_by_output(one, encode_rows(one, one.transform(sales)).toArrow()))
            seconds = time.perf_counter() - at
            assert checked.by_output["doubled"].num_rows == records
            assert bool(sum(checked.violations.values())) == bool(count)
            if number >= len(COUNTS):
                times[count].append(seconds)
    medians = {count: statistics.median(found) for count, found in times.items()}
    rows = [
        [n, f"{medians[n]:.2f}", ", ".join(f"{s:.2f}" for s in times[n]), f"{medians[n] / medians[0]:.2f}"]
        for n in COUNTS
    ]
    text = f"{records:,} rows, {runs} runs of each in turn after one that is not counted.\n\n"
    figures = {"time, s": {f"{count} rules": found for count, found in times.items()}}
    write("expectations", text + table(["rules", "median, s", "runs, s", "ratio"], rows), figures)


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    main(*arguments, *(1_000_000, 7)[len(arguments) :])
