"""What a stream says of itself while it fails, when it is well again, and when it is stopped."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.catalog import HeartbeatReader, HeartbeatTopic
from penstock.control import ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.engine.query import source
from penstock.engine.query.stream_run import StreamRun
from penstock.model.output_mode import HeartbeatSchedule
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing import Record, create, running, send
from tests.support.wait import tended, wait_until

pytestmark = pytest.mark.integration

NUMBERS, COPIES = Topic("state-numbers", partitions=2), Topic("state-copies", partitions=1)
STREAM = Stream(
    name="state-copies", app="states", inputs={"numbers": Input(NUMBERS)}, transform=lambda numbers: numbers,
    output=TopicOutput(COPIES, value="value"), output_mode=Stateless(),
)  # fmt: skip


def test_a_stream_is_failing_until_a_batch_has_ended_and_can_be_stopped(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    at = fresh_broker.bootstrap
    run = StreamRun(STREAM, spark, at, str(tmp_path), ProgressRow(STREAM.name, STREAM.app, "i"))

    def seen() -> list[str]:
        """The states of a look after it, what it says in between included."""
        said: list[str] = []
        setting = run._metrics.set
        run._metrics.set = lambda **values: (said.append(values.get("state", "")), setting(**values))[1]  # type: ignore[method-assign, func-returns-value]
        run._retry_at = 0.0
        run.reconcile()
        run._metrics.set = setting  # type: ignore[method-assign]
        return [*filter(None, said), run.report().state]

    assert seen() == ["starting", "failing", "failing"], "its topics are not there"
    assert seen() == ["failing", "failing"]
    assert run.running, "so that it can be stopped"
    run.stop()
    assert (run.running, run.report().state) == (False, "stopped")
    seen()
    create(at, *STREAM.topics())
    assert seen() == ["failing"], "that it began says nothing yet"
    try:
        wait_until(lambda: tended(run.reconcile, lambda: run.report().state == "idle"))
    finally:
        run.stop()
    assert run.report().restarts == 3


def test_heartbeats_are_not_counted_as_rows(spark: SparkSession, fresh_broker: Broker, tmp_path: Path) -> None:
    at = fresh_broker.bootstrap
    create(at, *STREAM.topics())
    beater = HeartbeatSender(
        {
            NUMBERS.name: HeartbeatTopic(
                NUMBERS, [HeartbeatReader(HeartbeatSchedule(timedelta(minutes=1), timedelta()))]
            )
        },
        None,
        at,
    )
    beater.run_once()
    send(at, [Record(NUMBERS.name, None, "x", n % 2) for n in range(3)])
    with running(STREAM, spark, at, tmp_path) as run:
        run.process_all_available()
        assert run.report().rows_in == 3
    beater.close()


def test_next_offsets_are_known_before_the_first_batch(fresh_broker: Broker) -> None:
    at = fresh_broker.bootstrap
    assert source.next_offsets_before_first_batch(STREAM, {}, at) == {}
    create(at, *STREAM.topics())
    send(at, [Record(NUMBERS.name, None, "x", n % 2) for n in range(10)])
    assert source.next_offsets_before_first_batch(STREAM, {}, at) == {NUMBERS.name: {0: 0, 1: 0}}
    assert source.next_offsets_before_first_batch(STREAM, {NUMBERS.name: {1: 4}, COPIES.name: {0: 9}}, at) == {
        NUMBERS.name: {0: 0, 1: 4}
    }
