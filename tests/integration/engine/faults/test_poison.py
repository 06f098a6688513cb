"""Records and rows that would stop a stream: they are put aside, told of, and everything else is written once."""

from __future__ import annotations

import json
import random
import string
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.errors import BrokerError, Refused
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.limits import ProducerRecord, record_digest
from penstock.kafka.topic_writer import TopicWriter
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.output import CommitMarker
from penstock.model.topic import COMMITS, DEAD_LETTERS
from penstock.streams import EmitFinal, F, Stream, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.dead_letter_streams import (
    DEAD,
    MINUTE,
    ORDERS,
    SHARES,
    STREAM,
    order,
    place,
    raw_stream,
    sums,
    until,
    why,
)
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, ORDERS, DEAD, SHARES, COMMITS)
    return fresh_broker.bootstrap


def test_records_that_make_a_batch_fail_are_put_aside_and_all_others_count(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    # Each try of the search is a batch: unit tests find records among many.
    good = [order(n, partition=n % 2) for n in range(1, 5)]
    send(bootstrap, [*good[:2], order(70, 0, 1), order(80, 0, 1), *good[2:]])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        until(run, dead=2)
        run.process_all_available()
        send(bootstrap, [order(100)])
        run.process_all_available()
        assert run.figures.dead == 2
    assert sums(bootstrap) == {str(MINUTE): "110"}
    letters = read(bootstrap, DEAD.name)
    assert [place(one) for one in letters] == ["orders[1]@1", "orders[1]@2"]
    assert [json.loads(one.value or "")["amount"] for one in letters] == [70, 80]
    assert {dict(one.headers)["penstock.timestamp"] for one in letters} == {str(MINUTE)}
    assert all("Division by zero" in why(one) for one in letters)
    # As if the driver had died behind the first batch's transaction: it is run again, and finds its records anew.
    before = read(bootstrap, SHARES.name), letters
    commits = tmp_path / STREAM.name / "commits"
    for log in ("commits", "offsets"):
        for entry in (tmp_path / STREAM.name / log).glob("*[0-9]"):
            if entry.name != "0" or log == "commits":
                entry.unlink()
                entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, (commits / "0").exists))
        run.process_all_available()
        assert run.figures.dead == 0
    assert (read(bootstrap, SHARES.name), read(bootstrap, DEAD.name)) == before


