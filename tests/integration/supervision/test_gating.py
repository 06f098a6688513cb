"""A chain of streams on a real broker: what the first was too late with must not be late for the second."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from penstock.engine.query.stream_run import StreamRun
from penstock.kafka.admin import admin, end_offsets
from penstock.streams import EmitFinal, F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing import Record, create, read, running, send
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

WINDOW, GRACE = timedelta(seconds=2), timedelta(seconds=3)
SOURCE, BETWEEN, COUNTS = (Topic(name, partitions=2) for name in ("chain-source", "chain-between", "chain-counts"))
AT = "at BIGINT NOT NULL"


def given(topic: Topic) -> Input:
    return Input(topic, schema=AT, event_time="timestamp_millis(at)")


def seconds(given: DataFrame) -> DataFrame:
    windows = given.groupBy(F.window("event_time", "1 second").alias("w")).agg(F.count("*").alias("n"))
    return windows.select((F.unix_millis("w.end") - 1).alias("at"), "n")


def counts(given: DataFrame) -> DataFrame:
    windows = given.groupBy(F.window("event_time", "2 seconds").alias("w")).agg(F.count("*").alias("n"))
    return windows.select(F.unix_millis("w.end").alias("end"), "n")


FIRST = {
    "each": Stream(
        "first", "chain", {"given": given(SOURCE)}, lambda given: given.select("at"),
        TopicOutput(BETWEEN, key="at", value=("at",)), Stateless(),
    ),
    "windows": Stream(
        "first", "chain", {"given": given(SOURCE)}, seconds,
        TopicOutput(BETWEEN, key="at", value=("at", "n")), EmitFinal(timedelta(seconds=1), timedelta(seconds=1)),
    ),
}  # fmt: skip
SECOND = Stream(
    "second", "chain", {"given": given(BETWEEN)}, counts, TopicOutput(COUNTS, key="end", value="n"),
    EmitFinal(WINDOW, GRACE),
)  # fmt: skip


class Chain:
    """What the drivers of a chain and the beater do, in turn."""

    def __init__(self, control: Control, bootstrap: str, beater: HeartbeatSender) -> None:
        self.control, self.bootstrap, self.beater = control, bootstrap, beater

    def turn(self, *runs: StreamRun) -> None:
        for run in runs:
            places, at = [(t, p) for t, parts in run.offsets.items() for p in parts], time.monotonic()
            ends = end_offsets(admin(self.bootstrap), places, self.bootstrap)
            run.lag(run.offsets, ends, ends, at)
        self.control.report([run.report() for run in runs], keep=False)
        self.beater.run_once()

    def counted(self) -> dict[int, int]:
        return {int(r.key or 0): int(r.value or 0) for r in read(self.bootstrap, COUNTS.name)}


@pytest.fixture(params=["each", pytest.param("windows", marks=pytest.mark.long)])
def first(request: pytest.FixtureRequest) -> Stream:
    return FIRST[request.param]


@pytest.fixture
def chain(control: Control, fresh_broker: Broker, first: Stream) -> Iterator[Chain]:
    made = catalog.build([first, SECOND])
    create(fresh_broker.bootstrap, *made.topics.values())
    control.sync(made)
    with closing(HeartbeatSender(made.heartbeat_topics(), control, fresh_broker.bootstrap)) as beater:
        yield Chain(control, fresh_broker.bootstrap, beater)


@pytest.mark.long
def test_a_stream_that_is_down_for_longer_than_the_grace(
    spark: SparkSession, chain: Chain, first: Stream, tmp_path: Path
) -> None:
    with running(SECOND, spark, chain.bootstrap, tmp_path) as second:

        def turned(*runs: StreamRun) -> bool:
            chain.turn(*runs, second)
            return True

        with running(first, spark, chain.bootstrap, tmp_path) as run:
            wait_until(lambda: turned(run) and chain.control.stream_progress()[1]["first"].caught_up_at)
            wait_until(lambda: turned(run) and not chain.control.heartbeat_holds())
        sent = int(time.time() * 1000)
        send(chain.bootstrap, [Record(SOURCE.name, None, json.dumps({"at": sent}), timestamp=sent)])
        over = time.monotonic() + 2 * GRACE.total_seconds() + WINDOW.total_seconds()
        wait_until(lambda: turned(run) and time.monotonic() > over)
        second.process_all_available()
        held = chain.control.heartbeat_holds()
        with running(first, spark, chain.bootstrap, tmp_path) as run:
            wait_until(lambda: turned(run) and chain.counted())
            wait_until(lambda: turned(run) and not chain.control.heartbeat_holds())
        assert second.report().late == 0
        assert held[BETWEEN.name]["why"] == "first is starting"
        assert chain.counted() == {sent // 2000 * 2000 + 2000: 1}


def test_a_topic_without_records_gets_few_heartbeats_until_one_comes(
    spark: SparkSession, chain: Chain, first: Stream, tmp_path: Path
) -> None:
    partitions = [(BETWEEN.name, 0), (BETWEEN.name, 1)]
    with (
        running(first, spark, chain.bootstrap, tmp_path) as run,
        running(SECOND, spark, chain.bootstrap, tmp_path) as second,
    ):

        def turned() -> bool:
            chain.turn(run, second)
            return True

        wait_until(lambda: turned() and BETWEEN.name in chain.beater.idle_topics)
        before, over = end_offsets(admin(chain.bootstrap), partitions, chain.bootstrap), time.monotonic() + 6
        wait_until(lambda: turned() and time.monotonic() > over)
        assert (
            sum(end_offsets(admin(chain.bootstrap), partitions, chain.bootstrap).values()) <= sum(before.values()) + 2
        )
        sent = int(time.time() * 1000)
        send(chain.bootstrap, [Record(SOURCE.name, None, json.dumps({"at": sent}), timestamp=sent)])
        wait_until(lambda: turned() and BETWEEN.name not in chain.beater.idle_topics)
        wait_until(lambda: turned() and chain.counted())
        assert chain.counted() == {sent // 2000 * 2000 + 2000: 1}
        wait_until(lambda: turned() and BETWEEN.name in chain.beater.idle_topics)
        assert second.report().late == 0
