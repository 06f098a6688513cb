"""What a row may hold on its way into topics, and what is said of one that no topic takes."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.model.topic import COMMITS, DEAD_LETTERS
from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import create, running
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

RAW = Input(Topic("things", partitions=1))
SCHEMA = "id INT, name STRING, at TIMESTAMP, more STRUCT<at: TIMESTAMP>"
THINGS = Input(Topic("things", partitions=1), schema=SCHEMA, event_time="at")
OUT = Topic("out", partitions=1)
MOMENTS = ["2024-01-01T00:00:00.123456Z", "2024-01-01T00:00:00.123457Z"]


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, Topic("things", partitions=1), Topic("things-dead-letter", partitions=1), COMMITS)
    return fresh_broker.bootstrap


def send(bootstrap: str, *records: tuple[bytes | None, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value in records:
        producer.produce("things", key=key, value=value)
    assert producer.flush(30) == 0


def read(bootstrap: str, topic: str) -> list[tuple[Any, Any]]:
    """Keys and values as bytes."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "tests", "enable.partition.eof": True,
         "isolation.level": "read_committed"}
    )  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[Any, Any]] = []
        while True:
            message = consumer.poll(20)
            assert message is not None
            if error := message.error():
                assert error.code() == KafkaError._PARTITION_EOF
                return found
            found.append((message.key(), message.value()))
    finally:
        consumer.close()


def stream(given: Input, output: Any, transform: Any = None, **more: Input) -> Stream:
    inputs = {"things": given, **more}
    return Stream("values", "tests", inputs, transform or (lambda things: things), output, Stateless())


def made(declared: Stream, spark: SparkSession, bootstrap: str, folder: Path) -> None:
    create(bootstrap, *declared.topics())
    with running(declared, spark, bootstrap, folder) as run:
        run.process_all_available()


def test_bytes_that_are_no_text_pass_as_they_are(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    records = [(b"\xff\x00", b"\xfe"), (b"a", None), (None, b""), (None, "ä€".encode())]
    send(bootstrap, *records)
    made(stream(RAW, TopicOutput(OUT, key="key", value="value")), spark, bootstrap, tmp_path)
    assert read(bootstrap, "out") == records


def test_times_keep_their_microseconds(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Two keys that differ by a microsecond are two."""
    given = [{"at": at, "more": {"at": at}} for at in MOMENTS]
    send(bootstrap, *((None, json.dumps(record).encode()) for record in given))
    made(stream(THINGS, TopicOutput(OUT, key=("at",), value=("at", "more"))), spark, bootstrap, tmp_path)
    assert [(json.loads(key), json.loads(value)) for key, value in read(bootstrap, "out")] == [
        ({"at": one["at"]}, one) for one in given
    ]


def test_written_values_are_read_back_unchanged(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    text = {"id": 1, "name": "x", "at": MOMENTS[0], "more": {"at": "0001-01-01T00:00:00.000001Z"}}
    send(bootstrap, (None, json.dumps(text).encode()))
    made(stream(THINGS, TopicOutput(OUT, value=("id", "name", "at", "more"))), spark, bootstrap, tmp_path / "one")
    ((_, value),) = read(bootstrap, "out")
    assert json.loads(value) == text


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_rows_without_a_key_are_put_aside_before_a_compacted_topic_refuses_them_and_many_are_a_mistake(
    spark: SparkSession, bootstrap: str, tmp_path: Path, many: bool
) -> None:
    latest = TopicOutput(Topic("out", partitions=1, compacted=True), key="name", value="id")
    send(bootstrap, (None, b'{"id": 1, "name": "a"}'.replace(b"}", b', "at": "2024-01-01T00:00:00Z"}')))
    send(bootstrap, (None, b'{"id": 2, "at": "2024-01-01T00:00:00Z"}'))
    if many:
        create(bootstrap, *stream(THINGS, latest).topics())
        with running(replace(stream(THINGS, latest), max_poison=0), spark, bootstrap, tmp_path) as run:
            wait_until(lambda: tended(run.reconcile, lambda: run.figures.state == "blocked"))
            assert "1, more than 0, the first: its key is NULL" in (run.figures.error or "")
        assert read(bootstrap, "out") == []
        return
    made(stream(THINGS, latest), spark, bootstrap, tmp_path)
    assert read(bootstrap, "out") == [(b"a", b"1")]
    assert read(bootstrap, DEAD_LETTERS.name) == [(None, b"2")]


def test_a_raw_record_whose_time_is_not_told_keeps_its_own(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    given = Input(RAW.topic, event_time="CASE WHEN key IS NULL THEN timestamp END")
    send(bootstrap, (b"k", b"1"), (None, b"2"))
    same = stream(
        given,
        TopicOutput(OUT, value="same"),
        lambda things: things.select((F.col("timestamp") == F.col("event_time")).alias("same")),
    )
    made(same, spark, bootstrap, tmp_path)
    assert [value for _, value in read(bootstrap, "out")] == [b"true", b"true"]


def test_any_text_is_a_tag(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    tags = ["_tag", "key", "a", "A", "a.b", "größe", "_0", "it's `so`"]
    outputs = {tag: TopicOutput(Topic(f"out-{n}", partitions=1), value="output") for n, tag in enumerate(tags)}

    def tagged(things: DataFrame) -> DataFrame:
        return things.select(F.col("value").cast("string").alias("output"))

    send(bootstrap, *((None, tag.encode()) for tag in tags))
    made(stream(RAW, outputs, tagged), spark, bootstrap, tmp_path)
    assert [read(bootstrap, f"out-{n}") for n in range(len(tags))] == [[(None, tag.encode())] for tag in tags]


def test_a_topic_that_is_read_twice_has_its_dead_letters_once(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, (None, b"rubbish"), (None, b'{"id": 1, "at": "2024-01-01T00:00:00Z"}'))
    both = stream(THINGS, TopicOutput(OUT, value="id"), lambda things, again: things.union(again), again=THINGS)
    made(both, spark, bootstrap, tmp_path)
    assert read(bootstrap, "things-dead-letter") == [(None, b"rubbish")]
    assert read(bootstrap, "out") == [(None, b"1"), (None, b"1")]


def test_a_transform_that_gives_nothing(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="the transform does not return a DataFrame; got: None"):
        made(stream(RAW, TopicOutput(OUT, value="value"), lambda things: None), spark, bootstrap, tmp_path)  # noqa: ARG005


def test_processing_all_returns_when_no_batch_ran(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, (None, b"1"))
    passing = stream(RAW, TopicOutput(OUT, value="value"))
    made(passing, spark, bootstrap, tmp_path)
    with running(passing, spark, bootstrap, tmp_path) as run:
        waiting = threading.Thread(target=run.process_all_available, daemon=True)
        waiting.start()
        waiting.join(30)
        assert not waiting.is_alive()
        send(bootstrap, (None, b"2"))
        run.process_all_available()
        assert (run.figures.batch_id, run.figures.rows_out) == (1, 1)
    assert [value for _, value in read(bootstrap, "out")] == [b"1", b"2"]
