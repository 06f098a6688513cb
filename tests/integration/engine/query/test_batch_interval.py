"""Batches that are full follow each other at once; others wait for the interval."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.control import ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.engine.query.stream_run import StreamRun
from penstock.model.input import Input
from penstock.model.output import TopicOutput
from penstock.model.output_mode import Stateless
from penstock.model.stream import Stream
from penstock.model.topic import COMMITS, Topic
from penstock.testing import Record, create, read, send
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

EVENTS, OUT = Topic("events", partitions=2), Topic("copies", partitions=1)
EVERY, MOST = 6.0, 5
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
