"""Records that are none: what becomes of them is as the input declares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.kafka.admin import admin, partition_counts
from penstock.model.topic import COMMITS
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send

pytestmark = pytest.mark.integration

EVENTS = Topic("gapped", partitions=1)
OUT = Topic("seen", partitions=1)


def test_dead_letters_that_are_only_counted(spark: SparkSession, fresh_broker: Broker, tmp_path: Path) -> None:
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, EVENTS, OUT, COMMITS)
    counted = Input(EVENTS, schema="n INT NOT NULL, at TIMESTAMP NOT NULL", event_time="at", dead_letters="count")
    numbers = Stream(
        "gaps",
        "tests",
        {"events": counted},
        lambda events: events.select("n"),
        TopicOutput(OUT, value="n"),
        Stateless(),
    )
    send(bootstrap, [Record(EVENTS.name, None, value) for value in ("1", '{"n": 2, "at": "2023-11-14T22:20:00Z"}')])
    with running(numbers, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert run.figures.dead == 1
    assert [json.loads(r.value or "") for r in read(bootstrap, OUT.name)] == [2]
    assert EVENTS.dead_letters not in partition_counts(admin(bootstrap), bootstrap)
