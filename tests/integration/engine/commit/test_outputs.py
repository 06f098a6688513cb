"""Several outputs with tags: two topics in one transaction, a kind of store the engine has never seen, and a crash
between two stores."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.control import ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.engine.query.stream_run import StreamRun
from penstock.errors import SinkError, Wait
from penstock.kafka.topic_writer import TopicWriter
from penstock.model.output import NO_COMMIT, CommitMarker, Delivery, Output, WriterOwner
from penstock.model.topic import COMMITS
from penstock.settings import PROJECT
from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.wait import tended, wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

pytestmark = pytest.mark.integration

EVENTS = Topic("tagged", partitions=1, config={"retention.ms": "-1"})
EVEN, ODD = (Topic(name, partitions=1) for name in ("even", "odd"))


@dataclass
class Shelf:
    """A store in memory. mark: kept if the store keeps one; before: what to do before a write."""

    rows: dict[int, int] = field(default_factory=dict)
    mark: CommitMarker = NO_COMMIT
    writes: list[tuple[int, list[int]]] = field(default_factory=list)
    before: Callable[[], None] = lambda: None


SHELVES: defaultdict[str, Shelf] = defaultdict(Shelf)


@dataclass(frozen=True)
class Shelved(Output):
    """Numbers by id, on a shelf without marks."""

    shelf: str

    writer: ClassVar[str] = "tests.integration.engine.commit.test_outputs:open_shelf"
    delivery: ClassVar[Delivery] = "upsert"

    @property
    def name(self) -> str:
        return f"shelf:{self.shelf}"

    @property
    def keyed(self) -> bool:
        return True

    @property
    def store(self) -> Hashable:
        return self.name

    def columns(self) -> list[Column]:
        return [F.col("n").alias("id"), (F.col("n") * 10).alias("tenfold")]


@dataclass(frozen=True)
class Marked(Shelved):
    """The same on a shelf that keeps its mark with the rows."""

    delivery: ClassVar[Delivery] = "exactly once"


def open_shelf(owner: WriterOwner, outputs: Sequence[Output]) -> ShelfWriter:
    (output,) = outputs
    assert isinstance(output, Shelved)
    assert owner.group == f"penstock.{owner.name}"
    return ShelfWriter(output)


class ShelfWriter:
    def __init__(self, output: Shelved) -> None:
        self._output, self._shelf = output, SHELVES[output.shelf]

    def committed(self) -> CommitMarker:
        return self._shelf.mark

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:
        assert rows.keys() == {self._output.name}
        self._shelf.before()
        own = rows[self._output.name].to_pylist()
        self._shelf.rows |= {row["id"]: row["tenfold"] for row in own}
        self._shelf.writes.append((mark.batch, sorted(row["id"] for row in own)))
        if self._output.delivery == "exactly once":
            self._shelf.mark = mark
        return len(own)

    def close(self) -> None: ...


def transform(events: DataFrame) -> DataFrame:
    """A column that is never NULL, for outputs that a row is not for."""
    return events.select(
        F.coalesce("n", F.lit(-1)).alias("n"), F.when(F.col("n") % 2 == 0, "even").otherwise("odd").alias("output")
    )


def stream(transform: Callable[[DataFrame], DataFrame] = transform, **outputs: Output) -> Stream:
    given = Input(EVENTS, schema="n BIGINT NOT NULL, at TIMESTAMP", event_time="at", dead_letters="count")
    return Stream("tagging", "tests", {"events": given}, transform, outputs, Stateless())


TOPICS: dict[str, Output] = {"even": TopicOutput(EVEN, key="n", value="n"), "odd": TopicOutput(ODD, value=("n",))}


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> Iterator[str]:
    create(fresh_broker.bootstrap, EVENTS, EVEN, ODD, COMMITS)
    SHELVES.clear()
    yield fresh_broker.bootstrap
    SHELVES.clear()


def events(*numbers: int) -> list[Record]:
    return [Record("tagged", None, json.dumps({"n": n, "at": "2023-11-14T22:20:00Z"})) for n in numbers]


def pairs(bootstrap: str, topic: str) -> list[tuple[str | None, str | None]]:
    return [(r.key, r.value) for r in read(bootstrap, topic)]


def once(what: Callable[[], Exception]) -> Callable[[], None]:
    left = [1]

    def raises() -> None:
        if left:
            left.pop()
            raise what()

    return raises


def test_rows_go_to_the_output_of_their_tag_in_one_transaction(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[CommitMarker] = []
    write = TopicWriter.write

    def noted(self: TopicWriter, rows: Any, mark: CommitMarker) -> int:
        marks.append(mark)
        assert rows.keys() == {"even", "odd"}
        return write(self, rows, mark)

    monkeypatch.setattr(TopicWriter, "write", noted)
    with running(stream(transform, **TOPICS), spark, bootstrap, tmp_path) as run:
        send(bootstrap, events(1, 2, 3, 4))
        run.process_all_available()
        send(bootstrap, events(6))
        run.process_all_available()
    assert pairs(bootstrap, "even") == [("2", "2"), ("4", "4"), ("6", "6")]
    assert pairs(bootstrap, "odd") == [(None, '{"n":1}'), (None, '{"n":3}')]
    assert len({mark.batch for mark in marks}) == len(marks)
    assert run.figures.rows_out == 5


def test_the_example_of_several_outputs(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    given = catalog.load(PROJECT / "tests" / "examples").stream("sorted-sales")
    create(bootstrap, *given.topics())
    sale = '{"id": %d, "shop": "a", "amount": %g, "at": "2023-11-14T22:20:00Z"}'
    send(bootstrap, [Record("sales", None, sale % (n, amount)) for n, amount in [(1, 5), (2, 5000), (3, 7)]])
    with running(given, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    assert pairs(bootstrap, "large-sales") == [("2", '{"shop":"a","amount":5000.0}')]
    assert pairs(bootstrap, "small-sales") == [(None, "5.0"), (None, "7.0")]


def test_a_crash_between_two_stores_gives_only_the_one_without_marks_its_batch_again(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store without marks is written first, so the topic's mark says that both have a batch."""
    write, strikes = TopicWriter.write, once(lambda: RuntimeError("lightning"))

    def struck(self: TopicWriter, rows: Any, mark: CommitMarker) -> int:
        if len(rows["odd"]):
            strikes()
        return write(self, rows, mark)

    monkeypatch.setattr(TopicWriter, "write", struck)
    send(bootstrap, events(1, 2, 3))
    with running(stream(even=Shelved("a"), odd=TOPICS["odd"]), spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: pairs(bootstrap, "odd")), what="the batch is run again")
        run.process_all_available()
        assert run.figures.restarts == 1
    assert SHELVES["a"].rows == {2: 20}
    assert SHELVES["a"].writes == [(0, [2]), (0, [2])]
    assert pairs(bootstrap, "odd") == [(None, '{"n":1}'), (None, '{"n":3}')]


