"""A stream whose new version builds its state beside it and takes its place, on a real broker."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.operations.reset import Reset
from penstock.engine.replacement.replacement import Replacement, ReplacementOptions
from penstock.engine.session import session_for
from penstock.errors import PenstockError
from penstock.model.topic import COMMITS
from penstock.streams import EmitChanges, EmitFinal, F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

MINUTE = 60_000
BEGIN = 1_700_000_400_000
EVENTS = Topic("events", partitions=2, config={"retention.ms": "-1"})
OUT = Topic("sums", partitions=1, config={"retention.ms": "-1"})
LENGTH = timedelta(minutes=1)
EVENT = Input(EVENTS, schema="at BIGINT NOT NULL, n INT", event_time="timestamp_millis(at)", max_ahead=timedelta(0))


def counts(events: DataFrame) -> DataFrame:
    rows = events.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("count"))
    return rows.select(((F.unix_millis("w.start") - BEGIN) / MINUTE).cast("int").alias("minute"), "count")


def counts_and_sums(events: DataFrame) -> DataFrame:
    rows = events.groupBy(F.window("event_time", "1 minute").alias("w")).agg(
        F.count("*").alias("count"), F.sum("n").alias("sum")
    )
    return rows.select(((F.unix_millis("w.start") - BEGIN) / MINUTE).cast("int").alias("minute"), "count", "sum")


FINAL = Stream(
    name="counting",
    app="tests",
    inputs={"events": EVENT},
    transform=counts,
    output=TopicOutput(OUT, key="minute", value=("minute", "count")),
    output_mode=EmitFinal(window=LENGTH, grace=timedelta(0)),
)
WIDER = replace(
    FINAL, transform=counts_and_sums, output=TopicOutput(OUT, key="minute", value=("minute", "count", "sum"))
)
CHANGES = replace(FINAL, output_mode=EmitChanges(window=LENGTH, grace=LENGTH))
WIDER_CHANGES = replace(WIDER, output_mode=CHANGES.output_mode)


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, EVENTS, Topic(EVENTS.dead_letters, partitions=1), OUT, COMMITS)
    return fresh_broker.bootstrap


def at(*minutes: float) -> list[Record]:
    times = [BEGIN + int(minute * MINUTE) for minute in minutes]
    return [Record(EVENTS.name, None, json.dumps({"at": time, "n": 2}), timestamp=time) for time in times]


def rows(bootstrap: str) -> list[dict[str, int]]:
    """The rows in the order in which they were written."""
    return [json.loads(r.value or "") for r in read(bootstrap, OUT.name)]


def ran(stream: Stream, spark: SparkSession, bootstrap: str, folder: Path, key: str = "minute") -> list[dict[str, int]]:
    """What a stream writes until all is read."""
    before = len(rows(bootstrap))
    with running(stream, spark, bootstrap, folder) as run:
        run.process_all_available()
    # A batch writes its windows in any order.
    return sorted(rows(bootstrap)[before:], key=lambda row: row[key])


def replacement(
    stream: Stream, spark: SparkSession, bootstrap: str, folder: Path, options: ReplacementOptions | None = None
) -> Replacement:
    session = session_for(spark, stream)
    return Replacement(stream, session, bootstrap, str(folder), uuid.uuid4().hex, options or ReplacementOptions())


def follow(made: Replacement) -> None:
    for _ in range(20):
        if made.advance() and made.is_ready:
            return
    raise AssertionError("it does not come to where the running version is")


def test_windows_that_were_open_are_emitted_by_the_new_version_once(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, at(*(m / 4 for m in range(22))))
    assert [row["minute"] for row in ran(FINAL, spark, bootstrap, tmp_path)] == [0, 1, 2, 3, 4]
    with closing(replacement(WIDER, spark, bootstrap, tmp_path)) as made:
        made.open()
        follow(made)
        compared = made.progress.comparison
        assert compared
        assert (compared.only_new, compared.only_running, compared.equal) == (0, 0, 0)
        assert compared.different >= 1
        assert compared.examples[0]["new"] == '{"minute":4,"count":4,"sum":8}'
        # The running version goes on meanwhile.
        send(bootstrap, at(5.5, 5.75, 6, 6.25))
        assert [row["minute"] for row in ran(FINAL, spark, bootstrap, tmp_path)] == [5]
        made.cut()
    send(bootstrap, at(6.5, 7, 7.5, 8))
    assert ran(WIDER, spark, bootstrap, tmp_path) == [
        {"minute": 6, "count": 3, "sum": 6}, {"minute": 7, "count": 2, "sum": 4},
    ]  # fmt: skip
    send(bootstrap, at(9, 10))
    assert [row["minute"] for row in ran(WIDER, spark, bootstrap, tmp_path)] == [8, 9]
    # Back to the version before, which goes on with the state that it had at the cut.
    with closing(replacement(FINAL, spark, bootstrap, tmp_path, ReplacementOptions(back=True))) as made:
        made.open()
        assert made.progress.lag == 6
        follow(made)
        made.cut()
    send(bootstrap, at(10.5, 11))
    assert ran(FINAL, spark, bootstrap, tmp_path) == [{"minute": 10, "count": 2}]


def test_it_comes_to_where_a_running_version_is_whose_batches_are_shorter_than_its_steps(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, at(*(m / 4 for m in range(22))))
    with running(FINAL, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        with closing(replacement(WIDER, spark, bootstrap, tmp_path)) as made:
            made.open()
            for minute in range(6, 12):
                if made.advance() and made.is_ready:
                    break
                # The running version writes two batches during a step.
                for later in (0, 0.5):
                    send(bootstrap, at(minute + later))
                    run.process_all_available()
            assert made.is_ready
            assert made.progress.comparison
            assert made.progress.comparison.only_running == 0


def test_windows_without_key_are_compared_from_where_the_running_version_is(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    unkeyed = replace(FINAL, output=TopicOutput(OUT, value=("minute", "count")))
    send(bootstrap, at(*(m / 4 for m in range(22))))
    ran(unkeyed, spark, bootstrap, tmp_path)
    strict = ReplacementOptions(must_equal=True)
    with closing(replacement(unkeyed, spark, bootstrap, tmp_path, strict)) as made:
        made.open()
        follow(made)
        send(bootstrap, at(5.5, 6, 6.5))
        ran(unkeyed, spark, bootstrap, tmp_path)
        follow(made)
        made.cut()
        compared = made.progress.comparison
    assert compared
    assert compared.equal == compared.compared == 1


def test_a_step_is_interrupted_and_runs_again(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Who cancels a replacement does not wait for a step of minutes."""
    slow = tmp_path / "slow"
    slow.touch()

    def wait() -> int:
        if slow.exists():
            time.sleep(100)
        return 0

    def transform(events: DataFrame) -> DataFrame:
        return counts_and_sums(events.withColumn("n", F.udf(lambda n: wait() + n, "int")("n")))

    send(bootstrap, at(0, 0.5, 1, 2, 3))
    ran(FINAL, spark, bootstrap, tmp_path)
    with closing(replacement(replace(WIDER, transform=transform), spark, bootstrap, tmp_path)) as made:
        made.open()
        thread = threading.Thread(target=lambda: suppressed(made.advance))
        thread.start()
        wait_until(lambda: bool(spark.sparkContext.statusTracker().getActiveStageIds()), 60, what="the step computes")
        made.new.interrupt()
        thread.join(30)
        assert not thread.is_alive()
        assert made.new.last_batch == -1
        slow.unlink()
        follow(made)


