"""Batches that are half full follow each other at once; others wait for the interval."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.control import ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.engine.query.stream_run import StreamRun
from penstock.model.input import Input
from penstock.model.output import TopicOutput
from penstock.model.output_mode import EmitChanges, Stateless
from penstock.model.stream import Stream
from penstock.model.topic import COMMITS, Topic
from penstock.streams import F
from penstock.testing import Record, create, read, send
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

EVENTS, OUT = Topic("events", partitions=2), Topic("copies", partitions=1)
EVERY, MOST, SECOND = 6.0, 5, timedelta(seconds=1)
STREAM = Stream(
    name="copying",
    app="tests",
    inputs={"events": Input(EVENTS, schema="n BIGINT NOT NULL", event_time="timestamp_millis(n)")},
    transform=lambda events: events.select("n"),
    output=TopicOutput(OUT, key="n", value=("n",)),
    output_mode=Stateless(),
    every=EVERY,
    max_records=MOST,
)


def counted(events: DataFrame) -> DataFrame:
    windows = events.groupBy(F.window("event_time", "1 second").alias("w")).agg(F.count("*").alias("n"))
    return windows.select(F.col("w.end").cast("string").alias("end"), "n")


def test_a_backlog_of_full_batches_does_not_wait(spark: SparkSession, fresh_broker: Broker, tmp_path: Path) -> None:
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, EVENTS, Topic(EVENTS.dead_letters, partitions=1), OUT, COMMITS)
    run = StreamRun(STREAM, spark, bootstrap, str(tmp_path), ProgressRow("copying", "tests", "i"))

    def copied() -> int:
        return len(read(bootstrap, "copies"))

    def produce(count: int, first: int = 0) -> None:
        send(bootstrap, [Record("events", None, f'{{"n": {n}}}', n % 2) for n in range(first, first + count)])

    produce(1)
    run.start()
    try:
        wait_until(lambda: copied() == 1, 120)
        produce(8 * MOST, first=1)
        begun = time.monotonic()
        wait_until(lambda: copied() == 1 + 8 * MOST, 120)
        # An interval for each of the batches would take eight times as long.
        assert time.monotonic() - begun < 4 * EVERY
        produce(1, first=1000)
        time.sleep(EVERY / 3)
        assert copied() == 1 + 8 * MOST
        wait_until(lambda: copied() == 2 + 8 * MOST, 120)
    finally:
        run.stop()


def test_a_stream_that_keeps_up_moves_its_watermark(spark: SparkSession, fresh_broker: Broker, tmp_path: Path) -> None:
    """A batch that the limit cuts short does not. Each would be, if it had to be full to begin."""
    stream = replace(
        STREAM, name="counting", transform=counted, output=TopicOutput(OUT, key="end", value=("end", "n")),
        output_mode=EmitChanges(SECOND, SECOND), every=2.0, max_records=20,
    )  # fmt: skip
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, EVENTS, Topic(EVENTS.dead_letters, partitions=1), OUT, COMMITS)
    run = StreamRun(stream, spark, bootstrap, str(tmp_path), ProgressRow("counting", "tests", "i"))
    run.start()
    begun, watermarks = time.time(), set[int]()
    try:
        while time.time() < begun + 90 and len(watermarks) < 4:
            # As many as limit the stream to ten records at a time, if it waits for full batches.
            send(bootstrap, [Record("events", None, f'{{"n": {int(time.time() * 1000)}}}', n % 2) for n in range(6)])
            time.sleep(0.4)
            # The first batch reads what came while the query started.
            progress = run.report()
            if progress.watermark and progress.batch_id and progress.batch_id > 1:
                watermarks.add(progress.watermark)
    finally:
        run.stop()
    assert len(watermarks) == 4, run.report()
