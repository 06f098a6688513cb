"""A fold that reads the rows of another fold."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.model.topic import COMMITS
from penstock.streams import Fold, Input, KeyedState, Stream, Topic, TopicOutput
from penstock.testing import Record, create, latest, read, running, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

START = 1_700_000_000_000
PAID = Topic("paid", partitions=1, config={"retention.ms": "-1"})
COUNTS = Topic("counts", partitions=1, config={"retention.ms": "-1"})
# The time of each key's first record, with each of its records.
FIRSTS = Fold(
    name="firsts",
    key=("who",),
    state_schema="first BIGINT",
    update_sql="SELECT who, coalesce(any_value(state.first), min(records.at)) AS first "
    "FROM records LEFT JOIN state USING (who) GROUP BY who",
    emit_sql="FROM folded",
    output_schema="who STRING, first BIGINT",
)
NUMBERS = Fold(
    name="numbers",
    key=("who",),
    state_schema="n BIGINT",
    update_sql="SELECT who, count(*) + coalesce(any_value(state.n), 0) AS n "
    "FROM records LEFT JOIN state USING (who) GROUP BY who",
    emit_sql="FROM folded",
    output_schema="who STRING, n BIGINT",
)


def numbered(paid: DataFrame) -> DataFrame:
    return NUMBERS(FIRSTS(paid).selectExpr("who", "timestamp_millis(first) AS event_time"))


STREAM = Stream(
    name="numbers", app="tests", transform=numbered, shuffle_partitions=1,
    inputs={
        "paid": Input(
            PAID, schema="who STRING NOT NULL, at BIGINT NOT NULL", event_time="timestamp_millis(at)",
            late_records="keep",
        )
    },
    output=TopicOutput(COUNTS, key="who", value="n"), output_mode=KeyedState(grace=timedelta(seconds=10)), steps=2,
)  # fmt: skip


def test_rows_that_are_late_for_the_next_fold_are_counted(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, *STREAM.topics(), COMMITS)
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        for second in (0, 30, 40, 50, 60):
            text = json.dumps({"who": "ann", "at": START + second * 1000})
            send(bootstrap, [Record(PAID.name, "ann", text, 0)])
            run.process_all_available()
        late = run.figures.late
    # Which batch is the first whose watermark is late enough is a matter of Spark's.
    assert late > 0
    assert latest(read(bootstrap, COUNTS.name)) == {"ann": str(5 - late)}
    assert read(bootstrap, STREAM.late_topic) == []
