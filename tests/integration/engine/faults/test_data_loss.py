"""Inputs that change under a stream: what was removed, cut, deleted or made again is told, counted and asked for."""

from __future__ import annotations

import itertools
import json
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from penstock.control import ProgressRow
from penstock.control.repositories.data_loss import DataLoss, InMemoryDataLossLog
from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.commit.delivery import BatchDelivery, OutputStore
from penstock.engine.faults.batch_splitting import SplitLevel, SplitState
from penstock.engine.jvm import bridge
from penstock.engine.operations.reset import Reset
from penstock.engine.query.encode import split_by_output
from penstock.engine.query.source import RecordPosition
from penstock.engine.query.stream_run import StreamRun
from penstock.errors import BrokerError
from penstock.kafka.admin import admin, partition_counts, topic_ids
from penstock.kafka.topic_writer import TopicWriter
from penstock.model.output import NO_COMMIT, CommitMarker
from penstock.model.topic import COMMITS
from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

EVENTS = Topic("gapped", partitions=1, config={"retention.ms": "-1"})
OUT = Topic("seen", partitions=1)
# A unit test says which inputs fail on data loss; here is one that does, and two that do not.
FAILS = Input(EVENTS)
CONTINUES, PATTERN_CONTINUES = Input(EVENTS, on_data_loss="continue"), Input(pattern=EVENTS.name)


def transform(events: DataFrame) -> DataFrame:
    return events.select(F.col("value").cast("string").alias("n"))


def stream(given: Input) -> Stream:
    return Stream("gaps", "tests", {"events": given}, transform, TopicOutput(OUT, value="n"), Stateless())


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, EVENTS, OUT, COMMITS)
    return fresh_broker.bootstrap


def seen(bootstrap: str) -> list[int]:
    return [json.loads(r.value or "") for r in read(bootstrap, OUT.name)]


def events(*numbers: int) -> list[Record]:
    return [Record(EVENTS.name, None, str(n)) for n in numbers]


def raise_no_answer(*_: object) -> NoReturn:
    raise BrokerError("no answer")


def removed(bootstrap: str, before: int) -> None:
    for done in admin(bootstrap).delete_records([TopicPartition(EVENTS.name, 0, before)]).values():
        done.result(30)


def deleted(bootstrap: str) -> None:
    admin(bootstrap).delete_topics([EVENTS.name])[EVENTS.name].result(30)
    wait_until(lambda: EVENTS.name not in partition_counts(admin(bootstrap), bootstrap))


def made_again(bootstrap: str, *numbers: int) -> None:
    deleted(bootstrap)
    create(bootstrap, EVENTS)
    send(bootstrap, events(*numbers))


def has_read(given: Input, spark: SparkSession, bootstrap: str, folder: Path, *numbers: int) -> None:
    send(bootstrap, events(*numbers))
    with running(stream(given), spark, bootstrap, folder) as run:
        run.process_all_available()
    assert seen(bootstrap) == list(numbers)


def refused(given: Input, spark: SparkSession, bootstrap: str, folder: Path, book: InMemoryDataLossLog) -> str:
    """What a stream says that is blocked at its start."""
    run = StreamRun(stream(given), spark, bootstrap, str(folder), ProgressRow("gaps", "tests", "i"), book)
    for _ in range(2):
        run.reconcile()
    run.stop()
    assert run.figures.restarts == 0
    return run.figures.error or "nothing"


def accept(book: InMemoryDataLossLog) -> None:
    book.accepted |= {("gaps", gap) for gap in book.pending["gaps"]}


