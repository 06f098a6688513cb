"""Batches to a store that hangs, is away, or refuses documents: waits, dead letters, replays."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock import cli
from penstock.catalog import build
from penstock.cli import dead_letters, sinks
from penstock.control import Control, ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.engine.commit import async_writer
from penstock.engine.operations.sink_replay import ALREADY_REPLAYED, RECORD_GONE, WRITTEN, replay
from penstock.engine.query.stream_run import StreamRun
from penstock.errors import Refused, Wait
from penstock.kafka.admin import admin, topic_ids
from penstock.kafka.dead_letters import DeadLetter
from penstock.kafka.dead_letters import read_dead_letters as read_letters
from penstock.model.output import NO_COMMIT, CommitMarker, Output, WriterOwner
from penstock.model.topic import COMMITS
from penstock.settings import settings
from penstock.sinks.core.document import DocumentOutput
from penstock.sinks.core.writer import SinkCounters
from penstock.streams import F, Input, Stateless, Stream, Topic
from penstock.testing import Record, create, running, send
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

pytestmark = pytest.mark.integration

Command = Callable[..., str]
ORDERS = Topic("orders", partitions=1, config={"retention.ms": "-1"})


@dataclass
class MemoryStore:
    """A store in memory. before: what to do before a write; why: why a document is refused, by its text."""

    documents: dict[str, str] = field(default_factory=dict)
    opened: Callable[[], None] = lambda: None
    before: Callable[[], None] = lambda: None
    why: Callable[[dict[str, Any]], str | None] = lambda _: None
    newer: set[str] = field(default_factory=set)
    writes: int = 0


STORES: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)


@dataclass(frozen=True, kw_only=True)
class MemoryOutput(DocumentOutput):
    writer: ClassVar[str] = "tests.integration.sinks.core.test_batches:open_memory_store"

    @property
    def name(self) -> str:
        return f"memory:{self.sink}"

    def body(self) -> list[Column]:
        return [F.to_json("doc").alias("body")]


class MemoryWriter:
    def __init__(self, output: MemoryOutput) -> None:
        self._output, self._store = output, STORES[output.sink]
        self.counters = SinkCounters()

    def committed(self) -> CommitMarker:
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:  # noqa: ARG002
        self._store.before()
        self._store.writes += 1
        refused, count = {}, 0
        for number, row in enumerate(rows[self._output.name].to_pylist()):
            if why := self._store.why(row):
                refused[number] = why
                continue
            if row["id"].decode() in self._store.newer:
                self.counters = replace(self.counters, conflicts=self.counters.conflicts + 1)
                continue
            self._store.documents[row["id"].decode()] = row["body"]
            count += 1
        if refused:
            raise Refused("documents are refused", rows={self._output.name: refused}, written=count)
        return count

    def close(self) -> None: ...


def open_memory_store(owner: WriterOwner, outputs: Sequence[Output]) -> MemoryWriter:  # noqa: ARG001
    (output,) = outputs
    assert isinstance(output, MemoryOutput)
    STORES[output.sink].opened()
    return MemoryWriter(output)


def transform(orders: DataFrame) -> DataFrame:
    """As many documents as an order has lines."""
    unlucky = F.when(F.col("lines") == 13, F.raise_error(F.lit("unlucky"))).otherwise(F.col("lines"))
    lines = orders.select("record", F.posexplode(F.sequence(F.lit(1), unlucky.cast("int"))).alias("n", "line"))
    return lines.select(
        F.struct("line").alias("doc"), F.concat_ws("-", "record.offset", "line").alias("id"), F.lit(1).alias("version"),
        F.lit(False).alias("deleted"), "record.event_time", F.lit(None).cast("string").alias("refused"), "record",
    ).withColumnRenamed("event_time", "at")  # fmt: skip


def sink(name: str) -> Stream:
    given = Input(
        ORDERS,
        schema="lines INT NOT NULL",
        event_time="record.timestamp",
        max_ahead=None,
        record=True,
        tombstones="keep",
    )
    return Stream(
        name, "tests", {"orders": given}, transform, MemoryOutput(sink=name, connection="memory"), Stateless()
    )


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> Iterator[str]:
    create(fresh_broker.bootstrap, COMMITS, *sink("slow").topics(), *sink("quick").topics())
    STORES.clear()
    yield fresh_broker.bootstrap
    STORES.clear()


@pytest.fixture
def commands(
    bootstrap: str, spark: SparkSession, control: Control, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """Runs `penstock sinks` of the two sinks and gives what it prints."""

    @contextmanager
    def session(_: str) -> Iterator[SparkSession]:
        yield spark

    def run(*command: str, code: int = 0) -> str:
        done = CliRunner().invoke(cli.app, ["sinks", *command])
        assert done.exit_code == code, done.output
        return done.output

    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", bootstrap)
    settings.cache_clear()
    monkeypatch.setattr(dead_letters, "connect", lambda: control)
    monkeypatch.setattr(sinks, "partial_catalog", lambda: (build([sink("slow"), sink("quick")]), []))
    for name in ("session", "short_session"):
        monkeypatch.setattr(sinks, name, session)
    yield run
    settings.cache_clear()


def order(lines: int, key: str | None = None) -> Record:
    return Record("orders", key, json.dumps({"lines": lines}), timestamp=5000, headers=(("trace", "abc"),))


def letters(bootstrap: str, topic: str) -> list[DeadLetter]:
    return list(read_letters([topic], bootstrap, 1000))


def test_refused_documents_are_put_aside_as_their_record_once(
    spark: SparkSession, bootstrap: str, commands: Command, tmp_path: Path
) -> None:
    """The rest is written, and not given again; a record that is gone by then leaves a letter all the same."""
    memory, client = STORES["slow"], admin(bootstrap)
    memory.why = lambda row: "too long" if row["offset"] == 1 or row["id"] == b"0-1" else None

    def gone() -> None:
        for done in client.delete_records([TopicPartition("orders", 0, 1)]).values():
            done.result(20)

    memory.before = gone
    send(bootstrap, [order(2, "a"), order(2, "b"), order(1, "c")])
    assert "slow-dead-letter" in sink("slow").side_outputs
    with running(sink("slow"), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        send(bootstrap, [order(1, "d")])
        run.process_all_available()
        assert (run.figures.dead, run.figures.restarts) == (3, 0)
    assert memory.documents.keys() == {"0-2", "2-1", "3-1"}
    assert memory.writes == 2
    memory.before = lambda: None
    first, second = letters(bootstrap, "slow-dead-letter")
    assert (str(first.origin), first.key, first.value, first.truncated) == ("orders[0]@0", None, None, "key, value")
    assert (str(second.origin), second.key, second.value, second.truncated) == (
        "orders[0]@1",
        b"b",
        b'{"lines": 2}',
        "",
    )
    assert second.penstock_headers == {
        "topic": "orders", "partition": "0", "offset": "1", "stream": "slow", "output": "memory:slow",
        "reason": "too long (and 1 more of its rows)", "timestamp": "5000",
        "topic-id": topic_ids(client, ["orders"], bootstrap)["orders"],
    }  # fmt: skip
    _replayed(spark, bootstrap, commands, memory)


def _replayed(spark: SparkSession, bootstrap: str, commands: Command, memory: MemoryStore) -> None:
    """The letters sent again: what is refused may be tried again, what is written may not."""

    def again() -> dict[str, str]:
        found = replay(spark, sink("slow"), letters(bootstrap, "slow-dead-letter"), bootstrap)
        return {one.letter.location: one.said for one in found}

    assert again() == {"orders[0]@0": RECORD_GONE, "orders[0]@1": "refused again: too long"}
    # The topic has lost the record too: its copy says all there is to say.
    for done in admin(bootstrap).delete_records([TopicPartition("orders", 0, 4)]).values():
        done.result(20)
    memory.why = lambda _: None
    memory.newer = {"1-1"}
    # Of several the one that is chosen.
    [chosen] = json.loads(commands("replay", "slow", "--place", "orders[0]@1", "--json"))
    assert chosen == {"place": "orders[0]@1", "said": WRITTEN, "ended": True}
    assert memory.documents["1-2"] == '{"line":2}'
    assert "1-1" not in memory.documents
    assert again() == {"orders[0]@0": RECORD_GONE, "orders[0]@1": ALREADY_REPLAYED}
    # What the store has lost since is written again if somebody says so.
    memory.documents.clear()
    assert "--again writes it once more" in commands("replay", "slow", "--place", "orders[0]@1", "--json")
    assert not memory.documents
    assert '"said": "written"' in commands("replay", "slow", "--place", "orders[0]@1", "--again", "--json")
    assert memory.documents.keys() == {"1-2"}
    (letter,) = (one for one in letters(bootstrap, "slow-dead-letter") if one.value)
    assert letter.headers == (("trace", b"abc"),)


@pytest.mark.long
def test_a_store_that_hangs_stalls_nobody_else(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream says so, holds its offsets, can be stopped, and writes all of it once the store is back."""
    monkeypatch.setattr(async_writer, "ANSWER_TIMEOUT_S", 1.0)
    hangs = threading.Event()
    STORES["slow"].before = lambda: _until(hangs)
    slow, quick = (
        StreamRun(sink(name), spark, bootstrap, str(tmp_path), ProgressRow(name, "tests", "i"))
        for name in ("slow", "quick")
    )
    try:
        slow.reconcile()
        quick.reconcile()
        send(bootstrap, [order(1)])
        wait_until(lambda: slow.report().state == "waiting", what="the stream says that it waits")
        assert "memory:slow has not answered for a batch of 1 rows" in (slow.figures.error or "")
        assert slow.write_seconds() == 0, "no driver ends for it"
        store = slow.report().store or {}
        assert (store["destination"], store["dead_letter_topics"]) == ("memory:slow", ["slow-dead-letter"])
        assert (store["waits"] >= 1, store["answered_at"]) == (True, None)
        for n in (2, 3, 4):
            send(bootstrap, [order(1)])
            wait_until(partial(_holds, "quick", n), what="the other goes on")
        assert not STORES["slow"].documents
        slow.stop()
        assert not slow.running
        STORES["slow"].before = lambda: None
        slow.reconcile()
        wait_until(lambda: len(STORES["slow"].documents) == 4, what="all of it is written")
        slow.process_all_available()
        told = slow.report()
        assert told.state in ("idle", "running")
        assert (told.store or {})["answered_at"] is not None
    finally:
        hangs.set()
        slow.stop()
        quick.stop()


