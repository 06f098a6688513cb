"""Records that were removed before they were read, or are none: what becomes of them is as the input declares."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from penstock.declare.inputs import Gap
from penstock.declare.topic import COMMITS
from penstock.engine.run import StreamRun
from penstock.kafka.admin import admin, partitions
from penstock.local.parts import Broker
from penstock.streams import Each, F, Input, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

EVENTS = Topic("gapped", partitions=1)
OUT = Topic("seen", partitions=1)


def transform(events: DataFrame) -> DataFrame:
    return events.select(F.col("value").cast("string").alias("n"))


def stream(given: Input) -> Stream:
    return Stream("gaps", "tests", {"events": given}, transform, TopicOutput(OUT, value="n"), Each())


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, EVENTS, OUT, COMMITS)
    return fresh_broker.bootstrap


def seen(bootstrap: str) -> list[int]:
    return [json.loads(r.value or "") for r in read(bootstrap, OUT.name)]


def events(*numbers: int) -> list[Record]:
    return [Record(EVENTS.name, None, str(n)) for n in numbers]


def with_a_gap(of: Stream, spark: SparkSession, bootstrap: str, folder: Path) -> None:
    """Read 1 and 2; then 3 and 4 are gone before they are read, and 5 is there."""
    with running(of, spark, bootstrap, folder) as run:
        send(bootstrap, events(1, 2))
        run.settle()
    send(bootstrap, events(3, 4, 5))
    for done in admin(bootstrap).delete_records([TopicPartition(EVENTS.name, 0, 4)]).values():
        done.result(30)


def stopped(run: StreamRun) -> bool:
    run.tend()
    return bool(run.figures.error)


@pytest.mark.parametrize(
    "given", [Input(pattern=EVENTS.name), Input(EVENTS, gap="go on")], ids=["a pattern", "a topic that says so"]
)
def test_what_is_left_is_read(spark: SparkSession, bootstrap: str, tmp_path: Path, given: Input) -> None:
    with_a_gap(stream(given), spark, bootstrap, tmp_path)
    with running(stream(given), spark, bootstrap, tmp_path) as run:
        run.settle()
        assert seen(bootstrap) == [1, 2, 5]


@pytest.mark.parametrize("given", [Input(EVENTS), Input(pattern=EVENTS.name, gap="stop")], ids=["a topic", "a pattern"])
def test_nothing_is_read_until_somebody_decides(
    spark: SparkSession, bootstrap: str, tmp_path: Path, given: Input
) -> None:
    with_a_gap(stream(given), spark, bootstrap, tmp_path)
    with running(stream(given), spark, bootstrap, tmp_path) as run:
        wait_until(lambda: stopped(run), 60, what="the stream fails")
        assert seen(bootstrap) == [1, 2]
    decided: Gap = "go on"
    with running(stream(replace(given, gap=decided)), spark, bootstrap, tmp_path) as run:
        run.settle()
        assert seen(bootstrap) == [1, 2, 5]


def test_dead_letters_that_are_only_counted(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    given = Input(EVENTS, schema="n INT NOT NULL, at TIMESTAMP NOT NULL", event_time="at", dead="count")
    of = replace(stream(given), transform=lambda events: events.select("n"))
    send(bootstrap, [*events(1), Record(EVENTS.name, None, '{"n": 2, "at": "2023-11-14T22:20:00Z"}')])
    with running(of, spark, bootstrap, tmp_path) as run:
        run.settle()
        assert run.figures.dead == 1
    assert seen(bootstrap) == [2]
    assert EVENTS.dead_letters not in partitions(admin(bootstrap), bootstrap)
