"""Batches of heartbeats alone: they move the watermark before they are planned, and so close windows themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.codec.heartbeat import HEARTBEAT_KEY, HeartbeatSigner, heartbeat_signer
from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.offset_log import TopicOffsets
from penstock.engine.commit.delivery import BatchDelivery
from penstock.engine.query.heartbeat_batches import MAX_RECORDS, HeartbeatBatches
from penstock.engine.replacement.step_offsets import StepLimits
from penstock.errors import BrokerError
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.cleanup import delete_topics
from penstock.kafka.client import client_config
from penstock.streams import EmitFinal, F, Input, Stream, Topic, TopicOutput
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing import Record, create, read, running, send
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.engine.query.stream_run import StreamRun

pytestmark = pytest.mark.integration

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SALES, RETURNS = (Topic(name, partitions=2, config={"retention.ms": "-1"}) for name in ("sales", "returns"))
COUNTS = Topic("counts", partitions=1)
SCHEMA = "at BIGINT NOT NULL"
KEY = HEARTBEAT_KEY.decode()
AT = 1_700_000_000_000


def counted(rows: DataFrame) -> DataFrame:
    windows = rows.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("n"))
    return windows.select(F.unix_millis("w.start").alias("start"), "n")


def of_sales(sales: DataFrame) -> DataFrame:
    return counted(sales)


def of_both(sales: DataFrame, returns: DataFrame) -> DataFrame:
    return counted(sales.select("event_time").union(returns.select("event_time")))


def stream_of(*topics: Topic) -> Stream:
    inputs = {topic.name: Input(topic, schema=SCHEMA, event_time="timestamp_millis(at)") for topic in topics}
    output = TopicOutput(COUNTS, key="start", value=("start", "n"))
    transform = of_sales if len(topics) == 1 else of_both
    mode = EmitFinal(window=MINUTE, grace=SECOND)
    return Stream("sold", "tests", inputs, transform, output, mode)


def sale(at: float, topic: Topic = SALES, partition: int = 0) -> Record:
    """A record of a time in epoch seconds."""
    return Record(topic.name, None, json.dumps({"at": int(at * 1000)}), partition)


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, *catalog.build([stream_of(SALES, RETURNS)]).topics.values())
    return fresh_broker.bootstrap


@pytest.fixture
def sender(bootstrap: str) -> Iterator[HeartbeatSender]:
    of = catalog.build([stream_of(SALES, RETURNS)]).heartbeat_topics()
    with closing(HeartbeatSender(of, None, bootstrap)) as heartbeats:
        yield heartbeats


def batches_until_read(run: StreamRun) -> int:
    before = run.figures.batch_id
    assert before is not None
    run.process_all_available()
    return (run.figures.batch_id or 0) - before


def rows(bootstrap: str) -> dict[int, int]:
    return {int(r.key or 0): json.loads(r.value or "{}")["n"] for r in read(bootstrap, COUNTS.name)}


@pytest.mark.parametrize("topics", [(SALES,), (SALES, RETURNS)], ids=["one input", "two inputs"])
def test_heartbeats_alone_close_windows_in_one_batch(
    spark: SparkSession, bootstrap: str, tmp_path: Path, sender: HeartbeatSender, topics: tuple[Topic, ...]
) -> None:
    start = time.time() // 60 * 60 - 600
    with running(stream_of(*topics), spark, bootstrap, tmp_path) as run:
        send(bootstrap, [sale(start, topic) for topic in topics])
        run.process_all_available()
        assert not rows(bootstrap)
        # The topics' heartbeats may come in two requests.
        with run.held():
            sender.run_once()
        assert batches_until_read(run) == 1
        assert rows(bootstrap) == {int(start * 1000): len(topics)}
        assert (run.figures.state_rows, run.figures.late) == (0, 0)
        send(bootstrap, [sale(start)])
        run.process_all_available()
        assert run.figures.late == 1


def test_records_before_the_heartbeats_of_their_batch_are_counted(
    spark: SparkSession, bootstrap: str, tmp_path: Path, sender: HeartbeatSender
) -> None:
    """The watermark moves when they are read, as ever."""
    start = time.time() // 60 * 60 - 600
    with running(stream_of(SALES), spark, bootstrap, tmp_path) as run:
        send(bootstrap, [sale(start)])
        run.process_all_available()
        with run.held():
            send(bootstrap, [sale(start + 1, partition=1)])
            sender.run_once()
        assert batches_until_read(run) == 2
        assert rows(bootstrap) == {int(start * 1000): 2}
        assert run.figures.late == 0


def test_a_batch_that_runs_again_has_the_watermark_that_it_was_planned_with(
    spark: SparkSession, bootstrap: str, tmp_path: Path, sender: HeartbeatSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record comes before it does, which is in time for the batch after it alone."""
    stream, start = stream_of(SALES), time.time() // 60 * 60 - 600
    with running(stream, spark, bootstrap, tmp_path) as run:
        send(bootstrap, [sale(start)])
        run.process_all_available()
        with monkeypatch.context() as patch:
            patch.setattr(BatchDelivery, "deliver", _fail)
            with run.held():
                sender.run_once()
            with pytest.raises(StreamingQueryException, match="the broker is gone"):
                run.process_all_available()
        planned = run._checkpoint.planned_batch()
        assert planned
        assert (planned.starts, planned.ends) == (ends(1, 0), ends(2, 1))
        assert planned.watermark_ms < int((start + 60) * 1000) < planned.plan.watermark_ms
    send(bootstrap, [sale(start)])
    with running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert rows(bootstrap) == {int(start * 1000): 1}
        assert run.figures.late == 1
        assert run._checkpoint.batch(planned.batch_id).plan == planned.plan
    assert len(read(bootstrap, COUNTS.name)) == 1