def test_a_store_that_is_away_when_its_stream_starts(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """It is told of without a record, and goes on by itself."""
    away: list[Exception] = [Wait("nobody listens", seconds=0.1)]

    def opened() -> None:
        if away:
            raise away[0]

    STORES["slow"].opened = opened
    with running(sink("slow"), spark, bootstrap, tmp_path) as run:
        wait_until(lambda: run.report().state == "waiting", what="the stream says that it waits")
        since = run.figures.error_at
        send(bootstrap, [order(1)])
        away.clear()
        wait_until(lambda: STORES["slow"].documents, what="it is written")
        run.process_all_available()
        assert run.report().state in ("idle", "running")
        assert (run.figures.restarts, run.figures.error_at) == (0, since)


@pytest.mark.long
def test_the_commands_of_a_sink(bootstrap: str, commands: Command) -> None:
    """A dry run says of the newest records which documents they make, and why others make none."""

    send(
        bootstrap, [order(9, "old"), order(2, "a"), Record("orders", "b", "{}"), order(13), Record("orders", "a", None)]
    )

    found = json.loads(commands("dry-run", "slow", "--records", "4", "--json"))
    assert [(one["id"], one["place"], one["document"]) for one in found["documents"]] == [
        ("1-1", "orders[0]@1", {"line": 1}), ("1-2", "orders[0]@1", {"line": 2}),
    ]  # fmt: skip
    assert [(one["place"], one["reason"].partition(": ")[0]) for one in found["dead"]] == [
        ("orders[0]@2", "field lines is missing or null"), ("orders[0]@3", "the transform fails"),
    ]  # fmt: skip
    assert found["records"] == 4
    assert not STORES["slow"].writes
    assert 'orders[0]@1  id 1-2  version 1  {"line":2}' in commands("dry-run", "slow")
    assert "Sink slow has no dead letters" in commands("replay", "slow", "--all")
    assert "either --all, or --place" in commands("replay", "slow", code=1)
    assert "sink slow has no dead letter of this place" in commands("replay", "slow", "--place", "orders[0]@7", code=1)
    assert "did you mean slow" in commands("dry-run", "slo", code=2)


def _holds(name: str, count: int) -> bool:
    return len(STORES[name].documents) == count


def _until(event: threading.Event) -> None:
    assert event.wait(120)
