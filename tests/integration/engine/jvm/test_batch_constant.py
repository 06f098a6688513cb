"""Spark compiles the code of a query once: the time of its batches is not in it."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.engine.jvm.batch_constant import batch_time
from penstock.engine.query import source
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

SALES, SOLD = Topic("sales", partitions=1), Topic("sold", partitions=1)


def sold(sales: DataFrame) -> DataFrame:
    return sales.select("amount")


STREAM = Stream(
    "sold", "tests",
    {"sales": Input(SALES, schema="amount INT NOT NULL, at BIGINT NOT NULL", event_time="timestamp_millis(at)",
                    max_ahead=timedelta(hours=1))},
    sold, TopicOutput(SOLD, key="amount", value=("amount",)), Stateless(),
)  # fmt: skip


def compiled(spark: SparkSession) -> int:
    jvm: Any = spark._jvm
    return int(jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount())


@pytest.mark.parametrize("own", [True, False])
def test_batches_compile_nothing_anew(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    """With Spark's own time of the batch each one does, which shows that the count says so."""
    if not own:
        monkeypatch.setattr(source, "batch_time", lambda _: F.current_timestamp())
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, *catalog.build([STREAM]).topics.values())
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        counts = []
        for amount in range(5):
            hours_ahead = 2 if amount == 3 else 0
            at = int(time.time() * 1000) + hours_ahead * 3_600_000
            send(bootstrap, [Record(SALES.name, None, json.dumps({"amount": amount, "at": at}))])
            run.process_all_available()
            counts.append(compiled(spark))
        assert run.figures.dead == 1
    # Those of the first batches are compiled once. The fourth has the only record that is read again.
    assert (counts[2] == counts[1]) == own
    assert [json.loads(record.value or "")["amount"] for record in read(bootstrap, SOLD.name)] == [0, 1, 2, 4]


def test_it_is_the_time_of_a_query_without_batches(spark: SparkSession) -> None:
    before = time.time()
    found = spark.range(2).select(batch_time(spark).alias("at")).select(F.unix_micros("at").alias("at")).collect()
    assert found[0].at == found[1].at
    assert before - 1 <= found[0].at / 1_000_000 <= time.time() + 1