def suppressed(work: Callable[[], object]) -> None:
    with suppress(PenstockError):
        work()


def test_rows_that_must_be_equal_stop_it(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, at(*(m / 4 for m in range(22))))
    ran(FINAL, spark, bootstrap, tmp_path)
    strict = ReplacementOptions(must_equal=True)
    with closing(replacement(WIDER, spark, bootstrap, tmp_path, strict)) as made:
        made.open()
        with pytest.raises(
            PenstockError, match=r"not those of the running version.*; got: 1 different, 0 only in the new"
        ):
            follow(made)
    assert made.progress.comparison
    assert made.progress.comparison.examples[0]["running"] == '{"minute":4,"count":4}'
    with closing(replacement(WIDER, spark, bootstrap, tmp_path, replace(strict, ignored=("sum",)))) as made:
        made.open()
        follow(made)
        assert made.progress.comparison
        assert made.progress.comparison.equal == 1
    # The running version goes on as it was.
    send(bootstrap, at(5.75, 6))
    assert ran(FINAL, spark, bootstrap, tmp_path) == [{"minute": 5, "count": 3}]


def test_there_is_no_way_back_to_what_was_not_kept(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, at(0, 1, 2))
    ran(FINAL, spark, bootstrap, tmp_path)
    with (
        closing(replacement(FINAL, spark, bootstrap, tmp_path, ReplacementOptions(back=True))) as made,
        pytest.raises(PenstockError, match="the version of stream counting before the running one is not kept"),
    ):
        made.open()


