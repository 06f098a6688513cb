"""What moves the watermark: no clock that is fast, no beat but ours, and not the order in which a backlog is read."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.codec.heartbeat import HEARTBEAT_KEY, HeartbeatSigner
from penstock.devstack.servers.kafka import Broker
from penstock.kafka.commit_marker import read_commit_marker
from penstock.model.output_mode import OutputMode
from penstock.model.topic import DEAD_LETTERS
from penstock.streams import EmitChanges, EmitFinal, F, Input, Stream, Topic, TopicOutput
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing import Record, create, read, running, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
EVENTS = Topic("events", partitions=2, config={"retention.ms": "-1"})
INPUTS = {
    "a schema": Input(EVENTS, schema="at BIGINT NOT NULL", event_time="timestamp_millis(at)", max_ahead=10 * MINUTE),
    "raw": Input(EVENTS, max_ahead=10 * MINUTE),
}


def counts(events: DataFrame) -> DataFrame:
    return (
        events.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("n")).select("w.end", "n")
    )


def declared(given: Input, output_mode: OutputMode, max_records: int = 0) -> Stream:
    output = TopicOutput(Topic("counts", partitions=1), key="end", value="n")
    return Stream("timed", "tests", {"events": given}, counts, output, output_mode, max_records=max_records)


def events(*times: float, partition: int = 0) -> list[Record]:
    """A record for each time, in epoch seconds."""
    millis = [int(at * 1000) for at in times]
    return [Record(EVENTS.name, None, json.dumps({"at": at}), partition, timestamp=at) for at in millis]


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, *catalog.build([declared(INPUTS["raw"], EmitFinal(MINUTE, SECOND))]).topics.values())
    create(
        fresh_broker.bootstrap,
        *catalog.build([declared(INPUTS["a schema"], EmitFinal(MINUTE, SECOND))]).topics.values(),
    )
    return fresh_broker.bootstrap


@pytest.mark.parametrize("name", ["a schema", pytest.param("raw", marks=pytest.mark.long)])
def test_a_record_of_a_fast_clock_does_not_shorten_the_grace(
    spark: SparkSession, bootstrap: str, tmp_path: Path, name: str
) -> None:
    """A record that is almost ten minutes ahead; then ten whose window has just ended."""
    grace = 5 * MINUTE
    now = time.time()
    ended = now - now % 60 - 5
    with running(declared(INPUTS[name], EmitFinal(window=MINUTE, grace=grace)), spark, bootstrap, tmp_path) as run:
        send(bootstrap, events(now + 590))
        run.process_all_available()
        send(bootstrap, events(*[ended] * 10, partition=1))
        run.process_all_available()
        assert run.figures.late == 0
        assert 0 < (run.figures.watermark or 0) <= (time.time() - grace.total_seconds()) * 1000
        send(bootstrap, events(now - 900))
        run.process_all_available()
        assert run.figures.late == 1, "time has moved all the same"


def test_a_repeated_batch_moves_the_watermark_no_further(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Its output is there, and Spark has not noted that it ended: what it read must not move time further now."""
    stream = declared(INPUTS["a schema"], EmitFinal(window=MINUTE, grace=5 * MINUTE))
    now = time.time()
    send(bootstrap, events(now + 590))
    for _ in range(2):
        with running(stream, spark, bootstrap, tmp_path) as run:
            run.process_all_available()
            assert 0 < (run.figures.watermark or 0) <= (time.time() - 300) * 1000
        # Behind the batch with the record comes one without data.
        for path in (tmp_path / stream.name / "commits").glob("*"):
            path.unlink()
        for path in (tmp_path / stream.name / "offsets").glob("*1*"):
            path.unlink()


@pytest.mark.parametrize("name", ["a schema", pytest.param("raw", marks=pytest.mark.long)])
def test_forged_heartbeats_do_not_move_the_watermark_and_true_ones_only_to_the_clock(
    spark: SparkSession, bootstrap: str, tmp_path: Path, name: str
) -> None:
    """Forged ones are records like any other; a true one that lies ahead moves time to the clock."""
    grace = 5 * MINUTE
    stream = declared(INPUTS[name], EmitFinal(window=MINUTE, grace=grace))
    now = time.time()
    ended, ahead = now - now % 60 - 5, int((now + 590) * 1000)
    key = HEARTBEAT_KEY.decode()
    forged = [f'{{"heartbeat":{ahead}}}', HeartbeatSigner(b"theirs").value(EVENTS.name, 0, ahead).decode(), "{}"]
    beater = HeartbeatSender(catalog.build([stream]).heartbeat_topics(), None, bootstrap, clock=lambda: now + 590)
    with closing(beater), running(stream, spark, bootstrap, tmp_path) as run:
        send(bootstrap, [*(Record(EVENTS.name, key, value, timestamp=ahead) for value in forged), *events(now)])
        run.process_all_available()
        assert 0 < (run.figures.watermark or 0) <= (time.time() - grace.total_seconds()) * 1000
        beater.run_once()
        run.process_all_available()
        send(bootstrap, events(*[ended] * 10, partition=1))
        run.process_all_available()
        assert run.figures.late == 0
        assert run.figures.dead == (len(forged) if INPUTS[name].schema else 0)
        assert (run.figures.watermark or 0) <= (time.time() - grace.total_seconds()) * 1000
        # Those of the raw input are counted in a window of their own, which is open.
        assert run.figures.state_rows == (2 if INPUTS[name].schema else 3)


