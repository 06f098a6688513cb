"""A broken log of the broker costs a stream what is broken of it, and nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.checkpoint.offset_log import OffsetMapping
from penstock.engine.faults import corrupt_offsets
from penstock.errors import BrokerError
from penstock.kafka import dead_letters as letters
from penstock.kafka.log_corruption import find_corrupt_range
from penstock.kafka.replay import replay
from penstock.model.output import CommitMarker
from penstock.model.topic import COMMITS, DEAD_LETTERS
from penstock.streams import Table, Topic
from penstock.tables.topic_reader import TopicReader
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

pytestmark = pytest.mark.integration


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, ORDERS, DEAD, SHARES, COMMITS)
    return fresh_broker.bootstrap


def segment(broker: Broker) -> Path:
    """The first partition's log. Folders of deleted topics vanish meanwhile, so no folder is searched."""
    (found,) = (broker.home / "kafka" / "data" / f"{ORDERS.name}-0").glob("*.log")
    return found


def batches(broker: Broker) -> list[tuple[int, bytearray]]:
    """Of the first partition's log, where each batch lies, with its bytes."""
    log, at, found = segment(broker).read_bytes(), 0, []
    while at + 12 < len(log) and (size := 12 + int.from_bytes(log[at + 8 : at + 12])) > 12:
        found.append((at, bytearray(log[at : at + size])))
        at += size
    return found


def write(broker: Broker, at: int, batch: bytes | bytearray) -> None:
    with segment(broker).open("r+b") as log:
        log.seek(at)
        log.write(batch)


def test_a_table_takes_nothing_of_a_broken_batch(broker: Broker, bootstrap: str) -> None:
    """Nobody knows what a key has become in it: to go on would keep the old value."""
    for town in ("Aachen", "victim"):
        send(bootstrap, [Record(ORDERS.name, "a", f'{{"town": "{town}"}}')])
    at, batch = batches(broker)[1]
    write(broker, at, batch.replace(b"victim", b"vactim"))
    feed = TopicReader(Table(Topic(ORDERS.name, compacted=True), schema="town STRING NOT NULL"), bootstrap, {0: 0})
    with (
        closing(feed),
        pytest.raises(BrokerError, match="a batch is corrupt in the broker's log"),
    ):
        list(feed.read_to({0: 2}, lambda: False))


@pytest.mark.long
def test_a_broken_batch_of_the_brokers_log_costs_that_batch(
    spark: SparkSession, broker: Broker, bootstrap: str, tmp_path: Path
) -> None:
    for texts in (["1"], ["victim", "20"], ["3"]):
        send(bootstrap, [Record(ORDERS.name, None, text) for text in texts])
    at, batch = batches(broker)[1]
    write(broker, at, batch.replace(b"victim", b"vactim"))
    with running(raw_stream(), spark, bootstrap, tmp_path) as run:
        until(run, dead=2)
        run.process_all_available()
        send(bootstrap, [Record(ORDERS.name, None, "4")])
        wait_until(lambda: tended(run.reconcile, lambda: len(read(bootstrap, SHARES.name)) == 3))
        assert run.figures.dead == 2
    assert [r.value for r in read(bootstrap, SHARES.name)] == ["1", "3", "4"]
    letters = read(bootstrap, DEAD_LETTERS.name)
    assert [(place(one), one.value) for one in letters] == [("orders[0]@1", "vactim"), ("orders[0]@2", "20")]
    assert all("corrupt in the broker's log" in why(one) for one in letters)


CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def send_packed(bootstrap: str, codec: str, *sent: Record) -> None:
    """Send records as one compressed batch: only the flush ends the linger."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 120_000})
    for one in sent:
        producer.produce(one.topic, value=one.value, partition=0, timestamp=one.timestamp)
    assert producer.flush(30) == 0


def send_corrupt(broker: Broker, *codecs: tuple[str, int]) -> None:
    """Of each codec send a batch of 30 records, and behind it an order of some amount unless that is 0; then flip a
    bit in each compressed batch."""
    for codec, good in codecs:
        send_packed(broker.bootstrap, codec, *(order(1000 + n) for n in range(30)))
        if good:
            send(broker.bootstrap, [order(good)])
    packed = [(at, batch) for at, batch in batches(broker) if batch[22] & 7]
    assert [batch[22] & 7 for _, batch in packed] == [CODECS[codec] for codec, _ in codecs]
    for at, batch in packed:
        batch[100] ^= 0x10
        write(broker, at, batch)


def test_corrupt_batches_are_found_whatever_their_codec(broker: Broker, bootstrap: str) -> None:
    """The first of all, two side by side, and one behind them."""
    send_corrupt(broker, ("lz4", 1), ("zstd", 0), ("gzip", 2), ("snappy", 4))
    found, start = [], 0
    while (corrupt := find_corrupt_range(ORDERS.name, 0, start, 123, bootstrap)) is not None:
        found.append(corrupt)
        start = corrupt.stop
    assert found == [range(30), range(31, 91), range(92, 122)]


def test_corrupt_compressed_batches_cost_exactly_their_records(
    spark: SparkSession, broker: Broker, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that lie side by side, the first of all, and one behind. The driver dies once in between, and has then found
    only the first of the two."""
    send_corrupt(broker, ("lz4", 0), ("zstd", 1), ("gzip", 2))
    send(bootstrap, [order(100, partition=1)])
    replace_offsets, died = Checkpoint.replace_offsets, iter([True])

    def dies(self: Checkpoint, mapping: OffsetMapping, written: CommitMarker) -> None:
        if next(died, False):
            raise OSError("it died")
        replace_offsets(self, mapping, written)

    def finds(*args: Any) -> range | None:
        corrupt = find_corrupt_range(*args)
        return range(30) if corrupt == range(60) and next(finds_less, False) else corrupt

    finds_less = iter([True])
    monkeypatch.setattr(corrupt_offsets, "find_corrupt_range", finds)
    monkeypatch.setattr(Checkpoint, "replace_offsets", dies)
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: sums(bootstrap) == {str(MINUTE): "103"}))
        send(bootstrap, [order(8)])
        wait_until(lambda: tended(run.reconcile, lambda: sums(bootstrap) == {str(MINUTE): "111"}))
        assert (next(died, None), run.figures.dead) == (None, 90)
    assert [place(one) for one in read(bootstrap, DEAD.name)] == [
        f"orders[0]@{at}" for at in (*range(60), *range(61, 91))
    ]
    found = list(letters.read_dead_letters([DEAD.name], bootstrap, 1000))
    assert all("corrupt in the broker's log" in one.reason for one in found)
    lost = [one for one in found if one.truncated]
    assert lost
    # What is not known is not sent again as a record without a value.
    for one in replay(lost, found, lambda _: {STREAM.name}, bootstrap, dry=True):
        assert (one.record, "could not be read" in one.refusal) == (None, True)


def crc32c(data: bytes | bytearray) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_log_that_cannot_be_read_though_its_checksum_fits_is_named(
    spark: SparkSession, broker: Broker, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, [Record(ORDERS.name, None, "1")])
    send(bootstrap, [Record(ORDERS.name, None, "victim" * 100)])
    at, batch = batches(broker)[1]
    # The record's own length: more than there is.
    start = batch.index(b"victim") - 8
    batch[start : start + 2] = b"\xfe\x7f"
    batch[17:21] = crc32c(batch[21:]).to_bytes(4)
    write(broker, at, batch)
    with running(raw_stream(), spark, bootstrap, tmp_path) as run:
        until(run, "blocked")
        assert "got: topic orders, partition 0, offsets 0 to 1: " in (run.figures.error or "")
        assert "penstock streams reset sharing --to" in (run.figures.error or "")
