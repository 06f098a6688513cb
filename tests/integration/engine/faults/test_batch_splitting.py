"""Batches that memory does not hold: they are cut until it does, and what is too large by itself is put aside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.faults.batch_splitting import HEAP_DIVISOR
from penstock.engine.jvm import bridge
from penstock.engine.query.stream_run import StreamRun
from penstock.kafka.topic_writer import TopicWriter
from penstock.model.topic import COMMITS
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = pytest.mark.integration

FOR_EVER = {"retention.ms": "-1"}
TEXTS = Topic("texts", partitions=2, config=FOR_EVER)
OUT = Topic("long", partitions=1, config=FOR_EVER)
DEAD = Topic(TEXTS.dead_letters, partitions=1)
STREAM = Stream(
    name="reading",
    app="tests",
    inputs={
        "texts": Input(TEXTS, schema="text STRING NOT NULL, at BIGINT NOT NULL", event_time="timestamp_millis(at)")
    },
    transform=lambda texts: texts.select("text"),
    output=TopicOutput(OUT, value="text"),
    output_mode=Stateless(),
)
BYTES = 1_000


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, TEXTS, DEAD, OUT, COMMITS)
    return fresh_broker.bootstrap


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each batch that was given to the output: memory holds 1000 of them, and nothing that is a bomb."""
    given: list[int] = []
    write = TopicWriter.write

    def short(self: TopicWriter, rows: Mapping[str, pa.Table], mark: object) -> int:
        texts = [text for text in rows[OUT.name]["value"].to_pylist() if text]
        given.append(sum(map(len, texts)))
        if given[-1] > BYTES or "bomb" in str(texts):
            raise MemoryError
        return write(self, rows, mark)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicWriter, "write", short)
    monkeypatch.setattr("penstock.engine.commit.committer.is_out_of_memory", lambda e: isinstance(e, MemoryError))
    monkeypatch.setattr(bridge, "max_heap_bytes", lambda _: BYTES * HEAP_DIVISOR)
    return given


def text(said: str, partition: int) -> Record:
    return Record(TEXTS.name, None, json.dumps({"text": said, "at": 0}), partition)


def until_written(run: StreamRun, bootstrap: str, count: int) -> list[str]:
    """The texts that are written once they are so many, sorted."""
    wait_until(lambda: tended(run.reconcile, lambda: run.report().rows_out >= count), 240)
    return sorted(record.value or "" for record in read(bootstrap, OUT.name))


@pytest.mark.long
def test_a_batch_that_memory_does_not_hold_is_cut_by_its_bytes(
    spark: SparkSession, bootstrap: str, tmp_path: Path, batches: list[int]
) -> None:
    said = sorted(f"{n:03d}" + "x" * 197 for n in range(8))
    send(bootstrap, [text(one, 0 if n < 6 else 1) for n, one in enumerate(said)])
    kept = tmp_path / STREAM.name / "penstock-split.json"
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        assert until_written(run, bootstrap, 8) == said
        wait_until(lambda: tended(run.reconcile, lambda: not kept.exists()))
        # It is through: what comes then is a batch again, however large.
        wait_until(lambda: tended(run.reconcile, lambda: run.active))
        first = len(batches)
        send(bootstrap, [text("end", p % 2) for p in range(20)])
        assert until_written(run, bootstrap, 28) == sorted([*said, *["end"] * 20])
    assert batches[0] == 1600
    assert all(0 < size <= BYTES for size in batches[1:first])
    assert len(batches) <= first + 2
    assert read(bootstrap, DEAD.name) == []


def test_a_record_too_large_by_itself_is_put_aside(
    spark: SparkSession, bootstrap: str, tmp_path: Path, batches: list[int]
) -> None:
    send(bootstrap, [text(str(n), n % 2) for n in range(3)])
    send(bootstrap, [text("bomb", 0), text("3", 0)])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        assert until_written(run, bootstrap, 4) == [str(n) for n in range(4)]
        assert run.figures.dead == 1
    (letter,) = read(bootstrap, DEAD.name)
    assert json.loads(letter.value or "")["text"] == "bomb"
    assert "memory (0 MiB) does not hold" in dict(letter.headers)["penstock.reason"]
    assert batches


def test_a_batch_too_large_without_a_record_to_blame_blocks(
    spark: SparkSession, bootstrap: str, tmp_path: Path, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicWriter, "write", lambda *_: (_ for _ in ()).throw(MemoryError()))
    send(bootstrap, [text("a", 0)])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: run.figures.state == "blocked"), 240)
        assert "raise PENSTOCK_DRIVER_MEMORY and release app tests" in (run.figures.error or "")
    assert (read(bootstrap, OUT.name), read(bootstrap, DEAD.name), batches) == ([], [], [])