def test_an_input_that_continues_reads_what_is_left_and_counts_the_loss(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    given = PATTERN_CONTINUES
    has_read(given, spark, bootstrap, tmp_path, 1, 2)
    send(bootstrap, events(3, 4, 5))
    removed(bootstrap, 4)
    book = InMemoryDataLossLog()
    with running(stream(given), spark, bootstrap, tmp_path, book) as run:
        run.process_all_available()
        assert seen(bootstrap) == [1, 2, 5]
        made_again(bootstrap, *range(10, 25))
        wait_until(lambda: tended(run.reconcile, lambda: seen(bootstrap) == [1, 2, 5, *range(10, 25)]))
    gaps = book.passed["gaps"]
    assert [(gap.kind, gap.start, gap.end, gap.records) for gap in gaps] == [
        ("removed", 2, 4, 2),
        ("recreated", 0, 0, None),
    ]


@pytest.mark.long
def test_exactly_the_accepted_data_loss_is_passed(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    given = FAILS
    has_read(given, spark, bootstrap, tmp_path, 1, 2)
    send(bootstrap, events(3, 4, 5, 6))
    removed(bootstrap, 3)
    book = InMemoryDataLossLog()
    said = refused(given, spark, bootstrap, tmp_path, book)
    assert "gapped[0]: offsets 2 to 2 were removed before they were read" in said
    assert "`penstock streams go-on gaps`" in said
    accept(book)
    removed(bootstrap, 4)
    assert "offsets 2 to 3 were removed" in refused(given, spark, bootstrap, tmp_path, book)
    assert seen(bootstrap) == [1, 2]
    accept(book)
    with running(stream(given), spark, bootstrap, tmp_path, book) as run:
        run.process_all_available()
    assert seen(bootstrap) == [1, 2, 5, 6]
    assert [gap.records for gap in book.passed["gaps"]] == [2]
    made_again(bootstrap, *range(10, 25))
    assert "gapped: it was deleted and recreated" in refused(given, spark, bootstrap, tmp_path, book)
    accept(book)
    with running(stream(given), spark, bootstrap, tmp_path, book) as run:
        run.process_all_available()
        assert seen(bootstrap) == [1, 2, 5, 6, *range(10, 25)]
    with running(stream(given), spark, bootstrap, tmp_path) as run:
        send(bootstrap, events(30))
        run.process_all_available()
    assert seen(bootstrap) == [1, 2, 5, 6, *range(10, 25), 30]


def test_a_running_stream_blocks_and_waits_for_a_topic_that_is_gone(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    given, book = Input(EVENTS), InMemoryDataLossLog()
    send(bootstrap, events(1, 2, 3))
    with running(stream(given), spark, bootstrap, tmp_path, book) as run:
        run.process_all_available()
        deleted(bootstrap)
        wait_until(lambda: tended(run.reconcile, lambda: run.figures.state == "blocked"))
        assert "waits for topics that were deleted; got: gapped, read up to offset 3 of [0]" in (
            run.figures.error or ""
        )
    create(bootstrap, EVENTS)
    send(bootstrap, events(4))
    assert "recreated" in refused(given, spark, bootstrap, tmp_path, book)
    accept(book)
    with running(stream(given), spark, bootstrap, tmp_path, book) as run:
        run.process_all_available()
    assert seen(bootstrap) == [1, 2, 3, 4]


@pytest.mark.parametrize(("given", "found"), [(FAILS, []), (CONTINUES, [1, 2, 3])], ids=["it stops", "it goes on"])
def test_records_removed_while_a_batch_is_read_are_data_loss(
    spark: SparkSession,
    bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: Input,
    found: list[int],
) -> None:
    def late(of: Stream, rows: pa.Table) -> dict[str, pa.Table]:
        removed(bootstrap, 2)
        return split_by_output(of, rows)

    monkeypatch.setattr("penstock.engine.commit.committer.split_by_output", late)
    send(bootstrap, events(1, 2, 3))
    book = InMemoryDataLossLog()
    run = StreamRun(stream(given), spark, bootstrap, str(tmp_path), ProgressRow("gaps", "tests", "i"), book)
    try:
        wait_until(lambda: tended(run.reconcile, lambda: book.pending.get("gaps") or book.passed.get("gaps")))
        wait_until(lambda: tended(run.reconcile, lambda: run.figures.state == "blocked" or seen(bootstrap)))
    finally:
        run.stop()
    assert seen(bootstrap) == found
    assert DataLoss(EVENTS.name, "removed", 0, 0, 2, 2) in [
        replace(gap, topic_id="") for gap in (book.passed if found else book.pending)["gaps"]
    ]


def test_a_truncated_log_is_read_from_its_end_once_accepted(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.faults.data_loss.STALE_METADATA_TIMEOUT", 0.5)
    given, book = Input(EVENTS), InMemoryDataLossLog()
    has_read(given, spark, bootstrap, tmp_path, 1, 2, 3)
    # As if there had been five records more, which a broker brought back from a backup does not have.
    checkpoint = Checkpoint(spark, str(tmp_path), "gaps")
    checkpoint.replace_offsets(lambda *place: place[-1] + 5, NO_COMMIT)
    writer = TopicWriter("gaps", "penstock.gaps", bootstrap)
    mark = writer.committed()
    writer.write({}, replace(mark, offsets={EVENTS.name: {0: 8}}, plans=checkpoint.batch(mark.batch).plans))
    writer.close()
    assert "gapped[0]: its log ends at offset 3" in refused(given, spark, bootstrap, tmp_path, book)
    accept(book)
    with running(stream(given), spark, bootstrap, tmp_path, book) as run:
        send(bootstrap, events(4, 5))
        run.process_all_available()
    assert seen(bootstrap) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("fails", [0, 2], ids=["", "and a driver that dies before its marker is whole"])
def test_a_batch_that_is_written_and_not_committed_is_not_written_again_behind_a_gap(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    write_marker, calls = OutputStore.write_marker, itertools.count(1)

    def written(self: OutputStore, marker: CommitMarker) -> None:
        if next(calls) == fails:
            raise BrokerError("no answer")
        write_marker(self, marker)

    given, book = Input(EVENTS, on_data_loss="continue"), InMemoryDataLossLog()
    has_read(given, spark, bootstrap, tmp_path, 1, 2, 3)
    (tmp_path / "gaps/commits/0").unlink()
    removed(bootstrap, 1)
    monkeypatch.setattr(OutputStore, "write_marker", written)
    send(bootstrap, events(4))
    run = StreamRun(stream(given), spark, bootstrap, str(tmp_path), ProgressRow("gaps", "tests", "i"), book)
    try:
        wait_until(lambda: tended(run.reconcile, lambda: seen(bootstrap) == [1, 2, 3, 4]), 60)
        assert run.figures.restarts == (1 if fails else 0)
    finally:
        run.stop()
    assert [gap.records for gap in book.passed["gaps"]] == [1]


@pytest.mark.parametrize("planned", [True, False], ids=["its first batch is planned", "nothing is planned"])
def test_a_topic_recreated_before_the_first_batch_of_a_reset_is_read_from_its_first_record(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: bool
) -> None:
    has_read(CONTINUES, spark, bootstrap, tmp_path, 1, 2, 3)
    ids = topic_ids(admin(bootstrap), [EVENTS.name], bootstrap)
    Checkpoint(spark, str(tmp_path), "gaps").request_reset(Reset({EVENTS.name: {0: 3}}, ids=ids).text())
    send(bootstrap, events(4))
    book = InMemoryDataLossLog()

    def failing() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(BatchDelivery, "deliver", raise_no_answer)
            row = ProgressRow("gaps", "tests", "i")
            run = StreamRun(stream(CONTINUES), spark, bootstrap, str(tmp_path), row, book)
            try:
                wait_until(lambda: tended(run.reconcile, lambda: row.state == "failing"), 60)
            finally:
                run.stop()

    if planned:
        failing()
    made_again(bootstrap, *range(10, 25))
    if not planned:
        failing()
    with running(stream(CONTINUES), spark, bootstrap, tmp_path, book) as run:
        wait_until(lambda: tended(run.reconcile, lambda: seen(bootstrap)[-1] == 24), 60)
    assert seen(bootstrap) == [1, 2, 3, *range(10, 25)]
    # What is planned of a topic that was recreated before is no loss.
    assert [gap.kind for gap in book.passed.get("gaps", [])] == ["recreated"] * planned


def test_a_topic_recreated_between_a_cut_and_the_first_batch_is_read_from_its_first_record(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    has_read(CONTINUES, spark, bootstrap, tmp_path, 1, 2, 3)
    checkpoint = Checkpoint(spark, str(tmp_path), "gaps")
    ids = topic_ids(admin(bootstrap), [EVENTS.name], bootstrap)
    continues = (checkpoint.query_id, checkpoint.last_commit)
    for name in ("metadata", ".metadata.crc"):
        (tmp_path / "gaps" / name).unlink()
    (tmp_path / "gaps/metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    checkpoint.begin_with(Reset({EVENTS.name: {0: 3}}, ids=ids, rebuilt=True, continues=continues).text())
    made_again(bootstrap, *range(10, 25))
    with running(stream(CONTINUES), spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: seen(bootstrap)[-1] == 24), 60)
    assert seen(bootstrap) == [1, 2, 3, *range(10, 25)]


def test_a_topic_recreated_before_the_first_batch_of_a_new_stream_is_read_from_its_first_record(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(bootstrap, events(1, 2, 3))
    removed(bootstrap, 2)
    with monkeypatch.context() as patch:
        patch.setattr(BatchDelivery, "deliver", raise_no_answer)
        with running(stream(CONTINUES), spark, bootstrap, tmp_path) as run:
            wait_until(lambda: tended(run.reconcile, lambda: run.figures.state == "failing"), 60)
    made_again(bootstrap, *range(10, 25))
    with running(stream(CONTINUES), spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: 24 in seen(bootstrap)), 60)
    assert seen(bootstrap) == list(range(10, 25))


def test_a_recreated_topic_is_not_read_in_the_pieces_of_the_old_one(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    has_read(CONTINUES, spark, bootstrap, tmp_path, 1, 2)
    checkpoint = Checkpoint(spark, str(tmp_path), "gaps")
    too_large = (RecordPosition(EVENTS.name, 0, 1),)
    split = SplitState(bridge.max_heap_bytes(spark), (SplitLevel({EVENTS.name: {0: 9}}, 1),), without=too_large)
    checkpoint.save_batch_split(split.text())
    made_again(bootstrap, 10, 11, 12)
    with running(stream(CONTINUES), spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: seen(bootstrap) == [1, 2, 10, 11, 12]))
        assert checkpoint.batch_split() is None


def test_a_topic_recreated_before_the_first_batch_of_a_marker_is_read_from_its_first_record(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """The first batch began with corrupt offsets, and only their dead letters are written."""
    has_read(CONTINUES, spark, bootstrap, tmp_path, 1, 2)
    (tmp_path / "gaps/commits/0").unlink()
    checkpoint = Checkpoint(spark, str(tmp_path), "gaps")
    ids = topic_ids(admin(bootstrap), [EVENTS.name], bootstrap)
    writer = TopicWriter("gaps", "penstock.gaps", bootstrap)
    writer.write({}, CommitMarker(checkpoint.query_id, -1, {EVENTS.name: {0: 0}}, ids))
    writer.close()
    made_again(bootstrap, 10, 11, 12)
    run = StreamRun(stream(CONTINUES), spark, bootstrap, str(tmp_path), ProgressRow("gaps", "tests", "i"))
    try:
        wait_until(lambda: tended(run.reconcile, lambda: seen(bootstrap) == [1, 2, 10, 11, 12]), 60)
        assert run.figures.restarts == 0
    finally:
        run.stop()


def test_a_batch_whose_commit_had_no_answer_is_counted_all_the_same(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Input(EVENTS, schema="n BIGINT NOT NULL", event_time="timestamp_millis(n)")
    one = Stream("gaps", "tests", {"events": given}, lambda events: events, TopicOutput(OUT, value="n"), Stateless())
    create(bootstrap, *(topic for topic in one.topics() if topic.name not in (EVENTS.name, OUT.name, COMMITS.name)))
    commit, unanswered = TopicWriter.commit, [BrokerError("no answer")]

    def committed(self: TopicWriter, *batch: Any) -> int:
        count = commit(self, *batch)
        if unanswered:
            raise unanswered.pop()
        return count

    monkeypatch.setattr(TopicWriter, "commit", committed)
    send(bootstrap, [Record(EVENTS.name, None, text) for text in ('{"n":1}', "none", '{"n":2}')])
    run = StreamRun(one, spark, bootstrap, str(tmp_path), ProgressRow("gaps", "tests", "i"))
    try:
        wait_until(lambda: tended(run.reconcile, lambda: run.report().rows_out == 2))
        assert (run.figures.dead, run.figures.restarts) == (1, 1)
    finally:
        run.stop()
    assert seen(bootstrap) == [1, 2]


@pytest.mark.parametrize("count", [3, pytest.param(30, marks=pytest.mark.long)], ids=["fewer records", "more records"])
def test_a_recreated_topic_and_checkpoint_ignore_the_old_commit_marker(
    spark: SparkSession, bootstrap: str, tmp_path: Path, count: int
) -> None:
    """What the mark has planned is of the topic before: it is neither waited for nor taken for written."""
    given = CONTINUES
    has_read(given, spark, bootstrap, tmp_path, *range(1, 21))
    with running(stream(given), spark, bootstrap, tmp_path) as run:
        send(bootstrap, events(21))
        run.process_all_available()
    shutil.rmtree(tmp_path / "gaps")
    made_again(bootstrap, *range(100, 100 + count))
    with running(stream(given), spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: len(seen(bootstrap)) >= 21 + count))
    assert seen(bootstrap) == [*range(1, 22), *range(100, 100 + count)]
