"""A stream that is reset: what is read again, and that its output is right afterwards."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.catalog import PartitionedStream, build
from penstock.cli import app
from penstock.control import Actor, Control, connect
from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.layout import RESET_FILE, Checkpoint
from penstock.engine.jvm import hadoop_fs
from penstock.engine.operations.reset import Reset
from penstock.engine.operations.reset_plan import ResetPlan, ResetTarget, plan_reset
from penstock.engine.query import source
from penstock.engine.session import session_for
from penstock.errors import Blocked
from penstock.kafka.admin import admin
from penstock.kafka.replay import REPLAYS
from penstock.model.partition import Partitions, partition_start
from penstock.model.topic import COMMITS
from penstock.streams import EmitChanges, EmitFinal, F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.supervision.event_clock.partitions import PartitionWatch
from penstock.testing import Record, create, read, running, send
from tests.support.caches import clear_caches
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

MINUTE = 60_000
BEGIN = 1_700_000_400_000
EVENTS = Topic("events", partitions=1, config={"retention.ms": "-1"})
OUT = Topic("counts", partitions=1, config={"retention.ms": "-1"})
LENGTH = timedelta(minutes=1)


def transform(events: DataFrame) -> DataFrame:
    rows = events.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("count"))
    return rows.select(((F.unix_millis("w.start") - BEGIN) / MINUTE).cast("int").alias("minute"), "count")


EVENT = Input(EVENTS, schema="at BIGINT NOT NULL", event_time="timestamp_millis(at)", max_ahead=timedelta(0))
STREAM = Stream(
    name="counting",
    app="tests",
    inputs={"events": EVENT},
    transform=transform,
    output=TopicOutput(OUT, key="minute", value="count"),
    output_mode=EmitChanges(window=LENGTH, grace=LENGTH),
    max_records=3,
)
FINAL = replace(STREAM, output_mode=EmitFinal(window=LENGTH, grace=timedelta(0)), max_records=0)
BARE = replace(FINAL, output=TopicOutput(OUT, value=("minute", "count")))
EACH = replace(BARE, transform=lambda events: events.selectExpr("1 AS minute", "at AS count"), output_mode=Stateless())


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, EVENTS, Topic(EVENTS.dead_letters, partitions=1), OUT, COMMITS)
    return fresh_broker.bootstrap


def at(*minutes: float) -> list[Record]:
    times = [BEGIN + int(minute * MINUTE) for minute in minutes]
    return [Record(EVENTS.name, None, json.dumps({"at": time}), timestamp=time) for time in times]


def rows(bootstrap: str) -> list[tuple[int, int]]:
    """The minute and count of each row that was written."""
    found = [(r.key, json.loads(r.value or "")) for r in read(bootstrap, OUT.name)]
    return [(int(key), value) if key else (value["minute"], value["count"]) for key, value in found]


def ran(stream: Stream, spark: SparkSession, bootstrap: str, folder: Path) -> list[tuple[int, int]]:
    """What a stream writes until all is read."""
    before = len(rows(bootstrap))
    with running(stream, spark, bootstrap, folder) as run:
        run.process_all_available()
    return rows(bootstrap)[before:]


def plan(stream: Stream, spark: SparkSession, bootstrap: str, folder: Path, to: ResetTarget) -> ResetPlan:
    checkpoint = Checkpoint(spark, str(folder), stream.name)
    return plan_reset(stream, session_for(spark, stream), bootstrap, checkpoint, to)


def reset(stream: Stream, spark: SparkSession, bootstrap: str, folder: Path, to: ResetTarget) -> ResetPlan:
    made = plan(stream, spark, bootstrap, folder, to)
    assert made.objections == []
    Checkpoint(spark, str(folder), stream.name).request_reset(made.reset.text())
    return made


def minute(number: float) -> int:
    return BEGIN + int(number * MINUTE)


@pytest.mark.long
def test_updates_are_not_overwritten_by_smaller_counts_nor_dead_letters_sent_twice(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rubbish = Record(EVENTS.name, None, "rubbish", timestamp=minute(3))
    send(bootstrap, [*at(0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5), rubbish])
    assert dict(ran(STREAM, spark, bootstrap, tmp_path)) == {0: 2, 1: 2, 2: 2, 3: 2}
    made = reset(STREAM, spark, bootstrap, tmp_path, minute(0.7))
    assert (made.reread, made.skipped, made.reset.floor) == (7, 0, minute(1))
    send(bootstrap, at(3.9))
    known, begins = list[Any](), source.next_offsets_before_first_batch

    def told(of: Stream, upto: Any, where: str) -> Any:
        known.append(upto)
        return begins(of, upto, where)

    monkeypatch.setattr(source, "next_offsets_before_first_batch", told)
    assert sorted(ran(STREAM, spark, bootstrap, tmp_path)) == [(1, 2), (2, 2), (3, 3)]
    assert known == [{EVENTS.name: {0: 2}}], "it has not come to where its mark of before says"
    # The checkpoint goes on as any other.
    send(bootstrap, at(4))
    assert ran(STREAM, spark, bootstrap, tmp_path) == [(4, 1)]
    assert reset(STREAM, spark, bootstrap, tmp_path, {(EVENTS.name, 0): 3}).reset.floor == minute(2)
    # As if the driver died when the old checkpoint had stepped aside, and the new one was not in place.
    move, moves = hadoop_fs.HadoopFolder.move, [1, 0]

    def dying(self: hadoop_fs.HadoopFolder, to: str) -> None:
        if not moves.pop(0):
            raise RuntimeError("killed")
        move(self, to)

    monkeypatch.setattr(hadoop_fs.HadoopFolder, "move", dying)
    with pytest.raises(RuntimeError, match="killed"), running(STREAM, spark, bootstrap, tmp_path):
        pass
    monkeypatch.undo()
    assert sorted(ran(STREAM, spark, bootstrap, tmp_path)) == [(2, 2), (3, 3), (4, 1)]
    for done in admin(bootstrap).delete_records([TopicPartition(EVENTS.name, 0, 1)]).values():
        done.result(30)
    # The one that was removed may have been as late as is allowed.
    assert reset(STREAM, spark, bootstrap, tmp_path, "earliest").reset.floor == minute(2)
    assert sorted(ran(STREAM, spark, bootstrap, tmp_path)) == [(2, 2), (3, 3), (4, 1)]
    assert len(read(bootstrap, EVENTS.dead_letters)) == 1


def test_final_windows_with_a_key_are_emitted_again_and_open_ones_are_lost_to_a_reset_to_the_end(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """The test below has a stream without keys: its windows must not come again."""
    send(bootstrap, at(0, 0.5, 1, 1.5, 2))
    assert sorted(ran(FINAL, spark, bootstrap, tmp_path)) == [(0, 2), (1, 2)]
    assert reset(FINAL, spark, bootstrap, tmp_path, "earliest").reset.floor is None
    send(bootstrap, at(3))
    assert sorted(ran(FINAL, spark, bootstrap, tmp_path)) == [(0, 2), (1, 2), (2, 1)]
    made = reset(FINAL, spark, bootstrap, tmp_path, "latest")
    assert any("the windows that were open" in note for note in made.notes)
    assert ran(FINAL, spark, bootstrap, tmp_path) == []


def due(watch: PartitionWatch, control: Control) -> list[tuple[float, int]]:
    """Minute and revision of the partitions that Airflow is to get an event for."""
    watch.look()
    events = control.take_due_partitions("partitions/r", {FINAL.name: []})
    return [((partition_start(e.partition_key).timestamp() * 1000 - BEGIN) / MINUTE, e.revision) for e in events]


@pytest.mark.long
def test_windows_that_are_emitted_again_renew_their_partitions(
    spark: SparkSession, bootstrap: str, control: Control, tmp_path: Path
) -> None:
    partitions = PartitionedStream(FINAL.name, Partitions(LENGTH))
    with closing(PartitionWatch([partitions], control, bootstrap)) as watch:
        send(bootstrap, at(0, 0.5, 1))
        ran(FINAL, spark, bootstrap, tmp_path)
        watch.look()
        send(bootstrap, at(2, 3))
        ran(FINAL, spark, bootstrap, tmp_path)
        assert due(watch, control) == [(1, 1), (2, 1)]
        assert reset(FINAL, spark, bootstrap, tmp_path, minute(2)).reset.floor == minute(2)
        assert due(watch, control) == []
        send(bootstrap, at(4))
        assert sorted(ran(FINAL, spark, bootstrap, tmp_path)) == [(2, 1), (3, 1)]
        assert due(watch, control) == [(2, 2), (3, 1)]
        send(bootstrap, at(5))
        ran(FINAL, spark, bootstrap, tmp_path)
    with closing(PartitionWatch([partitions], control, bootstrap)) as watch:
        assert due(watch, control) == [(4, 1)]


def entries(folder: Path, log: str) -> list[Path]:
    """Of a log of a checkpoint, oldest first."""
    return sorted((folder / log).glob("[0-9]*"), key=lambda path: int(path.name))


@pytest.mark.long
def test_windows_without_keys_are_not_emitted_again_after_several_resets(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, at(0, 0.5, 1, 1.5, 2))
    assert sorted(ran(BARE, spark, bootstrap, tmp_path)) == [(0, 2), (1, 2)]
    # As if a batch had been planned that nothing was written of.
    last = entries(tmp_path / BARE.name, "offsets")[-1]
    version, metadata, offsets = last.read_text().split("\n")
    later = json.dumps({**json.loads(metadata), "batchWatermarkMs": minute(5)})
    (last.parent / str(int(last.name) + 1)).write_text("\n".join([version, later, offsets]))
    assert plan(BARE, spark, bootstrap, tmp_path, "earliest").reset.floor == minute(2)
    reset(BARE, spark, bootstrap, tmp_path, "latest")
    # The first batch of the new query, which has no watermark; then one that was asked for and never began.
    send(bootstrap, at(2.5))
    assert ran(BARE, spark, bootstrap, tmp_path) == []
    assert reset(BARE, spark, bootstrap, tmp_path, "earliest").reset.floor == minute(2)
    send(bootstrap, at(3))
    assert sorted(ran(BARE, spark, bootstrap, tmp_path)) == [(2, 2)]
    with running(BARE, spark, bootstrap, tmp_path):
        pass
    assert reset(BARE, spark, bootstrap, tmp_path, "earliest").reset.floor == minute(3)


def test_a_reset_objects_where_the_output_would_be_wrong(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, at(0, 0.5, 1))
    assert len(ran(EACH, spark, bootstrap, tmp_path)) == 3
    assert "counts would hold them twice" in plan(EACH, spark, bootstrap, tmp_path, minute(0.5)).objections[0]
    assert plan(EACH, spark, bootstrap, tmp_path, "latest").objections == []
    # As if the driver had died when the batch was written, and Spark had not noted that.
    for log in ("commits", "offsets"):
        last = entries(tmp_path / EACH.name, log)[-1]
        last.write_text("damaged") if log == "offsets" else last.unlink()
        (last.parent / f".{last.name}.crc").unlink()
        stays = plan(EACH, spark, bootstrap, tmp_path, {})
        assert [(part.next, part.start) for part in stays.parts] == [(3, 3)]
        assert (
            "3 records give their rows once more" in plan(EACH, spark, bootstrap, tmp_path, "earliest").objections[-1]
        )
    (tmp_path / EACH.name / "metadata").write_text("damaged")
    assert plan(EACH, spark, bootstrap, tmp_path, {}).parts[0].start == 3

    def sliding(events: DataFrame) -> DataFrame:
        each = events.groupBy(F.window("event_time", "2 minutes", "1 minute").alias("w"))
        return each.agg(F.count("*").alias("count")).select(F.lit(0).alias("minute"), "count")

    slides = replace(FINAL, transform=sliding)
    assert "computed of fewer records" in plan(slides, spark, bootstrap, tmp_path, minute(0.5)).objections[0]
    assert plan(slides, spark, bootstrap, tmp_path, "earliest").objections == []
    create(bootstrap, REPLAYS)
    send(bootstrap, [Record(REPLAYS.name, f"{EVENTS.name}[0]@{offset} {'0' * 64}", "{}") for offset in (0, 1, 5)])
    assert plan(EACH, spark, bootstrap, tmp_path, minute(0.5)).objections[0].startswith("1 of the records")
    assert plan(EACH, spark, bootstrap, tmp_path, "latest").objections == []


def test_a_reset_takes_the_place_of_a_damaged_one(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    send(bootstrap, at(0, 1))
    checkpoint = Checkpoint(spark, str(tmp_path), STREAM.name)
    checkpoint.begin_with(Reset({}).text())
    (tmp_path / STREAM.name / RESET_FILE).write_text("{")
    with pytest.raises(Blocked, match=r"a reset is damaged.*reset it again"):
        ran(STREAM, spark, bootstrap, tmp_path)
    checkpoint.request_reset(plan(STREAM, spark, bootstrap, tmp_path, "earliest").reset.text())
    assert sorted(ran(STREAM, spark, bootstrap, tmp_path)) == [(0, 1), (1, 1)]


@pytest.mark.long
def test_a_reset_with_new_code_writes_new_dead_letters_and_late_records_once(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    def numbered(number: object, when: float) -> Record:
        return Record(EVENTS.name, None, json.dumps({"at": minute(when), "n": number}), timestamp=minute(when))

    def dividing(events: DataFrame) -> DataFrame:
        rows = events.groupBy(F.window("event_time", "1 minute").alias("w"))
        each = rows.agg(F.sum(F.expr("coalesce(10 DIV n, 1)")).alias("count"))
        return each.select(((F.unix_millis("w.start") - BEGIN) / MINUTE).cast("int").alias("minute"), "count")

    def offsets(topic: str) -> list[int]:
        return [int(dict(record.headers)["penstock.offset"]) for record in read(bootstrap, topic)]

    rubbish = Record(EVENTS.name, None, "rubbish", timestamp=minute(2))
    send(bootstrap, [*at(0, 0.5), numbered(0, 0.6), *at(1, 2), rubbish, numbered("a", 2), numbered(0, 2)])
    assert dict(ran(STREAM, spark, bootstrap, tmp_path)) == {0: 3, 1: 1, 2: 3}
    given = replace(EVENT, schema="at BIGINT NOT NULL, n BIGINT", late_records="keep")
    changed = replace(STREAM, transform=dividing, inputs={"events": given})
    create(bootstrap, Topic(changed.late_topic, partitions=1))
    assert reset(changed, spark, bootstrap, tmp_path, {(EVENTS.name, 0): 1}).reset.floor == minute(1)
    before = len(rows(bootstrap))
    with running(changed, spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: run.report().dead >= 2), what="two are dead")
        run.process_all_available()
        send(bootstrap, at(0.7, 2.5))
        run.process_all_available()
        assert (run.figures.dead, run.figures.late) == (2, 1)
    assert dict(rows(bootstrap)[before:]) == {1: 1, 2: 2}
    # The one that divides by zero below the floor is not read, and the rubbish lies there already.
    assert offsets(EVENTS.dead_letters) == [5, 6, 7]
    assert offsets(changed.late_topic) == [8]


def test_the_reset_command_shows_its_plan_and_executes_it(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = build([STREAM])
    monkeypatch.setattr("penstock.catalog.partial_catalog", cache(lambda: (catalog, [])))
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{tmp_path}/control.db")
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("PENSTOCK_CHECKPOINTS", str(tmp_path))
    clear_caches()
    control = connect()
    try:
        control.migrate()
        control.sync(catalog)
        control.set_desired([STREAM.name], "off", Actor("ann", "cli"))
        send(bootstrap, at(0, 1))
        assert sorted(ran(STREAM, spark, bootstrap, tmp_path)) == [(0, 1), (1, 1)]
        command = ["streams", "reset", STREAM.name, "--to", f"{EVENTS.name}:0=1"]
        said = CliRunner().invoke(app, [*command, "--dry-run"])
        assert (said.exit_code, ran(STREAM, spark, bootstrap, tmp_path)) == (0, [])
        assert "1 records again" in said.output
        assert "windows that begin before 2023-11-14 22:21:00Z are left as they are" in said.output
        done = CliRunner().invoke(app, command)
        assert (done.exit_code, ran(STREAM, spark, bootstrap, tmp_path)) == (0, [(1, 1)])
    finally:
        control.engine.dispose()
        clear_caches()
