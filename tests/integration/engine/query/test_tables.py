"""Tables on a real broker: what a batch sees of them, whatever happened before."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from penstock.codec.heartbeat import HEARTBEAT_KEY, HeartbeatSigner, heartbeat_signer
from penstock.control import ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.engine.query.stream_run import StreamRun
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.dead_letters import open_consumer, read_range
from penstock.kafka.topic_writer import TopicWriter
from penstock.model.topic import COMMITS
from penstock.streams import F, Input, Stateless, Stream, Table, Topic, TopicOutput
from penstock.tables import topic_reader
from penstock.tables.table_store import DELETED, MANIFEST
from penstock.tables.topic_reader import TableDecoder, TopicReader
from penstock.testing import Record, create, latest, read, running, send
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

AT = 1_700_000_400_000
SALES = Topic("sales", partitions=2, config={"retention.ms": "-1"})
SHOPS = Topic("shops", partitions=2, compacted=True)
OUT = Topic("named-sales", partitions=1, config={"retention.ms": "-1"})


def transform(sales: DataFrame, shops: DataFrame) -> DataFrame:
    return sales.join(shops, sales.shop == shops.key, "left").select("id", "shop", "town")


STREAM = Stream(
    name="naming",
    app="tests",
    inputs={
        "sales": Input(SALES, schema="id BIGINT NOT NULL, shop STRING NOT NULL, at TIMESTAMP", event_time="at"),
        "shops": Table(SHOPS, schema="town STRING NOT NULL"),
    },
    transform=transform,
    output=TopicOutput(OUT, key="id", value="town"),
    output_mode=Stateless(),
)


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, SALES, SHOPS, OUT, COMMITS, Topic(SALES.dead_letters), Topic(SHOPS.dead_letters))
    return fresh_broker.bootstrap


def test_a_row_may_have_the_heartbeat_key(bootstrap: str) -> None:
    """A beat is no row; what proves nothing is one, or a dead letter."""
    key = HEARTBEAT_KEY.decode()
    beat = heartbeat_signer().value(SHOPS.name, 0, AT).decode()
    forged = HeartbeatSigner(b"theirs").value(SHOPS.name, 0, AT).decode()
    values = [(beat, 0), (forged, 0), (beat, 1), ('{"town": "Aachen"}', 1)]
    send(bootstrap, [Record(SHOPS.name, key, value, partition) for value, partition in values])
    feed = TopicReader(STREAM.tables["shops"], bootstrap, {0: 0, 1: 0})
    with closing(feed):
        found = list(feed.read_to({0: 2, 1: 2}, lambda: False))
    assert [row for taken in found for rows in taken.rows.values() for row in rows.to_pylist()] == [
        {"key": key, "town": "Aachen", DELETED: False}
    ]
    dead = sorted((row["partition"], row["offset"]) for taken in found for row in taken.bad_records.to_pylist())
    assert dead == [(0, 1), (1, 0)]


def test_a_record_that_unpacks_to_more_than_clients_take_is_read(bootstrap: str) -> None:
    """3 kB as it is sent, and 110 MB of one letter."""
    send(bootstrap, [Record(SHOPS.name, "a", '{"town": "Aachen"}', 0)])
    bomb = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "message.max.bytes": 200_000_000})
    bomb.produce(SHOPS.name, b"a" * 110_000_000, b"b", partition=0)
    assert not bomb.flush(60)
    send(bootstrap, [Record(SHOPS.name, "c", '{"town": "Celle"}', 0)])
    feed = TopicReader(STREAM.tables["shops"], bootstrap, {0: 0})
    with closing(feed):
        found = list(feed.read_to({0: 3}, lambda: False))
    assert [row["key"] for taken in found for rows in taken.rows.values() for row in rows.to_pylist()] == ["a", "c"]
    assert [row["offset"] for taken in found for row in taken.bad_records.to_pylist()] == [1]
    with open_consumer(bootstrap) as reader:
        assert [len(m.value() or b"") > 10**8 for m in read_range(reader, SHOPS.name, 0, 0, 3)] == [False, True, False]


def shop(key: str | None, town: str | None) -> Record:
    value = town if town is None or town.startswith("{") else json.dumps({"town": town})
    return Record("shops", key, value, sum((key or "").encode()) % 2)


def sales(*of: tuple[int, str]) -> list[Record]:
    return [
        Record("sales", None, json.dumps({"id": i, "shop": s, "at": "2023-11-14T22:20:00Z"}), i % 2, timestamp=AT)
        for i, s in of
    ]


def named(bootstrap: str) -> dict[str | None, str | None]:
    return latest(read(bootstrap, OUT.name))


def folder(root: Path) -> Path:
    return root / "naming.tables" / "shops"


def test_each_batch_sees_the_table_as_it_is_when_the_batch_begins(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, [shop("a", "Aachen"), shop("b", "Bonn"), shop("a", "Augsburg")])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        send(bootstrap, sales((1, "a"), (2, "b"), (3, "c")))
        run.process_all_available()
        assert named(bootstrap) == {"1": "Augsburg", "2": "Bonn", "3": None}
        send(bootstrap, [shop("a", None), shop("c", "Celle")])
        send(bootstrap, sales((4, "a"), (5, "b"), (6, "c")))
        run.process_all_available()
        assert named(bootstrap).items() >= {"4": None, "5": "Bonn", "6": "Celle"}.items()
        assert run.figures.restarts == 0
    send(bootstrap, [shop("b", "Berlin")])
    send(bootstrap, sales((7, "b")))
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert named(bootstrap)["7"] == "Berlin"


def dead(bootstrap: str) -> list[tuple[str | None, str, str]]:
    found = read(bootstrap, SHOPS.dead_letters)
    return sorted((r.key, r.value or "", dict(r.headers)["penstock.reason"]) for r in found)


MISSING = "field town is missing or null"


def struck(monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """The next transaction fails, before or after it is committed."""
    write, failures = TopicWriter.write, ["lightning"]

    def strikes(self: TopicWriter, rows: Any, mark: Any) -> int:
        if not failures:
            return write(self, rows, mark)
        if after:
            write(self, rows, mark)
        raise RuntimeError(failures.pop())

    monkeypatch.setattr(TopicWriter, "write", strikes)


def failed(run: StreamRun) -> bool:
    run.reconcile()
    return bool(run.figures.restarts)


def restarted(run: StreamRun) -> bool:
    run.reconcile()
    return run.active


@pytest.mark.parametrize(
    "after", [pytest.param(False, marks=pytest.mark.long), True], ids=["before the transaction", "behind it"]
)
def test_a_value_that_is_no_record_is_one_dead_letter_and_a_batch_run_again_sees_the_same_table(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    send(bootstrap, [shop("a", "Aachen"), shop("a", "{}"), shop("b", None), shop("c", "{}")])
    send(bootstrap, sales((1, "a")))
    struck(monkeypatch, after)
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        wait_until(lambda: failed(run), what="the query fails")
        send(bootstrap, [shop("a", "Augsburg"), shop("d", "{}")])
        wait_until(lambda: restarted(run), what="it runs again")
        run.process_all_available()
        assert named(bootstrap) == {"1": "Aachen"}
        assert dead(bootstrap) == [("a", "{}", MISSING), ("c", "{}", MISSING)]
        send(bootstrap, sales((2, "a")))
        run.process_all_available()
        assert named(bootstrap)["2"] == "Augsburg"
    assert dead(bootstrap) == [("a", "{}", MISSING), ("c", "{}", MISSING), ("d", "{}", MISSING)]
    headers = [dict(r.headers) for r in read(bootstrap, SHOPS.dead_letters)]
    places = sorted((h["penstock.topic"], h["penstock.partition"], h["penstock.offset"]) for h in headers)
    assert places == [("shops", "0", "1"), ("shops", "1", "1"), ("shops", "1", "2")]
    assert all("penstock.timestamp" in h for h in headers)


def test_dead_letters_beyond_a_batchs_share_go_with_the_next(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "BATCH_ROWS", 10)
    monkeypatch.setattr("penstock.engine.query.tables.BATCH_ROWS", 10)
    send(bootstrap, [shop(f"k{n}", "{}") for n in range(35)])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        seen = []
        for n in range(5):
            send(bootstrap, sales((n, "a")))
            run.process_all_available()
            seen.append(len(dead(bootstrap)))
    assert 0 < seen[0] < 35
    assert seen == sorted(seen)
    assert [key for key, *_ in dead(bootstrap)] == sorted(f"k{n}" for n in range(35))
    assert run.figures.dead == 35


@pytest.mark.long
def test_a_table_whose_folder_is_damaged_is_read_anew_and_no_dead_letter_comes_twice(
    spark: SparkSession, bootstrap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(bootstrap, [shop("a", "Aachen"), shop("b", "{}")])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        send(bootstrap, sales((1, "a")))
        run.process_all_available()
    assert len(dead(bootstrap)) == 1
    for path in folder(tmp_path).glob("*.arrow"):
        path.write_bytes(b"")
    send(bootstrap, sales((2, "a")))
    with caplog.at_level(logging.WARNING), running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    assert "table shops is read from its topic's beginning" in caplog.text
    assert named(bootstrap) == {"1": "Aachen", "2": "Aachen"}
    assert len(dead(bootstrap)) == 1


@pytest.mark.long
def test_a_table_file_deleted_under_a_running_stream_is_restored(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, [shop("a", "Aachen")])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        next(folder(tmp_path).glob("*.arrow")).unlink()
        send(bootstrap, sales((1, "a")))
        wait_until(lambda: failed(run), what="the query fails")
        wait_until(lambda: restarted(run) and named(bootstrap) == {"1": "Aachen"}, what="the batch is run again")


@pytest.mark.long
def test_another_schema_is_another_table(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, [Record("shops", "a", '{"town": "Aachen", "zip": "52062"}')])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        send(bootstrap, sales((1, "a")))
        run.process_all_available()
    zips = replace(STREAM, inputs={**STREAM.inputs, "shops": Table(SHOPS, schema="zip STRING")}, transform=with_zips)
    with running(zips, spark, bootstrap, tmp_path) as run:
        send(bootstrap, sales((2, "a")))
        run.process_all_available()
    assert named(bootstrap) == {"1": "Aachen", "2": "52062"}


def with_zips(sales: DataFrame, shops: DataFrame) -> DataFrame:
    return sales.join(shops, sales.shop == shops.key, "left").select("id", F.col("zip").alias("town"))


def test_a_topic_deleted_and_made_again_is_another_table(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, [shop("a", "Aachen"), shop("b", "Bonn")])
    client = admin(bootstrap)
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        send(bootstrap, sales((1, "a")))
        run.process_all_available()
        client.delete_topics(["shops"])["shops"].result(10)
        wait_until(lambda: "shops" not in partition_counts(client, bootstrap))
        create(bootstrap, SHOPS)
        send(bootstrap, [shop("b", "Berlin"), shop("c", "Celle"), shop("c", "Cottbus")])
        send(bootstrap, sales((2, "a"), (3, "b"), (4, "c")))
        run.process_all_available()
        assert named(bootstrap) == {"1": "Aachen", "2": None, "3": "Berlin", "4": "Cottbus"}
        assert run.figures.restarts == 0


def test_dead_letters_of_a_topic_made_again_are_not_taken_for_written_ones(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """They lie below offsets that the mark of before says are done."""
    send(bootstrap, [shop("a", f"town {n}") for n in range(20)])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        send(bootstrap, sales((1, "a")))
        run.process_all_available()
    client = admin(bootstrap)
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        client.delete_topics(["shops"])["shops"].result(10)
        wait_until(lambda: "shops" not in partition_counts(client, bootstrap))
        create(bootstrap, SHOPS)
        send(bootstrap, [shop("a", "{rubbish"), shop("a", "Aachen")])
        send(bootstrap, sales((2, "a")))
        run.process_all_available()
        assert named(bootstrap)["2"] == "Aachen"
    assert [r.value for r in read(bootstrap, SHOPS.dead_letters)] == ["{rubbish"]


@contextmanager
def transactions(bootstrap: str) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "tests-tables"})
    producer.init_transactions(10)
    yield producer
    producer.flush(10)


def test_uncommitted_records_are_not_in_the_table_and_do_not_block_it(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """The topic ends with records that no committed reader sees, again and again."""
    send(bootstrap, [shop("a", "Aachen")])
    with transactions(bootstrap) as producer:
        for _ in range(3):
            producer.begin_transaction()
            producer.produce("shops", key="a", value='{"town": "Atlantis"}', partition=1)
            producer.abort_transaction(10)
        with running(STREAM, spark, bootstrap, tmp_path) as run:
            for number in range(3):
                send(bootstrap, sales((number, "a")))
                run.process_all_available()
                producer.begin_transaction()
                producer.produce("shops", key="a", value='{"town": "Atlantis"}', partition=1)
                producer.abort_transaction(10)
            producer.begin_transaction()
            producer.produce("shops", key="a", value='{"town": "Ansbach"}', partition=1)
            send(bootstrap, sales((7, "a")))
            run.process_all_available()
            producer.commit_transaction(10)
            send(bootstrap, sales((8, "a")))
            run.process_all_available()
            assert run.figures.restarts == 0
    assert named(bootstrap) == {**dict.fromkeys("0127", "Aachen"), "8": "Ansbach"}


def made(spark: SparkSession, bootstrap: str, root: Path, stream: Stream = STREAM) -> StreamRun:
    return StreamRun(stream, spark, bootstrap, str(root), ProgressRow(stream.name, "tests", "i"))


@pytest.mark.long
def test_loading_a_table_reports_progress_and_resumes(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "BATCH_ROWS", 100)
    send(bootstrap, [shop(f"k{n}", "Köln") for n in range(1000)])
    send(bootstrap, sales((1, "k999")))
    taken, gate, parts = TableDecoder.decode, threading.Event(), []

    def slow(self: TableDecoder, records: Any, following: dict[int, int]) -> Any:
        parts.append(sum(following.values()))
        assert len(parts) < 3 or gate.wait(60)
        return taken(self, records, following)

    monkeypatch.setattr(TableDecoder, "decode", slow)
    run = made(spark, bootstrap, tmp_path)
    run.reconcile()
    wait_until(lambda: len(parts) == 3, what="two parts are read")
    run.reconcile()
    row = run.report()
    assert (row.state, row.restarts, run.running, run.active) == ("loading", 0, True, False)
    read_so_far = sum(row.topics["shops"]["offsets"].values())
    assert 0 < read_so_far < 1000
    assert row.lag == 1000 - read_so_far
    gate.set()
    run.stop()
    assert run.report().state == "stopped"
    before = list(parts)
    assert before[-1] < 1000
    wait_until(lambda: restarted(run), what="it is loaded")
    run.process_all_available()
    assert named(bootstrap) == {"1": "Köln"}
    # what was kept was not read once more
    assert parts[len(before)] > read_so_far
    run.stop()


def test_more_partitions_are_refused(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        send(bootstrap, sales((1, "a")))
        run.process_all_available()
    create(bootstrap, replace(SHOPS, partitions=3))
    run = made(spark, bootstrap, tmp_path)
    wait_until(lambda: failed(run))
    assert "so a key may be in two of them" in (run.figures.error or "")
    run.stop()


def test_a_broadcast_table_is_refused(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    def hinted(sales: DataFrame, shops: DataFrame) -> DataFrame:
        return sales.join(F.broadcast(shops), sales.shop == shops.key).select("id", "town")

    send(bootstrap, [shop("a", "Aachen")])
    run = made(spark, bootstrap, tmp_path, replace(STREAM, transform=hinted))
    send(bootstrap, sales((1, "a")))
    wait_until(lambda: failed(run))
    assert "without broadcast hints" in (run.figures.error or "")
    run.stop()
    assert (folder(tmp_path) / MANIFEST).exists()