def test_the_way_back_begins_with_a_batch_that_was_written_and_not_committed(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, at(0, 0.5))
    ran(FINAL, spark, bootstrap, tmp_path)
    send(bootstrap, at(1, 1.25, 1.5, 2))
    ran(FINAL, spark, bootstrap, tmp_path)
    # Its driver ended before Spark had committed the batch, but its rows and its marker are written.
    checkpoint = Checkpoint(spark, str(tmp_path), FINAL.name)
    last = checkpoint.last_commit
    (tmp_path / FINAL.name / "commits" / str(last)).unlink()
    (tmp_path / FINAL.name / "commits" / f".{last}.crc").unlink(missing_ok=True)
    with closing(replacement(WIDER, spark, bootstrap, tmp_path)) as made:
        made.open()
        follow(made)
        made.cut()
    send(bootstrap, at(2.25))
    ran(WIDER, spark, bootstrap, tmp_path)
    with closing(replacement(FINAL, spark, bootstrap, tmp_path, ReplacementOptions(back=True))) as made:
        made.open()
        follow(made)
        made.cut()
    send(bootstrap, at(2.5, 3, 4))
    assert ran(FINAL, spark, bootstrap, tmp_path) == [{"minute": 2, "count": 3}, {"minute": 3, "count": 1}]


def test_values_that_differ_are_written_with_the_first_batch(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, at(*(m / 4 for m in range(22))))
    ran(CHANGES, spark, bootstrap, tmp_path)
    with closing(replacement(WIDER_CHANGES, spark, bootstrap, tmp_path)) as made:
        made.open()
        follow(made)
        made.cut()
    # No record came, and the rows are written.
    written = ran(WIDER_CHANGES, spark, bootstrap, tmp_path)
    assert {"minute": 5, "count": 2, "sum": 4} in written
    assert len(written) == len({row["minute"] for row in written})
    send(bootstrap, at(5.5, 6))
    assert ran(WIDER_CHANGES, spark, bootstrap, tmp_path) == [
        {"minute": 5, "count": 3, "sum": 6}, {"minute": 6, "count": 1, "sum": 2},
    ]  # fmt: skip


