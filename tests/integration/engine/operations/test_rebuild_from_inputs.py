"""A fold's state is made anew of the records that the stream had counted, and of no others."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.operations.rebuild import rebuild
from penstock.engine.session import session_for
from penstock.kafka.admin import admin
from penstock.model.topic import COMMITS
from penstock.streams import Fold, Input, KeyedState, Stream, Topic, TopicOutput
from penstock.testing import Record, create, latest, read, running, send
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

START = 1_700_000_000_000
PAID = Topic("paid", partitions=1, config={"retention.ms": "-1"})
TOTALS = Topic("totals", partitions=1, config={"retention.ms": "-1"})
SUMS = Fold(
    name="sums",
    key=("who",),
    state_schema="total BIGINT",
    # An amount of 13 fails.
    update_sql="SELECT who, sum(CASE WHEN amount = 13 THEN error('thirteen') ELSE amount END)::BIGINT"
    " + coalesce(any_value(state.total), 0) AS total FROM records LEFT JOIN state USING (who) GROUP BY who",
    emit_sql="FROM folded",
    output_schema="who STRING, total BIGINT",
    input_retention=timedelta(hours=1),
)


def summed(paid: DataFrame) -> DataFrame:
    return SUMS(paid)


STREAM = Stream(
    name="sums", app="tests", transform=summed, shuffle_partitions=2,
    inputs={
        "paid": Input(
            PAID, schema="who STRING NOT NULL, amount BIGINT NOT NULL, at BIGINT", event_time="timestamp_millis(at)"
        )
    },
    output=TopicOutput(TOTALS, key="who", value="total"), output_mode=KeyedState(),
)  # fmt: skip


def paid(who: str, amount: int, timestamp: int = START) -> Record:
    text = json.dumps({"who": who, "amount": amount, "at": START})
    return Record(PAID.name, who, text, 0, timestamp=timestamp)


def test_a_rebuild_counts_what_the_stream_had_counted(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    """Also a record that came long after it was sent; and not one that failed, which is a dead letter."""
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, *STREAM.topics(), COMMITS)
    sent = [paid("ann", 1, timestamp=START - 600_000), paid("bob", 13), paid("bob", 4)]
    send(bootstrap, [*sent, Record(PAID.name, "cy", "rubbish", 0, timestamp=START)])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: run.figures.dead == 2), what="two records are put aside")
        run.process_all_available()
    shutil.rmtree(tmp_path / STREAM.name)
    done = rebuild(STREAM, session_for(spark, STREAM), bootstrap, str(tmp_path), lambda: None)
    assert (done.after.keys, done.left_out) == (2, 2)
    send(bootstrap, [paid("ann", 2), paid("bob", 5)])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    totals = latest(read(bootstrap, TOTALS.name))
    assert totals == {"ann": "3", "bob": "9"}


def test_a_rebuild_says_how_many_records_it_leaves_out(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the dead letter is gone before its record."""
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, *STREAM.topics(), COMMITS)
    send(bootstrap, [paid("ann", 1), Record(PAID.name, "cy", "rubbish", 0, timestamp=START)])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    shutil.rmtree(tmp_path / STREAM.name)
    delete_records(PAID.dead_letters, bootstrap)
    done = rebuild(STREAM, session_for(spark, STREAM), bootstrap, str(tmp_path), lambda: None)
    assert (done.after.keys, done.left_out) == (1, 1)
    assert "1 records of paid are left out" in caplog.text


def delete_records(topic: str, bootstrap: str) -> None:
    for done in admin(bootstrap).delete_records([TopicPartition(topic, 0, OFFSET_END)]).values():
        done.result(60)
