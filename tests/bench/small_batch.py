"""Where the time of a small batch goes, beside the same query of plain Structured Streaming, in one run.

Each of three streams reads a hundred records a batch: one without state, one of windows that it emits when they end,
and one of windows that it emits as they change. Spark says how long the parts of a batch take; within its `addBatch`,
the steps of Penstock's commit are timed. The plain query reads the same records and writes to another topic by Spark's
own sink, which writes rows again after a failure.

    python -m tests.bench.small_batch [batches]
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.commit.checked_rows import CheckedRows
from penstock.engine.commit.committer import BatchCommitter
from penstock.engine.faults.data_loss import InputCheck
from penstock.engine.faults.poison import PoisonRecords
from penstock.engine.jvm.bridge import BatchExecution
from penstock.engine.query.watermark import Watermark
from penstock.host.ports import free_port
from penstock.java import aot_cache
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import sql_stream
from penstock.streams import F, Stream, Topic
from penstock.testing import Record, create, running, send, spark_session
from tests.bench.common import table, write

WARM_UP, RECORDS = 20, 100
# The event time of a batch is so many seconds after that of the one before: each batch ends windows.
STEP_S = 70
# Younger than the retention of the topic, and before now at the end.
BEGIN_S = int(time.time()) // 60 * 60 - 86_400
SCHEMA = "shop STRING NOT NULL, amount INT NOT NULL, at BIGINT NOT NULL"
READ = f"PARTITIONS 1 READ `small-sales` AS JSON ({SCHEMA}) EVENT TIME timestamp_seconds(at) AHEAD 1 HOUR"
WINDOWS = """KEY (shop, minute) EMIT {emit} WINDOW 1 MINUTE GRACE 0 SECONDS{late}
AS SELECT shop, unix_seconds(window.start) AS minute, count(*) AS sales, sum(amount) AS amount
FROM `small-sales` GROUP BY shop, window(event_time, '1 minute')"""
CASES = {
    "without state": f"STREAM INTO small-rows {READ} KEY (shop) AS SELECT shop, amount * 2 AS twice FROM `small-sales`",
    "windows, EMIT FINAL": f"STREAM INTO small-final {READ} {WINDOWS.format(emit='FINAL', late=' LATE BY 0 SECONDS')}",
    "windows, EMIT CHANGES": f"STREAM INTO small-changes {READ} {WINDOWS.format(emit='CHANGES', late='')}",
}
# Spark's names of the parts of a batch, `addBatch` apart.
SPARK_PARTS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "commitOffsets")
# The steps of Penstock's commit, within `addBatch`: what they do, and the calls that are timed.
STEPS: dict[str, tuple[tuple[Any, str], ...]] = {
    "ask the broker for the records' offsets, before and after": (
        (InputCheck, "check_before"), (InputCheck, "check_after"),
    ),
    "compute the rows: Spark's job": ((PoisonRecords, "watch"),),
    "check the rows": ((CheckedRows, "of"),),
    "find late and bad records": ((BatchCommitter, "_with_rejected"),),
    "read what is planned and committed": ((Checkpoint, "batch"), (BatchCommitter, "_marker")),
    "move the watermark": ((Watermark, "cap"), (BatchExecution, "last_of")),
    "bring the checkpoint to the disk": ((Checkpoint, "sync"),),
    "the transaction": ((BatchCommitter, "_deliver"),),
}  # fmt: skip


class Measured:
    """Milliseconds of each part of each batch, and CPU milliseconds of the processes over all of them."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)
        self.steps: dict[int, dict[str, float]] = {}
        self.cpu: dict[str, float] = {}

    def median(self, part: str) -> float:
        return statistics.median(self.parts[part]) if self.parts[part] else 0.0


def cpu_ms(processes: dict[str, psutil.Process]) -> dict[str, float]:
    return {name: sum(process.cpu_times()[:2]) * 1000 for name, process in processes.items()}


