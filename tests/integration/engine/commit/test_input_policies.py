"""Records that are none: what becomes of them is as the input declares."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.kafka.admin import admin, partition_counts
from penstock.model.topic import COMMITS
from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

EVENTS = Topic("gapped", partitions=1)
OUT = Topic("seen", partitions=1)


def transform(events: DataFrame) -> DataFrame:
    return events.select(F.col("value").cast("string").alias("n"))


def stream(given: Input) -> Stream:
    return Stream("gaps", "tests", {"events": given}, transform, TopicOutput(OUT, value="n"), Stateless())


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, EVENTS, OUT, COMMITS)
    return fresh_broker.bootstrap


def seen(bootstrap: str) -> list[int]:
    return [json.loads(r.value or "") for r in read(bootstrap, OUT.name)]


def events(*numbers: int) -> list[Record]:
    return [Record(EVENTS.name, None, str(n)) for n in numbers]


def test_dead_letters_that_are_only_counted(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    given = Input(EVENTS, schema="n INT NOT NULL, at TIMESTAMP NOT NULL", event_time="at", dead_letters="count")
    of = replace(stream(given), transform=lambda events: events.select("n"))
    send(bootstrap, [*events(1), Record(EVENTS.name, None, '{"n": 2, "at": "2023-11-14T22:20:00Z"}')])
    with running(of, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert run.figures.dead == 1
    assert seen(bootstrap) == [2]
    assert EVENTS.dead_letters not in partition_counts(admin(bootstrap), bootstrap)
