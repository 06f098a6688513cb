"""A new version whose state is built of an archive, as the topic has lost records, on real servers."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from penstock.archive.stream import archive_stream
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.s3 import S3Server
from penstock.engine.replacement import archive_steps, new_version
from penstock.engine.replacement.input_archive import find_archive
from penstock.engine.replacement.replacement import Replacement, ReplacementOptions
from penstock.engine.session import session_for
from penstock.errors import DeclarationError, PenstockError
from penstock.kafka.admin import admin
from penstock.model.archive import Archive
from penstock.model.mask import Mask
from penstock.model.topic import COMMITS
from penstock.settings import settings
from penstock.streams import EmitChanges, EmitFinal, F, Input, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.s3_store import endpoint_of, use_store, write_to_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

MINUTE = 60_000
BEGIN = 1_700_000_400_000
EVENTS = Topic("events", partitions=2, config={"retention.ms": "-1"})
OUT = Topic("sums", partitions=1, config={"retention.ms": "-1"})
LENGTH = timedelta(minutes=1)
ARCHIVE = Archive("kept", EVENTS, bucket="lake", prefix="built-anew", every=timedelta(0), event_time="timestamp")
DAY = timedelta(days=1)


def sums(events: DataFrame) -> DataFrame:
    rows = events.groupBy("n", F.window("event_time", "1 minute").alias("w")).agg(
        F.count("*").alias("count"), F.sum("n").alias("sum")
    )
    return rows.select("n", ((F.unix_millis("w.start") - BEGIN) / MINUTE).cast("int").alias("minute"), "count", "sum")


def counts(events: DataFrame) -> DataFrame:
    return sums(events).drop("sum")


EVENT = Input(EVENTS, schema="at BIGINT NOT NULL, n INT", event_time="timestamp_millis(at)", max_ahead=timedelta(0))
STREAM = Stream(
    name="counting",
    app="tests",
    inputs={"events": EVENT},
    transform=counts,
    output=TopicOutput(OUT, key=("n", "minute"), value=("n", "minute", "count")),
    # A window stays open for a day.
    output_mode=EmitChanges(window=LENGTH, grace=DAY),
)
WIDER = replace(
    STREAM,
    transform=sums,
    output=TopicOutput(OUT, key=("n", "minute"), value=("n", "minute", "count", "sum")),
)


@pytest.fixture
def bootstrap(fresh_broker: Broker, object_store: S3Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    assert home == settings().home
    use_store(monkeypatch, endpoint_of(object_store))
    # A step is long in production.
    monkeypatch.setattr(archive_steps, "LEAST_RECORDS", 1)
    create(fresh_broker.bootstrap, EVENTS, Topic(EVENTS.dead_letters, partitions=1), OUT, COMMITS)
    return fresh_broker.bootstrap


def put(bootstrap: str, *minutes: float) -> None:
    records = []
    for number, minute in enumerate(minutes):
        time = BEGIN + int(minute * MINUTE)
        value = json.dumps({"at": time, "n": number % 3})
        records.append(Record(EVENTS.name, None, value, number % 2, timestamp=time))
    send(bootstrap, records)


def last_rows(bootstrap: str) -> dict[tuple[int, int], dict[str, int]]:
    """The newest row of each key."""
    values = [json.loads(record.value or "") for record in read(bootstrap, OUT.name)]
    return {(row["n"], row["minute"]): row for row in values}


def run(stream: Stream, spark: SparkSession, bootstrap: str, folder: Path) -> None:
    with running(stream, spark, bootstrap, folder) as made:
        made.process_all_available()


def delete_records(bootstrap: str, before: int) -> None:
    parts = [TopicPartition(EVENTS.name, p, before) for p in range(EVENTS.partitions)]
    for done in admin(bootstrap).delete_records(parts).values():
        done.result(30)


def replacement(
    spark: SparkSession, bootstrap: str, folder: Path, id_: str, stream: Stream = WIDER, archive: Archive = ARCHIVE
) -> Replacement:
    of_input = find_archive(stream, [archive_stream(archive)])
    assert of_input
    session = session_for(spark, stream)
    return Replacement(stream, session, bootstrap, str(folder), id_, ReplacementOptions(), of_input)


def follow(made: Replacement) -> None:
    for _ in range(60):
        if made.advance() and made.is_ready:
            return
    raise AssertionError("it does not come to where the running version is")


def test_state_is_built_of_records_that_the_topic_has_lost(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = [n / 20 for n in range(200)]
    put(bootstrap, *minutes)
    run(archive_stream(ARCHIVE), spark, bootstrap, tmp_path)
    put(bootstrap, *(10 + n / 20 for n in range(40)))
    run(STREAM, spark, bootstrap, tmp_path)
    expected = {key: {**row, "sum": row["n"] * row["count"]} for key, row in last_rows(bootstrap).items()}
    delete_records(bootstrap, 60)
    with pytest.raises(DeclarationError, match="do not hold all that its state is made of"):
        Replacement(WIDER, session_for(spark, WIDER), bootstrap, str(tmp_path), "0" * 32, ReplacementOptions()).open()
    monkeypatch.setattr(new_version, "ARCHIVE_STEP_RECORDS", 45)
    with closing(replacement(spark, bootstrap, tmp_path, "1" * 32)) as made:
        made.open()
        assert made.progress.total == 240
        made.advance()
        first = made.new.records
        assert 40 <= first <= 50
        # Ended in the middle of a step: it has not begun.
        with monkeypatch.context() as broken:
            broken.setattr(made.new.rows, "write", lambda *_: 1 / 0)
            broken.setattr(new_version, "settle", lambda *_: None)
            with pytest.raises(PenstockError, match="a step of the new version"):
                made.advance()
    with closing(replacement(spark, bootstrap, tmp_path, "1" * 32)) as made:
        made.open()
        assert made.new.records == first
        follow(made)
        made.cut()
    run(WIDER, spark, bootstrap, tmp_path)
    assert last_rows(bootstrap) == expected
    put(bootstrap, 3.5, 3.5, 3.5)
    run(WIDER, spark, bootstrap, tmp_path)
    for n in range(3):
        key = (n, 3)
        count = expected[key]["count"] + 1
        assert last_rows(bootstrap)[key] == {"n": n, "minute": 3, "count": count, "sum": n * count}


@pytest.mark.long
def test_an_archive_that_has_all_is_read_alone(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Its last step, which no step of the topic follows, lets the watermark go on."""
    put(bootstrap, *(n / 20 for n in range(100)))
    archive = replace(ARCHIVE, prefix="built-alone", table="tests.alone")
    run(archive_stream(archive), spark, bootstrap, tmp_path)
    final = replace(STREAM, output_mode=EmitFinal(window=LENGTH, grace=timedelta(0)))
    run(final, spark, bootstrap, tmp_path)
    before = last_rows(bootstrap)
    assert {minute for _, minute in before} == {0, 1, 2, 3}
    delete_records(bootstrap, 50)
    wider = replace(WIDER, output_mode=final.output_mode)
    with closing(replacement(spark, bootstrap, tmp_path, "1" * 32, wider, archive)) as made:
        made.open()
        made.advance()
        assert (made.new.records, made.new.last_batch) == (100, 0)
        follow(made)
        made.cut()
    put(bootstrap, 4.9, 6)
    run(wider, spark, bootstrap, tmp_path)
    assert {key[1] for key in last_rows(bootstrap).keys() - before.keys()} == {4}
    assert sum(row["count"] for key, row in last_rows(bootstrap).items() if key[1] == 4) == 21


