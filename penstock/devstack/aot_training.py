"""The run that teaches Java what drivers do: some streams of its own, over a broker of its own, then a clean end.

    python -m penstock.devstack.aot_training FILE

leaves the cache in FILE; see `penstock.java.aot_cache`. It goes the ways of every driver: the source, both layouts and
the parser, dead letters, windows with state in both output modes, the output's transaction.
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from penstock.control import ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.engine.jvm import bridge
from penstock.engine.query.stream_run import StreamRun
from penstock.engine.session import open_session
from penstock.host.ports import free_port
from penstock.java import aot_cache
from penstock.kafka.admin import ensure_topics
from penstock.streams import EmitChanges, EmitFinal, F, Input, Stream, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE = timedelta(minutes=1)
ROUNDS = 3
PER_ROUND = 60_000

READINGS = Topic("readings", partitions=2)
INPUT = Input(
    READINGS,
    schema="name STRING NOT NULL, value DOUBLE NOT NULL, at BIGINT NOT NULL",
    event_time="timestamp_millis(at)",
)
FIGURES = ("count", "average", "spread", "least", "greatest", "values")


def totals(readings: DataFrame) -> DataFrame:
    value = F.col("value")
    figures = (F.count("*"), F.avg(value), F.stddev_pop(value), F.min(value), F.max(value), F.collect_list(value))
    named = [column.alias(name) for column, name in zip(figures, FIGURES, strict=True)]
    return readings.groupBy("name", F.window("event_time", "1 minute").alias("w")).agg(*named).drop("w")


def counts(records: DataFrame) -> DataFrame:
    group = records.groupBy("topic", F.window("event_time", "1 minute").alias("w"))
    return group.agg(F.count("*").alias("count")).drop("w")


STREAMS = [
    Stream(
        name="totals",
        app="training",
        inputs={"readings": INPUT},
        transform=totals,
        output=TopicOutput(Topic("totals", partitions=1), key="name", value=FIGURES),
        output_mode=EmitChanges(window=MINUTE, grace=MINUTE),
        shuffle_partitions=2,
    ),
    Stream(
        name="counts",
        app="training",
        inputs={"records": Input(READINGS)},
        transform=counts,
        output=TopicOutput(Topic("counts", partitions=1), key="topic", value="count"),
        output_mode=EmitFinal(window=MINUTE, grace=timedelta(0)),
    ),
]


def readings(number: int) -> Iterator[str]:
    """The texts of one round: one in a thousand is bad or in a layout of its own."""
    seeded = random.Random(number)
    now = int(time.time() * 1000) - (ROUNDS - number) * 60_000
    for i in range(PER_ROUND):
        reading = {"name": f"reading-{seeded.randrange(200)}", "value": round(seeded.gauss(100, 30), 2), "at": now + i}
        text = json.dumps(reading, separators=(",", ":"))
        yield text if i % 1000 else (" " + text, text[:-1], json.dumps({**reading, "more": None}))[i // 1000 % 3]


def main() -> int:
    logging.basicConfig(level=logging.WARNING)
    # The broker has a session of its own, which `make down` does not know.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with TemporaryDirectory() as folder, Broker(home=Path(folder), port=free_port(2)) as broker:
        ensure_topics([topic for stream in STREAMS for topic in stream.topics()], broker.bootstrap)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": PER_ROUND})
        spark = open_session("training", java_options=aot_cache.training_options(Path(sys.argv[1])))
        runs = [
            StreamRun(s, spark, broker.bootstrap, f"{folder}/checkpoints", ProgressRow(s.name, s.app, "training"))
            for s in STREAMS
        ]
        for number in range(ROUNDS):
            for text in readings(number):
                producer.produce(READINGS.name, text)
            producer.flush()
            for run in runs:
                run.reconcile()
                run.process_all_available()
        for run in runs:
            run.stop()
        # Java writes the cache at a normal exit.
        return bridge.stop_jvm(spark)


if __name__ == "__main__":
    sys.exit(main())
