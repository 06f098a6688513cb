"""The runner on a real broker: what a batch leaves behind, whatever happened in the middle of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.layout import Checkpoint, PlannedBatch
from penstock.engine.query import source
from penstock.engine.query.stream_run import StreamRun
from penstock.engine.replacement.running_version import RunningVersion
from penstock.errors import Blocked, LeaseLost
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.dead_letters import read_dead_letters
from penstock.kafka.topic_writer import TopicWriter
from penstock.model.output import CommitMarker
from penstock.model.topic import COMMITS
from penstock.streams import EmitChanges, F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, latest, read, running, send
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

MINUTE = 1_700_000_400_000
EVENTS = Topic("events", partitions=2, config={"retention.ms": "-1"})
FUTURE = json.dumps({"n": 9, "at": 4_000_000_000_000})
NANOSECONDS = json.dumps({"n": 9, "at": MINUTE * 1_000_000})
OUT = Topic("counts", partitions=1, config={"retention.ms": "-1"})


def transform(events: DataFrame) -> DataFrame:
    rows = events.groupBy(F.window("event_time", "1 minute").alias("w")).agg(
        F.count("*").alias("count"), F.sum("n").alias("sum")
    )
    return rows.select(F.unix_millis("w.start").alias("window"), "count", "sum")


STREAM = Stream(
    name="counting",
    app="tests",
    inputs={"events": Input(EVENTS, schema="n BIGINT NOT NULL, at BIGINT NOT NULL", event_time="timestamp_millis(at)")},
    transform=transform,
    output=TopicOutput(OUT, key="window", value=("count", "sum")),
    output_mode=EmitChanges(window=timedelta(minutes=1), grace=timedelta(minutes=5)),
)


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, EVENTS, Topic(EVENTS.dead_letters, partitions=1), OUT, COMMITS)
    return fresh_broker.bootstrap


def events(*numbers: int, at: int = MINUTE) -> list[Record]:
    return [Record("events", None, json.dumps({"n": n, "at": at}), n % 2, timestamp=at) for n in numbers]


def counts(bootstrap: str) -> dict[str | None, tuple[int, int]]:
    found = latest(read(bootstrap, "counts"))
    return {k: (v["count"], v["sum"]) for k, v in ((k, json.loads(v or "null")) for k, v in found.items())}


def test_a_batch_that_died_between_its_output_and_its_commit_is_not_written_again(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, [*events(1, 2), Record("events", None, "rubbish")])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    before = read(bootstrap, "counts"), read(bootstrap, EVENTS.dead_letters)
    assert [r.value for r in before[0]] == ['{"count":2,"sum":3}']
    assert len(before[1]) == 1
    # As if the driver had died behind the transaction: Spark's commit log lacks the batch, so Spark runs it again.
    commits = sorted((tmp_path / STREAM.name / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    commits[-1].unlink()
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert (read(bootstrap, "counts"), read(bootstrap, EVENTS.dead_letters)) == before
        send(bootstrap, events(3))
        run.process_all_available()
    assert counts(bootstrap) == {str(MINUTE): (3, 6)}


@pytest.mark.parametrize("more", [[], ["x" * 5000]])
def test_dead_letters_hold_the_record_as_it_came(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """A few small ones are held while the batch runs; for a large one it is read again."""
    read_again: list[PlannedBatch] = []
    ranged: Callable[..., DataFrame] = source.batch_records

    def noted(spark: SparkSession, given: Input, bootstrap: str, batch: PlannedBatch, *more: object) -> DataFrame:
        read_again.append(batch)
        return ranged(spark, given, bootstrap, batch, *more)

    monkeypatch.setattr(source, "batch_records", noted)
    rubbish = ['{"n": 1}', "grün", "{", '{"n":"x","at":60000}', None, FUTURE, NANOSECONDS, *more]
    own = (("own", "1"), ("own", "2"))
    sent = (Record("events", f"k{i}", text, timestamp=MINUTE, headers=own) for i, text in enumerate(rubbish))
    send(bootstrap, [*events(1, 2), *sent])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert (run.figures.dead, counts(bootstrap)) == (len(rubbish), {str(MINUTE): (2, 3)})
    assert bool(read_again) == bool(more)
    found = {r.key: r for r in read(bootstrap, EVENTS.dead_letters)}
    assert {r.key: r.value for r in found.values()} == {f"k{i}": text for i, text in enumerate(rubbish)}
    reasons = [dict(found[f"k{i}"].headers)["penstock.reason"] for i in range(7)]
    assert reasons == [
        "field at is missing or null",
        "not valid JSON: grün",
        "not valid JSON: {",
        "field n is no bigint: x",
        "the record has no value",
        "the event time lies in the future: 2096-10-02 07:06:40",
        "no event time: timestamp_millis(at) gives none",
    ]
    assert dict(found["k0"].headers)["penstock.offset"] == "1"
    letters = list(read_dead_letters([EVENTS.dead_letters], bootstrap))
    assert {letter.headers for letter in letters} == {(("own", b"1"), ("own", b"2"))}
    assert {letter.penstock_headers["timestamp"] for letter in letters} == {str(MINUTE)}


def test_a_batch_that_failed_before_its_output_is_written_once(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = TopicWriter.write, [RuntimeError("lightning"), None]

    def struck(self: TopicWriter, *args: object, **kwargs: object) -> int:
        if failures and (e := failures.pop(0)):
            # The records are in the transaction, which is then never committed.
            self._producer.begin_transaction()
            self._producer.produce("counts", b"struck", b"{}")
            self._producer.flush(10)
            raise e
        return write(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicWriter, "write", struck)
    send(bootstrap, events(1, 2, 3))
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        wait_until(lambda: failed(run), what="the query fails")
        wait_until(lambda: counts(bootstrap) == {str(MINUTE): (3, 6)}, what="it was restarted")
        assert run.figures.restarts == 1
        assert "lightning" in (run.figures.error or "")
    assert [r.key for r in read(bootstrap, "counts")] == [str(MINUTE)]


def failed(run: StreamRun) -> bool:
    run.reconcile()
    return bool(run.figures.restarts)


def writer(bootstrap: str) -> TopicWriter:
    return TopicWriter(STREAM.name, STREAM.group, bootstrap, [TopicOutput(OUT, key="window", value="count")])


def row(value: str) -> dict[str, pa.Table]:
    return {OUT.name: pa.table({"key": ["k"], "value": [value]})}


def test_an_older_writer_is_fenced_and_leaves_nothing_visible(bootstrap: str) -> None:
    older = writer(bootstrap)
    assert older.committed().batch == -1
    assert older.write(row("1"), CommitMarker("q", 0, {"events": {0: 1}})) == 1
    newer = writer(bootstrap)
    assert newer.committed() == CommitMarker("q", 0, {"events": {0: 1}})
    with pytest.raises(LeaseLost):
        older.write(row("stale"), CommitMarker("q", 1, {}))
    newer.write(row("2"), CommitMarker("q", 1, {"events": {0: 2}}))
    assert [r.value for r in read(bootstrap, "counts")] == ["1", "2"]
    assert newer.committed().batch == 1
    older.close()
    newer.close()


def test_offsets_are_committed_to_the_consumer_group(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, events(1, 2, 3))
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        send(bootstrap, events(5))
        run.process_all_available()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": STREAM.group})

    def offsets() -> list[int]:
        found = consumer.committed([TopicPartition("events", p) for p in (0, 1)], timeout=10)
        return [at.offset for at in found]

    wait_until(lambda: offsets() == [1, 3])
    consumer.close()


def test_a_missing_checkpoint_blocks_the_stream(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """One without state goes on behind its mark; one with state says what is missing."""
    plain = replace(
        STREAM, transform=lambda events: events.select("n"), output=TopicOutput(OUT, value="n"), output_mode=Stateless()
    )
    send(bootstrap, events(1, 2))
    for each in (STREAM, replace(plain, name="plain")):
        with running(each, spark, bootstrap, tmp_path) as run:
            run.process_all_available()
        shutil.rmtree(tmp_path / each.name)
        send(bootstrap, events(3))
        if each is STREAM:
            with (
                pytest.raises(Blocked, match="counting is not there, though it wrote up to batch 0"),
                running(each, spark, bootstrap, tmp_path),
            ):
                pass
        else:
            with running(each, spark, bootstrap, tmp_path) as run:
                run.process_all_available()
    assert sorted(str(r.value) for r in read(bootstrap, OUT.name) if r.key is None) == ["1", "2", "3", "3"]


def test_a_transform_that_raises_stops_only_its_own_stream(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    def wrong(events: DataFrame) -> DataFrame:
        return events.select("no_such_column")

    from penstock.control import ProgressRow

    run = StreamRun(
        replace(STREAM, transform=wrong), spark, bootstrap, str(tmp_path), ProgressRow("counting", "tests", "i")
    )
    run.reconcile()
    assert run.figures.state == "failing"
    assert "no_such_column" in (run.figures.error or "")
    assert not run.active
    run.stop()


def by_topic(records: DataFrame) -> DataFrame:
    return records.groupBy("topic", F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("count"))


PATTERN = replace(
    STREAM,
    inputs={"records": Input(pattern="events.*")},
    transform=lambda records: by_topic(records).select("topic", "count"),
    output=TopicOutput(OUT, key="topic", value="count"),
    output_mode=EmitChanges(window=timedelta(minutes=1), grace=timedelta(days=10_000)),
)


def sent(topic: str, count: int, partitions: int = 2) -> list[Record]:
    return [Record(topic, None, "{}", n % partitions, timestamp=MINUTE) for n in range(count)]


@pytest.mark.long
@pytest.mark.parametrize(
    "again", [3, pytest.param(60, marks=pytest.mark.long)], ids=["fewer records than before", "more than before"]
)
def test_a_topic_deleted_and_created_again_is_counted_from_its_first_record(
    spark: SparkSession, bootstrap: str, tmp_path: Path, again: int
) -> None:
    victim = Topic("events-victim", partitions=2, config={"retention.ms": "-1"})
    create(bootstrap, victim)
    client = admin(bootstrap)
    with running(PATTERN, spark, bootstrap, tmp_path) as run:
        send(bootstrap, [*sent("events-victim", 20), *sent("events", 5)])
        wait_until(lambda: tended(run, bootstrap) == {"events-victim": 20, "events": 5})
        client.delete_topics(["events-victim"])["events-victim"].result(10)
        wait_until(lambda: "events-victim" not in partition_counts(client, bootstrap))
        create(bootstrap, victim)
        send(bootstrap, [*sent("events-victim", again), *sent("events", 5)])
        wait_until(
            lambda: tended(run, bootstrap) == {"events-victim": 20 + again, "events": 10},
            what="the new topic is counted from its first record, nothing twice",
        )
        run.process_all_available()
        assert totals(bootstrap) == {"events-victim": 20 + again, "events": 10}
        # and once more: it goes on as any other topic
        send(bootstrap, sent("events-victim", 2))
        run.process_all_available()
        assert totals(bootstrap)["events-victim"] == 22 + again


def test_new_topics_and_new_partitions_are_read_without_a_restart(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    with running(PATTERN, spark, bootstrap, tmp_path) as run:
        send(bootstrap, sent("events", 4))
        run.process_all_available()
        create(
            bootstrap, Topic("events-new", partitions=1, config={"retention.ms": "-1"}), replace(EVENTS, partitions=5)
        )
        send(bootstrap, [*sent("events-new", 3, 1), *sent("events", 10, 5)])
        wait_until(lambda: totals(bootstrap) == {"events": 14, "events-new": 3})
        assert run.figures.restarts == 0


def tended(run: StreamRun, bootstrap: str) -> dict[str | None, int]:
    run.reconcile()
    return totals(bootstrap)


def totals(bootstrap: str) -> dict[str | None, int]:
    return {k: int(v or 0) for k, v in latest(read(bootstrap, "counts")).items()}


def test_a_stopped_stream_goes_on_where_it_was(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    for n in range(1, 4):
        send(bootstrap, events(n))
        with running(STREAM, spark, bootstrap, tmp_path) as run:
            run.process_all_available()
    assert [json.loads(r.value or "")["count"] for r in read(bootstrap, "counts")] == [1, 2, 3]


def test_a_stop_waits_for_the_commit_of_a_batch_whose_output_is_written(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    for n in range(3):
        with running(STREAM, spark, bootstrap, tmp_path):
            send(bootstrap, events(n))
            while len(read(bootstrap, "counts")) <= n:
                pass
            written = RunningVersion(STREAM.name, ["counts"], bootstrap).marker().batch
        assert Checkpoint(spark, str(tmp_path), STREAM.name).last_commit >= written
