"""Records that a batch has read are read again by their offsets, whatever else the topic has by then."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import NewPartitions
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.engine.commit.rejected import RejectFinder
from penstock.engine.query import source
from penstock.kafka.admin import admin
from penstock.streams import EmitFinal, F, Input, Stream, Topic, TopicOutput
from penstock.testing import Record, create, running, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

SALES = Topic("sales", partitions=2, config={"retention.ms": "-1"})


def counted(sales: DataFrame) -> DataFrame:
    windows = sales.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("n"))
    return windows.select(F.unix_millis("w.start").alias("start"), "n")


STREAM = Stream(
    "sold", "tests",
    {"sales": Input(SALES, schema="at BIGINT NOT NULL", event_time="timestamp_millis(at)", late_records="keep")},
    counted, TopicOutput(Topic("counts", partitions=1), key="start", value=("start", "n")),
    EmitFinal(window=timedelta(minutes=1), grace=timedelta(seconds=1)),
)  # fmt: skip


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, *catalog.build([STREAM]).topics.values())
    return fresh_broker.bootstrap


def sale(at: float, partition: int = 0) -> Record:
    return Record(SALES.name, None, json.dumps({"at": int(at * 1000)}), partition)


def add_partition(bootstrap: str) -> None:
    for done in admin(bootstrap).create_partitions([NewPartitions(SALES.name, 3)]).values():
        done.result(10)


@pytest.mark.parametrize("pattern", [False, True], ids=["a name", "a pattern"])
def test_partitions_and_topics_that_came_later_are_left_out(
    spark: SparkSession, bootstrap: str, *, pattern: bool
) -> None:
    send(bootstrap, [sale(n, n % 2) for n in range(6)])
    add_partition(bootstrap)
    create(bootstrap, Topic("sales-online", partitions=1))
    input_ = Input(pattern="sales.*") if pattern else Input(SALES)
    ends = {SALES.name: {0: 3, 1: 2}}
    for starts, expected in (({0: 0, 1: 1}, 4), ({0: source.EARLIEST, 1: 0}, 5)):
        rows = source.records_between(spark, input_, bootstrap, {SALES.name: starts}, ends)
        assert rows.count() == expected
    assert source.topic_records(spark, bootstrap, {SALES.name: {1: 0}}, {SALES.name: {1: 3}}).count() == 3


def test_a_partition_that_is_added_during_a_batch_with_a_late_record(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = time.time() // 60 * 60
    find = RejectFinder.find

    def find_later(*arguments: Any, **named: Any) -> Any:
        if SALES.name not in added:
            added.append(SALES.name)
            add_partition(bootstrap)
        return find(*arguments, **named)

    with running(STREAM, spark, bootstrap, tmp_path) as run:
        send(bootstrap, [sale(start - 300)])
        run.process_all_available()
        added: list[str] = []
        monkeypatch.setattr(RejectFinder, "find", find_later)
        send(bootstrap, [sale(start - 900)])
        run.process_all_available()
        assert run.figures.late == 1
        send(bootstrap, [sale(start - 240, partition=2)])
        run.process_all_available()
        assert run.figures.rows_in == 3