def _fail(*_: object) -> None:
    raise BrokerError("the broker is gone")


def beat(partition: int, at: int, signer: HeartbeatSigner | None = None) -> Record:
    value = (signer or heartbeat_signer()).value(SALES.name, partition, at).decode()
    return Record(SALES.name, KEY, value, partition)


def ends(first: int, second: int) -> TopicOffsets:
    return {SALES.name: {0: first, 1: second}}


def test_of_other_records_or_partitions_without_one_there_is_no_time(spark: SparkSession, bootstrap: str) -> None:
    sent = [
        *(beat(p, AT + p) for p in (0, 1)),
        *(beat(p, AT + 10 + p) for p in (0, 1)),
        beat(0, AT + 20), beat(1, AT + 20, HeartbeatSigner(b"theirs")),
        sale(0), beat(1, AT + 30),
    ]  # fmt: skip
    send(bootstrap, sent)
    with closing(HeartbeatBatches(stream_of(SALES), spark, bootstrap, StepLimits(reads_all=True))) as reader:
        assert reader.time([(ends(0, 0), ends(1, 1))]) == AT
        assert reader.time([(ends(0, 0), ends(2, 2))]) == AT + 10, "the last of each partition counts"
        assert reader.time([(ends(2, 2), ends(3, 3))]) is None, "forged"
        assert reader.time([(ends(3, 3), ends(4, 4))]) is None, "a sale"
        assert reader.time([(ends(1, 1), ends(2, 1))]) is None, "a partition without a heartbeat"
        assert reader.time([(ends(0, 0), ends(2, 2)), (ends(0, 0), ends(0, 0))]) is None, "a silent input"
        assert reader.time([(ends(1, 1), ends(2, 2))]) == AT + 10, "after all of these it reads on"
        assert reader.time([(ends(1, 1), ends(2, 2))] * 2) == AT + 10, "two inputs of one topic"
        assert reader.time([(ends(0, 0), ends(1, 1)), (ends(0, 0), ends(2, 2))]) is None, "one of them is behind"
        assert MAX_RECORDS < 4
        assert reader.time([(ends(0, 0), ends(4, 4))]) is None, "a backlog"


def test_part_of_a_backlog_has_no_time(spark: SparkSession, bootstrap: str) -> None:
    """Records that are not read yet may be older: by the order of reading they must not become late."""
    send(bootstrap, [beat(p, AT) for p in (0, 1)])
    limits = StepLimits(reads_all=True)
    with closing(HeartbeatBatches(stream_of(SALES), spark, bootstrap, limits)) as reader:
        limits.max_records = 4
        assert reader.time([(ends(0, 0), ends(1, 1))]) == AT
        limits.max_records = 3
        assert reader.time([(ends(0, 0), ends(1, 1))]) is None, "Spark rounds down: it may have left one"
        limits.max_records, limits.reads_all = 0, False
        assert reader.time([(ends(0, 0), ends(1, 1))]) is None, "a part of a batch that was split"


def test_heartbeats_of_a_topic_that_is_made_anew_do_not_move_the_watermark(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """They lie where the planned batch reads, and behind a record that the stream has not read."""
    sales, start = replace(SALES, partitions=1), AT // 60_000 * 60_000
    goes_on = Input(sales, schema=SCHEMA, event_time="timestamp_millis(at)", on_data_loss="continue")
    stream = replace(stream_of(sales), inputs={"sales": goes_on})

    def make_anew(*records: Record) -> None:
        delete_topics(admin(bootstrap), [SALES.name], bootstrap)
        wait_until(lambda: SALES.name not in partition_counts(admin(bootstrap), bootstrap))
        create(bootstrap, sales)
        send(bootstrap, records)

    make_anew(sale(start / 1000))
    with running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        with run.held():
            make_anew(sale((start + 120_000) / 1000), beat(0, start + 200_000))
        wait_until(lambda: tended(run.reconcile, lambda: run.figures.late or start + 120_000 in rows(bootstrap)))
        assert rows(bootstrap) == {start: 1, start + 120_000: 1}
        assert run.figures.late == 0


def test_offsets_without_records_have_no_time(spark: SparkSession, bootstrap: str) -> None:
    """A transaction's end takes an offset, and the broker has not all that is asked for."""
    producer = Producer({**client_config(bootstrap), "transactional.id": "sales"})
    producer.init_transactions(10)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(SALES.name, beat(partition, AT).value, KEY, partition)
    producer.commit_transaction(10)
    with closing(HeartbeatBatches(stream_of(SALES), spark, bootstrap, StepLimits(reads_all=True))) as reader:
        assert reader.time([(ends(0, 0), ends(1, 1))]) == AT
        assert reader.time([(ends(0, 0), ends(2, 2))]) is None
        assert reader.time([(ends(2, 2), ends(3, 3))]) is None
        assert reader.time([({"gone": {}}, {"gone": {0: 1}})]) is None