@contextmanager
def timed(steps: dict[int, dict[str, float]]) -> Iterator[None]:
    """Time the steps of each batch, by its number. The calls of a step add up."""
    spent: dict[str, float] = defaultdict(float)

    def wrapped(step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                spent[step] += (time.perf_counter() - began) * 1000

        return run

    run_batch = BatchCommitter._run_batch

    def whole(self: BatchCommitter, frame: DataFrame, batch_id: int) -> None:
        spent.clear()
        run_batch(self, frame, batch_id)
        steps[batch_id] = dict(spent)

    with ExitStack() as stack:
        stack.enter_context(patch.object(BatchCommitter, "_run_batch", whole))
        for step, calls in STEPS.items():
            for owner, name in calls:
                call = wrapped(step, getattr(owner, name))
                is_bound = isinstance(owner.__dict__[name], classmethod | staticmethod)
                stack.enter_context(patch.object(owner, name, staticmethod(call) if is_bound else call))
        yield


def stream_of(text: str) -> Stream:
    return sql_stream(parse(text, Path(f"sql/streams/{text.split()[2]}.sql")), {})


def sell(bootstrap: str, batch: int) -> None:
    at = BEGIN_S + batch * STEP_S
    texts = [json.dumps({"shop": f"shop-{n % 10}", "amount": n, "at": at}) for n in range(RECORDS)]
    send(bootstrap, [Record("small-sales", None, text, timestamp=at * 1000) for text in texts])


def plain(case: str, spark: SparkSession, bootstrap: str, checkpoint: Path) -> StreamingQuery:
    """The query as an author of plain Spark would write it."""
    options = {"kafka.bootstrap.servers": bootstrap}
    source = spark.readStream.format("kafka").options(**options, subscribe="small-sales").load()
    sales = source.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("sale")).select("sale.*")
    if case == "without state":
        rows, mode = sales.select("shop", (F.col("amount") * 2).alias("twice")), "append"
    else:
        timed_sales = sales.withColumn("time", F.timestamp_seconds("at")).withWatermark("time", "0 seconds")
        grouped = timed_sales.groupBy("shop", F.window("time", "1 minute"))
        rows = grouped.agg(F.count("*").alias("sales"), F.sum("amount").alias("amount"))
        mode = "append" if case.endswith("FINAL") else "update"
    encoded = rows.select(F.col("shop").alias("key"), F.to_json(F.struct("*")).alias("value"))
    writer = encoded.writeStream.format("kafka").options(**options, topic="small-plain").outputMode(mode)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def measure(
    result: Measured,
    query: StreamingQuery,
    processes: dict[str, psutil.Process],
    next_batch: Callable[[], None],
    n: int,
) -> None:
    """Let a query run batches of a hundred records, of which the first warm it up."""
    for _ in range(WARM_UP):
        next_batch()
    assert query.lastProgress
    before, cpu = query.lastProgress["batchId"], cpu_ms(processes)
    for _ in range(n):
        began = time.perf_counter()
        next_batch()
        result.parts["until it is written"].append((time.perf_counter() - began) * 1000)
    result.cpu = {name: (spent - cpu[name]) / n for name, spent in cpu_ms(processes).items()}
    for progress in query.recentProgress:
        # A batch without records, which a watermark causes, is no batch of a hundred records.
        if progress["batchId"] > before and progress["numInputRows"]:
            for part in ("addBatch", *SPARK_PARTS):
                result.parts[part].append(progress["durationMs"].get(part, 0))
            for step in STEPS:
                result.parts[step].append(result.steps.get(progress["batchId"], {}).get(step, 0.0))


def rows_of(ours: dict[str, Measured], theirs: dict[str, Measured]) -> Iterator[list[object]]:
    def row(name: str, *values: float) -> list[object]:
        return [name, *(f"{value:.0f}" for value in values)]

    for step in STEPS:
        yield row(step, *(ours[case].median(step) for case in CASES))
    inside = {case: sum(map(ours[case].median, STEPS)) for case in CASES}
    yield row("the rest of `addBatch`", *(ours[case].median("addBatch") - inside[case] for case in CASES))
    for part in SPARK_PARTS:
        yield row(f"`{part}`", *(ours[case].median(part) for case in CASES))
    whole = "until it is written"
    yield row("**a batch until it is written**", *(ours[case].median(whole) for case in CASES))
    yield row("plain Spark: until it is written", *(theirs[case].median(whole) for case in CASES))
    ratios = [ours[case].median(whole) / theirs[case].median(whole) for case in CASES]
    yield ["ratio of both", *(f"{ratio:.2f}" for ratio in ratios)]
    for name in ours[next(iter(CASES))].cpu:
        yield row(f"CPU of {name}", *(ours[case].cpu[name] for case in CASES))
        yield row(f"plain Spark: CPU of {name}", *(theirs[case].cpu[name] for case in CASES))


def main(batches: int) -> None:
    aot_cache.ensure()
    ours, theirs = ({case: Measured() for case in CASES} for _ in range(2))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        broker = stack.enter_context(Broker(home=root / "broker", port=free_port(2)))
        spark = stack.enter_context(spark_session(aot_cache.options()))
        me = psutil.Process()
        java = [one for one in me.children() if "java" in one.name() or "java" in " ".join(one.cmdline()[:1])]
        jvm = next(one for one in java if "org.apache.spark" in " ".join(one.cmdline()))
        processes = {"Python": me, "Spark's JVM": jvm}
        streams = {case: stream_of(text) for case, text in CASES.items()}
        for stream in streams.values():
            create(broker.bootstrap, *stream.topics())
        create(broker.bootstrap, Topic("small-plain", partitions=1))
        sent = 0
        for case, stream in streams.items():

            def next_batch(wait: Callable[[], None]) -> None:
                nonlocal sent
                sell(broker.bootstrap, sent)
                sent += 1
                wait()

            with timed(ours[case].steps), running(stream, spark, broker.bootstrap, root / "checkpoints") as run:
                query = run._query
                assert query
                measure(ours[case], query, processes, lambda run=run: next_batch(run.process_all_available), batches)  # type: ignore[misc]
            query = plain(case, spark, broker.bootstrap, root / f"plain-{stream.name}")
            measure(theirs[case], query, processes, lambda query=query: next_batch(query.processAllAvailable), batches)  # type: ignore[misc]
            query.stop()
    text = f"{batches} batches of {RECORDS} records each, after {WARM_UP} to warm up; medians in milliseconds.\n\n"
    whole = "until it is written"
    figures = {
        "a batch until it is written, ms": {
            f"{case}: {who}": of[case].parts[whole]
            for case in CASES
            for who, of in (("Penstock", ours), ("plain Spark", theirs))
        },
        **{f"{part}, ms": {case: ours[case].parts[part] for case in CASES} for part in ("addBatch", *SPARK_PARTS)},
        **{f"{step}, ms": {case: ours[case].parts[step] for case in CASES} for step in STEPS},
    }
    text += table(["part of a batch", *CASES], list(rows_of(ours, theirs)))
    write("small-batch", text, figures, chart="a batch until it is written, ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