def test_a_topic_that_the_running_version_has_not_seen_is_left_to_it(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """A stream of a pattern: the new version must not read ahead of the running one, or rows would be in neither."""
    copies = Stream(
        "copying", "tests", {"events": Input(pattern="events(-.*)?")},
        lambda events: events.select(F.col("value").cast("string").alias("value")),
        TopicOutput(OUT, value="value"), Stateless(),
    )  # fmt: skip
    other = replace(EVENTS, name="events-of-others")
    send(bootstrap, at(0))
    ran(copies, spark, bootstrap, tmp_path, key="at")
    with closing(replacement(copies, spark, bootstrap, tmp_path)) as made:
        made.open()
        follow(made)
        create(bootstrap, other)
        send(bootstrap, [replace(record, topic=other.name) for record in at(1, 2)])
        made.advance()
        assert other.name not in made.new.offsets
        made.cut()
    written = ran(copies, spark, bootstrap, tmp_path, key="at")
    assert [row["at"] for row in written] == [BEGIN + MINUTE, BEGIN + 2 * MINUTE]


def test_a_reset_is_not_overridden(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, at(*(m / 4 for m in range(22))))
    ran(FINAL, spark, bootstrap, tmp_path)
    reset = Reset({EVENTS.name: {0: 0, 1: 0}}, id="another")
    with closing(replacement(WIDER, spark, bootstrap, tmp_path)) as made:
        made.open()
        follow(made)
        checkpoint = Checkpoint(spark, str(tmp_path), FINAL.name)
        checkpoint.request_reset(reset.text())
        with pytest.raises(PenstockError, match="was reset and has written nothing since"):
            made.check_can_cut()
        with pytest.raises(PenstockError, match="was reset and has written nothing since"):
            made.cut()
        assert Reset.read(checkpoint.pending_reset() or "").id == "another"
    checkpoint.activate_pending_reset()
    with (
        closing(replacement(WIDER, spark, bootstrap, tmp_path)) as made,
        pytest.raises(PenstockError, match="was reset and has written nothing since"),
    ):
        made.open()


def test_going_back_writes_again_what_the_cut_replaced(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, at(*(m / 4 for m in range(22))))
    before = {row["minute"]: row for row in ran(CHANGES, spark, bootstrap, tmp_path)}
    with closing(replacement(WIDER_CHANGES, spark, bootstrap, tmp_path)) as made:
        made.open()
        follow(made)
        made.cut()
    replaced = {row["minute"] for row in ran(WIDER_CHANGES, spark, bootstrap, tmp_path)}
    assert replaced
    # One of the windows gets another record; the other ones get none.
    send(bootstrap, at(5.5))
    ran(WIDER_CHANGES, spark, bootstrap, tmp_path)
    with closing(replacement(CHANGES, spark, bootstrap, tmp_path, ReplacementOptions(back=True))) as made:
        made.open()
        follow(made)
        made.cut()
    written = ran(CHANGES, spark, bootstrap, tmp_path)
    assert written == [before[minute] for minute in sorted(replaced - {5})] + [{"minute": 5, "count": 3}]


@pytest.mark.long
def test_going_back_writes_again_windows_that_the_cut_was_told_to_write(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, at(*(m / 4 for m in range(22))))
    before = {row["minute"]: row for row in ran(FINAL, spark, bootstrap, tmp_path)}
    with closing(replacement(WIDER, spark, bootstrap, tmp_path, ReplacementOptions(write="all"))) as made:
        made.open()
        follow(made)
        made.cut()
    replaced = [row["minute"] for row in ran(WIDER, spark, bootstrap, tmp_path)]
    assert replaced
    send(bootstrap, at(5.5, 6))
    assert ran(WIDER, spark, bootstrap, tmp_path) == [{"minute": 5, "count": 3, "sum": 6}]
    with closing(replacement(FINAL, spark, bootstrap, tmp_path, ReplacementOptions(back=True))) as made:
        made.open()
        follow(made)
        made.cut()
    # The window that was closed since is of the version that was undone.
    assert ran(FINAL, spark, bootstrap, tmp_path) == [before[minute] for minute in replaced]
    send(bootstrap, at(7))
    assert ran(FINAL, spark, bootstrap, tmp_path) == [{"minute": 6, "count": 1}]