def test_a_store_with_a_mark_does_not_get_its_batch_again(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Of two stores with marks the first has the batch and the second has not."""
    SHELVES["b"].before = once(lambda: SinkError("the second shelf falls"))
    given = stream(even=Marked("a"), odd=Marked("b"))
    send(bootstrap, events(1, 2))
    with running(given, spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: SHELVES["b"].writes), what="the batch is run again")
        run.process_all_available()
        assert run.figures.restarts == 1
    assert SHELVES["a"].writes == [(0, [2])]
    assert SHELVES["b"].writes == [(0, [1])]
    # As if the driver had died before Spark's commit: both have it.
    next((tmp_path / "tagging" / "commits").glob("0")).unlink()
    with running(given, spark, bootstrap, tmp_path) as run:
        send(bootstrap, events(3))
        run.process_all_available()
    assert SHELVES["a"].writes == [(0, [2]), (1, [])]
    assert SHELVES["b"].writes == [(0, [1]), (1, [3])]


def test_a_store_that_asks_to_wait_gets_the_same_batch_afterwards(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    SHELVES["a"].before = once(lambda: Wait("the shelf is full", seconds=5))
    send(bootstrap, events(2))
    with running(stream(even=Shelved("a"), odd=TOPICS["odd"]), spark, bootstrap, tmp_path) as run:
        wait_until(lambda: run.report().state == "waiting", what="the stream says that it waits")
        assert "the shelf is full" in (run.figures.error or "")
        run.process_all_available()
        assert run.report().state in ("idle", "running")
        assert run.figures.restarts == 0
    assert SHELVES["a"].writes == [(0, [2])]


def test_a_stop_does_not_wait_for_a_store_that_asked_to_wait(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    asked = threading.Event()

    def full() -> None:
        asked.set()
        raise Wait("the shelf is full", seconds=3600)

    SHELVES["a"].before = full
    send(bootstrap, events(2))
    given = stream(even=Shelved("a"), odd=TOPICS["odd"])
    run = StreamRun(given, spark, bootstrap, str(tmp_path), ProgressRow("tagging", "tests", "i"))
    run.start()
    assert asked.wait(30)
    run.stop()
    assert not run.running
    SHELVES["a"].before = lambda: None
    with running(given, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    assert SHELVES["a"].rows == {2: 20}


@pytest.mark.parametrize("tag", ["'neither'", "NULL"])
def test_a_wrong_tag_is_refused_and_nothing_of_the_batch_is_written(
    spark: SparkSession, bootstrap: str, tmp_path: Path, tag: str
) -> None:
    def wrong(events: DataFrame) -> DataFrame:
        return events.select("n", F.expr(f"CASE n WHEN 3 THEN {tag} ELSE 'odd' END").alias("output"))

    send(bootstrap, events(1, 3))
    with running(stream(wrong, even=Shelved("a"), odd=TOPICS["odd"]), spark, bootstrap, tmp_path) as run:
        wait_until(lambda: tended(run.reconcile, lambda: run.figures.state == "blocked"), what="the stream is blocked")
        assert "rows for an output that is not declared" in (run.figures.error or "")
        assert "let the transform return one of: even, odd" in (run.figures.error or "")
    assert (pairs(bootstrap, "odd"), SHELVES["a"].writes) == ([], [])


def test_a_transform_without_tags_is_refused(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    given = stream(lambda events: events.select("n"), **TOPICS)
    run = StreamRun(given, spark, bootstrap, str(tmp_path), ProgressRow("tagging", "tests", "i"))
    run.reconcile()
    run.stop()
    assert "do not name their output" in (run.figures.error or "")
