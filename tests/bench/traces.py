"""What trace contexts cost: the same stream with and without them, over the same records, in turn.

Each record has a traceparent. The stream, without state, has one input of JSON and one topic; spans are made, and
exported nowhere. Each run reads the topic from its beginning in one batch, in a session that is warm.

    python -m tests.bench.traces [records] [runs of each]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from penstock.devstack.servers.kafka import Broker
from penstock.engine.progress import batch_spans
from penstock.host.ports import free_port
from penstock.model.topic import COMMITS
from penstock.settings import settings
from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import create, running, spark_session
from tests.bench.common import table, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SALES = Topic("sales", partitions=2, config={"retention.ms": "-1"})
OUT = Topic("doubled", partitions=2, config={"retention.ms": "-1"})
INPUT = Input(
    SALES,
    schema="shop STRING, amount DOUBLE, at BIGINT NOT NULL",
    event_time="timestamp_millis(at)",
    dead_letters="count",
)
AT = int(time.time() * 1000)


def doubled(sales: DataFrame) -> DataFrame:
    return sales.where("amount >= 0").select("shop", (F.col("amount") * 2).alias("twice"))


def fill(bootstrap: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000, "linger.ms": 50})
    for n in range(records):
        value = f'{{"shop":"shop-{n % 1000}","amount":{n % 977}.5,"at":{AT + n}}}'
        headers: dict[str, str | bytes | None] = {"traceparent": f"00-{n + 1:032x}-{n + 1:016x}-01"}
        producer.produce(SALES.name, value, partition=n % 2, timestamp=AT, headers=headers)
        if n % 50_000 == 0:
            producer.poll(0)
    producer.flush()


def run(number: int, spark: SparkSession, bootstrap: str, folder: Path, *, traces: bool) -> float:
    """Seconds from the start of the query until all records are written."""
    os.environ["PENSTOCK_TRACES"] = str(traces)
    settings.cache_clear()
    batch_spans._provider.cache_clear()
    output = TopicOutput(OUT, key="shop", value=("shop", "twice"))
    stream = Stream(f"doubled-{number}", "bench", {"sales": INPUT}, doubled, output, Stateless())
    at = time.perf_counter()
    with running(stream, spark, bootstrap, folder) as started:
        started.process_all_available()
        return time.perf_counter() - at


def main(records: int, runs: int) -> None:
    os.environ["OTEL_TRACES_EXPORTER"] = "none"
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name, Broker(home=Path(name), port=free_port(2)) as broker:
        create(broker.bootstrap, SALES, OUT, COMMITS)
        fill(broker.bootstrap, records)
        with spark_session() as spark:
            for number in range(2 * runs + 2):
                traces = number % 2 == 1
                seconds = run(number, spark, broker.bootstrap, Path(name) / "checkpoints", traces=traces)
                print(f"{'with' if traces else 'without'} traces: {seconds:.1f} s", flush=True)
                if number > 1:
                    times[traces].append(seconds)
    medians = {traces: statistics.median(found) for traces, found in times.items()}
    rows = [
        ["with traces" if on else "without", f"{medians[on]:.1f}", ", ".join(f"{s:.1f}" for s in times[on]),
         f"{records / medians[on]:,.0f}"]
        for on in (False, True)
    ]  # fmt: skip
    text = f"{records:,} records with a traceparent, {runs} runs of each in turn after one that is not counted.\n\n"
    text += table(["", "median, s", "runs, s", "records/s"], rows)
    figures = {"time, s": {"with traces": times[True], "without": times[False]}}
    write("traces", f"{text}\n\nRatio of the medians: {medians[True] / medians[False]:.2f}.", figures)


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    # A batch has them all: more would not fit the heap of the session.
    main(*arguments, *(200_000, 3)[len(arguments) :])