@pytest.mark.parametrize("name", ["a schema", pytest.param("raw", marks=pytest.mark.long)])
def test_heartbeats_close_the_windows_of_a_silent_topic(
    spark: SparkSession, bootstrap: str, tmp_path: Path, name: str
) -> None:
    stream, now = declared(INPUTS[name], EmitFinal(window=MINUTE, grace=SECOND)), time.time()
    beater = HeartbeatSender(catalog.build([stream]).heartbeat_topics(), None, bootstrap)
    with closing(beater), running(stream, spark, bootstrap, tmp_path) as run:
        send(bootstrap, events(now - 120))
        run.process_all_available()
        assert not read(bootstrap, "counts")
        beater.run_once()
        run.process_all_available()
        assert [r.value for r in read(bootstrap, "counts")] == ["1"]
        assert (run.figures.rows_in, run.figures.state_rows) == (1, 0)


@pytest.mark.long
def test_windows_that_the_commit_marker_calls_closed_are_written_whole(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Partition events depend on it: all windows that end at the marker's watermark or before are in the topic, with
    all of their records, and no other window is."""
    stream = declared(INPUTS["a schema"], EmitFinal(window=MINUTE, grace=SECOND))
    base, mark = time.time() // 60 * 60 - 3600, 0
    windows: Counter[int] = Counter()
    with running(stream, spark, bootstrap, tmp_path) as run:
        for minutes in (0.5, 1.2, 1.0, 2.5, 0.7, 1.9, 4.0, 4.02, 9.0):
            end = int(base + (minutes // 1 + 1) * 60)
            if end * 1000 > mark:
                windows[end] += 1
            send(bootstrap, events(base + minutes * 60, partition=len(windows) % 2))
            run.process_all_available()
            mark = read_commit_marker(stream.name, bootstrap).watermark_ms
            rows = {r.key: int(r.value or 0) for r in read(bootstrap, "counts")}
            closed = {end: n for end, n in windows.items() if end * 1000 <= mark}
            assert rows == {f"{datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M:%S}": n for end, n in closed.items()}
        assert mark == (base + 540 - 1) * 1000
        assert len(closed) == 4


def test_a_backlog_read_in_pieces_is_not_late(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Six hours in one partition, two minutes in the other."""
    now = time.time()
    old = [now - 6 * 3600 + n * 33 for n in range(650)]
    send(bootstrap, [*events(*old), *events(*(now - 120 + n / 6 for n in range(650)), partition=1)])
    stream = declared(INPUTS["a schema"], EmitChanges(window=MINUTE, grace=HOUR), max_records=300)
    with running(stream, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert (run.figures.batch_id or 0) >= 3, "it was read in pieces"
        assert (run.figures.rows_in, run.figures.late) == (1300, 0)
        for at in (now, old[0]):
            send(bootstrap, events(at))
            run.process_all_available()
        assert run.figures.late == 1, "what comes behind them is late as ever"
    last = {r.key: int(r.value or "") for r in read(bootstrap, "counts")}
    assert sum(last.values()) == 1301


EARLY = Topic("early-windows", partitions=2, config={"retention.ms": "-1"})
ROW = "at BIGINT NOT NULL, key STRING NOT NULL, n BIGINT NOT NULL"
EARLIER = Stream(
    "earlier", "tests", {"events": INPUTS["a schema"]}, lambda events: windows(events, "1 minute"),
    TopicOutput(EARLY, key="key", value=("at", "key", "n")), EmitChanges(window=MINUTE, grace=4 * MINUTE),
    max_records=1,
)  # fmt: skip
LATER = Stream(
    "later", "tests", {"rows": Input(EARLY, schema=ROW, event_time="timestamp_millis(at)")},
    lambda rows: windows(rows, "2 minutes"), TopicOutput(Topic("counts", partitions=1), key="key", value="n"),
    EmitChanges(window=2 * MINUTE, grace=6 * MINUTE),
)  # fmt: skip


def windows(rows: DataFrame, length: str) -> DataFrame:
    found = rows.groupBy(F.window("event_time", length).alias("w")).agg(F.count("*").alias("n"))
    return found.select(F.unix_millis("w.start").alias("at"), F.unix_millis("w.start").cast("string").alias("key"), "n")


@pytest.mark.long
def test_rows_of_a_backlog_read_in_pieces_are_in_time_for_the_next_stream(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Once the first reads to the end, time goes on for both; what is late then is kept."""
    create(bootstrap, *catalog.build([EARLIER, LATER]).topics.values())
    since = time.time() // 120 * 120 - 1800
    with running(LATER, spark, bootstrap, tmp_path) as later:
        with running(EARLIER, spark, bootstrap, tmp_path) as earlier:
            for at in (0, 601, -600, 603):
                send(bootstrap, events(since + at))
                earlier.process_all_available()
                later.process_all_available()
            assert (earlier.figures.late, later.figures.late) == (0, 0)
        found = {int(r.key or 0) / 1000 - since for r in read(bootstrap, "counts")}
        assert found == {0, 600, -600}
        with running(replace(EARLIER, max_records=0), spark, bootstrap, tmp_path) as earlier:
            for at in range(1200, 1206):
                send(bootstrap, events(since + at))
                earlier.process_all_available()
                later.process_all_available()
        assert (since + 600) * 1000 <= (later.figures.watermark or 0) <= (since + 605) * 1000, "1200 s - 4 min - 6 min"
        old = {"at": int(since * 1000), "key": "old", "n": 1}
        send(bootstrap, [Record(EARLY.name, "old", json.dumps(old))])
        later.process_all_available()
        assert later.figures.late == 1
    [letter] = read(bootstrap, DEAD_LETTERS.name)
    said = dict(letter.headers)
    assert (json.loads(letter.value or ""), said["penstock.topic"], said["penstock.stream"]) == (
        old,
        EARLY.name,
        "later",
    )
    assert 480_000 <= int(said["penstock.late-ms"]) <= 485_000
    assert said["penstock.reason"] == f"it came {said['penstock.late-ms']} ms after its windows had closed"