@pytest.mark.usefixtures("bootstrap")
def test_an_archive_that_does_not_fit_is_not_read() -> None:
    assert find_archive(WIDER, [STREAM]) is None
    assert find_archive(WIDER, [archive_stream(replace(ARCHIVE, source=Topic("others")))]) is None
    assert find_archive(WIDER, [archive_stream(replace(ARCHIVE, mask=(Mask("value", "hashed", key="pii"),)))]) is None
    two = replace(
        WIDER,
        inputs={"events": EVENT, "more": replace(EVENT, topic=Topic("more"))},
        transform=lambda events, more: sums(events.unionByName(more)),
    )
    assert find_archive(two, [archive_stream(ARCHIVE)]) is None
    own = find_archive(WIDER, [archive_stream(ARCHIVE)])
    assert own
    assert own.ahead_ms == 0
    assert not own.is_of({EVENTS.name: "another"})


def test_an_archive_of_two_topics_of_one_name_is_not_read(bootstrap: str, object_store: S3Server) -> None:
    """Their records have the same offsets."""
    archive = replace(ARCHIVE, prefix="two-topics", table="tests.two_topics")
    record = {
        "topic": EVENTS.name, "partition": 0, "offset": 0, "key": None, "value": b"{}", "headers": None,
        "timestamp": datetime(2026, 1, 31, tzinfo=UTC), "event_time": datetime(2026, 1, 31, tzinfo=UTC),
    }  # fmt: skip
    assert bootstrap
    for topic_id, is_read in (("first", True), ("second", False)):
        write_to_archive(archive, endpoint_of(object_store), [record], topic_id=topic_id, close=False)
        own = find_archive(WIDER, [archive_stream(archive)])
        assert own
        assert own.is_of({EVENTS.name: topic_id}) == is_read