@pytest.mark.long
def test_a_record_that_fails_with_the_streams_state_is_put_aside(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """The batch passes by itself: it is the sum with what was counted before that is too large."""
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        send(bootstrap, [order(2**62)])
        run.process_all_available()
        send(bootstrap, [order(1), order(2**62), order(2)])
        until(run, dead=1)
        run.process_all_available()
        send(bootstrap, [order(3)])
        run.process_all_available()
        assert (run.figures.dead, run.figures.restarts) == (1, 2)
    assert sums(bootstrap) == {str(MINUTE): str(2**62 + 6)}
    (letter,) = read(bootstrap, DEAD.name)
    assert (place(letter), "overflow" in why(letter)) == ("orders[0]@2", True)
    assert [entry.name for entry in tmp_path.iterdir()] == [STREAM.name]


@pytest.mark.long
def test_more_poison_records_than_declared_block_the_stream_until_it_declares_more(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Raw records are put aside in the topic that all streams share."""
    send(bootstrap, [Record(ORDERS.name, None, text) for text in ("1", "two", "three", "four", "5")])
    with running(raw_stream(max_poison=2), spark, bootstrap, tmp_path) as run:
        until(run, "blocked")
        assert "release app tests, or declare a larger max_poison=" in (run.figures.error or "")
        assert (run.figures.dead, read(bootstrap, SHARES.name)) == (0, [])
    assert DEAD_LETTERS.name not in partition_counts(admin(bootstrap), bootstrap)
    with running(raw_stream(max_poison=3), spark, bootstrap, tmp_path) as run:
        until(run, dead=3)
        run.process_all_available()
    assert [r.value for r in read(bootstrap, SHARES.name)] == ["1", "5"]
    letters = read(bootstrap, DEAD_LETTERS.name)
    assert [(letter.value, place(letter)) for letter in letters] == [
        ("two", "orders[0]@1"), ("three", "orders[0]@2"), ("four", "orders[0]@3"),
    ]  # fmt: skip
    assert "'two'" in why(letters[0])


def noise(length: int) -> str:
    """Text that no compression makes smaller than three quarters."""
    return "".join(random.Random(length).choices(string.ascii_letters + string.digits + "-_", k=length))


def test_a_dead_letter_too_large_for_its_topic_is_cut(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    set_largest(DEAD.name, 50_000, bootstrap)
    # Larger than the client's own limit, than the topic's, and two that only compression makes small enough.
    sent = [noise(1_000_100), noise(60_000), "x" * 900_000, "small", "y" * 5_000_000]
    send(bootstrap, [Record(ORDERS.name, "k", text) for text in sent[:4]])
    packing = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "message.max.bytes": 10_000_000})
    packing.produce(ORDERS.name, sent[4], "k", 0)
    assert packing.flush(30) == 0
    send(bootstrap, [order(5)])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert (run.figures.dead, run.figures.restarts) == (5, 0)
    assert sums(bootstrap) == {str(MINUTE): "5"}
    letters = {place(one): one for one in read(bootstrap, DEAD.name)}
    for offset, text in enumerate(sent):
        letter = letters[f"orders[0]@{offset}"]
        said = dict(letter.headers)
        if offset < 2:
            assert (said["penstock.cut"], said["penstock.size"]) == ("value", str(len(text) + 1))
            assert said["penstock.sha256"] == record_digest(b"k", text.encode())
            assert 40_000 < len(letter.value or "") < 50_000
            assert text.startswith(letter.value or "nothing")
        else:
            assert (letter.value, "penstock.cut" in said) == (text, False)


def set_largest(topic: str, size: int, bootstrap: str) -> None:
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for done in admin(bootstrap).incremental_alter_configs([resource]).values():
        done.result(30)
    asked = ConfigResource(ResourceType.TOPIC, topic)

    def is_set() -> bool:
        found = admin(bootstrap).describe_configs([asked])[asked].result(30)
        return str(found["max.message.bytes"].value) == str(size)

    wait_until(is_set, what="the broker's setting")


def test_a_row_too_large_for_its_topic_is_put_aside(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    set_largest(SHARES.name, 20_000, bootstrap)
    # Many small ones go in batches that the topic takes.
    texts = [noise(30_000), *(str(n) for n in range(20_000)), "y" * 100_000]
    send(bootstrap, [Record(ORDERS.name, None, text) for text in texts])
    copied = replace(raw_stream(), transform=lambda records: records.select(F.col("value").alias("n")))
    with running(replace(copied, max_poison=0), spark, bootstrap, tmp_path) as run:
        until(run, "blocked")
        assert "1, more than 0, the first: a row of 30000 bytes" in (run.figures.error or "")
    assert read(bootstrap, SHARES.name) == []
    with running(copied, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert (run.figures.dead, run.figures.rows_out, run.figures.restarts) == (1, 20_001, 0)
    assert sorted(r.value or "" for r in read(bootstrap, SHARES.name)) == sorted(texts[1:])
    (letter,) = read(bootstrap, DEAD_LETTERS.name)
    assert (letter.value, dict(letter.headers)["penstock.output"]) == (texts[0], SHARES.name)
    assert "more than topic shares takes (max.message.bytes=20000)" in why(letter)


def test_a_writer_names_the_record_that_its_topic_does_not_take(bootstrap: str) -> None:
    set_largest(SHARES.name, 20_000, bootstrap)
    writer = TransactionalWriter("rows", "penstock.rows", bootstrap, COMMITS, "capture", [SHARES.name])
    try:
        with pytest.raises(BrokerError, match=r"key 'id=7', a value of 30,000 bytes.*raise max\.message\.bytes"):
            writer.commit([ProducerRecord(SHARES.name, b"id=7", noise(30_000).encode())], b"{}")
    finally:
        writer.close()


def test_a_writer_notices_that_its_topic_takes_more(bootstrap: str) -> None:
    rows = {SHARES.name: pa.table({"key": pa.nulls(1, pa.binary()), "value": [noise(30_000)]})}
    set_largest(SHARES.name, 20_000, bootstrap)
    with closing(TopicWriter("rows", "penstock.rows", bootstrap, [TopicOutput(SHARES, value="n")])) as writer:
        with pytest.raises(Refused):
            writer.write(rows, CommitMarker("query", 1, {}))
        set_largest(SHARES.name, 50_000, bootstrap)
        assert writer.write(rows, CommitMarker("query", 1, {})) == 1
    assert [len(r.value or "") for r in read(bootstrap, SHARES.name)] == [30_000]


def test_a_failure_without_a_record_to_blame_blocks_and_loses_none(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    def wrong(records: DataFrame) -> DataFrame:
        return records.groupBy().agg(F.count("*").alias("n")).select(F.expr("raise_error('never')").alias("n"))

    output = TopicOutput(SHARES, key="n", value="n")
    of = replace(raw_stream(), transform=wrong, output_mode=STREAM.output_mode, output=output)
    send(bootstrap, [Record(ORDERS.name, None, "1")])
    with running(of, spark, bootstrap, tmp_path) as run:
        until(run, "blocked")
        assert run.figures.dead == 0


@pytest.mark.long
def test_a_window_that_fails_as_it_closes_blocks_until_the_transform_is_fixed(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """No record is to blame, and none is lost: the release goes on with the state."""

    def shared(how: str) -> Stream:
        def closing(orders: DataFrame) -> DataFrame:
            sums = orders.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.sum("amount").alias("sum"))
            return sums.select(F.unix_millis("w.start").alias("window"), F.expr(how).alias("sum"))

        return replace(STREAM, transform=closing, output_mode=EmitFinal(timedelta(minutes=1), timedelta(seconds=1)))

    def at(minute: int, amount: int) -> Record:
        value = json.dumps({"amount": amount, "people": 1, "at": MINUTE + 60_000 * minute})
        return Record(ORDERS.name, None, value, 0, timestamp=MINUTE)

    with running(shared("1000 DIV sum"), spark, bootstrap, tmp_path) as run:
        send(bootstrap, [at(0, 5), at(0, -5), at(1, 8)])
        run.process_all_available()
        send(bootstrap, [at(5, 1)])
        until(run, "blocked")
        assert "without a record to blame" in (run.figures.error or "")
        assert "DIVIDE_BY_ZERO" in (run.figures.error or "")
        assert run.figures.dead == 0
    with running(shared("try_divide(1000, sum)"), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    assert sums(bootstrap) == {str(MINUTE): None, str(MINUTE + 60_000): "125.0"}
