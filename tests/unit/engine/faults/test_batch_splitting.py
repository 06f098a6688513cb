"""How batches are cut that memory does not hold, without a broker: a record has a place and a size."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.engine.checkpoint.layout import Checkpoint, PlannedBatch
from penstock.engine.checkpoint.offset_log import TopicOffsets
from penstock.engine.faults import batch_splitting
from penstock.engine.faults.batch_splitting import (
    HEAP_DIVISOR,
    BatchSplitter,
    SplitLevel,
    SplitState,
    is_out_of_memory,
)
from penstock.engine.faults.data_loss import InputChanges
from penstock.engine.jvm import bridge
from penstock.engine.query.source import RecordPosition
from penstock.engine.query.watermark import is_cut
from penstock.errors import Blocked
from penstock.model.output import NO_COMMIT, CommitMarker
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput

HEAP = 1000 * HEAP_DIVISOR


@dataclass
class Kept:
    """A checkpoint of one topic with one partition: what of it was read, and what is planned."""

    read: int = 0
    end: int = 0
    batch_id: int = 0
    text: str | None = None
    query_id: str = "q"

    def batch_split(self) -> str | None:
        return self.text

    def save_batch_split(self, text: str) -> None:
        self.text = text or None

    def planned_batch(self) -> PlannedBatch | None:
        plan = SimpleNamespace(batch_id=self.batch_id, starts={"t": {0: self.read}}, ends={"t": {0: self.end}})
        return cast(PlannedBatch, plan) if self.end > self.read else None

    def shorten_batch(self, _: PlannedBatch, ends: TopicOffsets) -> None:
        self.end = ends["t"][0]


@dataclass
class World:
    """A stream over records of such sizes, in a driver with so much memory. fits: those that its transform is given;
    reads: all that are read, those that are left out too."""

    sizes: list[int]
    fits: Any
    reads: Any = lambda _: True
    headers: list[tuple[str, bytes]] | None = None
    kept: Kept = field(default_factory=Kept)
    batches: list[range] = field(default_factory=list)
    aside: list[int] = field(default_factory=list)
    failures: int = 0

    def run(self, made: BatchSplitter) -> None:
        """Until all is read; each failure is a restart, as is each time that batches may be larger again."""
        while self.kept.read < len(self.sizes):
            left_out = {place.offset for place in made.split_planned_batch(NO_COMMIT)}
            if (over := made.unreadable_record) and self.kept.read == over.offsets.start:
                self.aside.append(over.offsets.start)
                self.kept.read = over.offsets.stop
            while self.kept.read < len(self.sizes):
                if not self.kept.end > self.kept.read:
                    self.kept.end = min(len(self.sizes), self.kept.read + (made.max_records or len(self.sizes)))
                batch = range(self.kept.read, self.kept.end)
                if not (self.fits([n for n in batch if n not in left_out]) and self.reads(batch)):
                    self.failures += 1
                    made.note_out_of_memory()
                    break
                self.batches.append(batch)
                self.aside += [n for n in batch if n in left_out]
                self.kept.read, self.kept.batch_id = self.kept.end, self.kept.batch_id + 1
                if made.finish({"t": {0: self.kept.read}}):
                    break
        made.split_planned_batch(NO_COMMIT)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes what cuts the batches of a world."""

    def make(world: World, heap: int = HEAP, max_records: int = 0) -> BatchSplitter:
        def between(*place: Any) -> Any:
            for at in range(*place[-2:]):
                value = b"x" * world.sizes[at]
                yield SimpleNamespace(
                    offset=lambda at=at: at,
                    key=lambda: None,
                    value=lambda value=value: value,
                    headers=lambda: world.headers,
                )

        monkeypatch.setattr(bridge, "max_heap_bytes", lambda _: heap)
        monkeypatch.setattr(batch_splitting, "read_range", between)
        monkeypatch.setattr(batch_splitting, "first_offsets", lambda *_: {})
        stream = Stream(
            "s", "a", {"t": Input(Topic("t"))}, lambda t: t, TopicOutput(Topic("out"), value="value"), Stateless(),
            max_records=max_records,
        )  # fmt: skip
        return BatchSplitter(stream, cast(Any, None), "127.0.0.1:1", cast(Checkpoint, world.kept))

    return make


def test_what_fits_is_never_cut(made: Any) -> None:
    world = World([100] * 50, lambda _: True)
    world.run(made(world))
    assert world.batches == [range(50)]


def test_a_backlog_is_read_in_pieces_of_so_many_bytes_and_then_whole_again(made: Any) -> None:
    world = World([100] * 50, lambda batch: len(batch) <= 10)
    world.run(made(world))
    assert world.batches == [range(n, n + 10) for n in range(0, 50, 10)]
    assert (world.failures, world.kept.text) == (1, None)
    world.sizes, world.fits = [100] * 200, lambda _: True
    world.run(made(world))
    assert world.batches[-1] == range(50, 200)


def test_the_next_driver_goes_on_with_the_same_pieces(made: Any) -> None:
    world = World([100] * 50, lambda batch: len(batch) <= 10)
    first = made(world)
    world.kept.end = 50
    first.note_out_of_memory()
    first.split_planned_batch(NO_COMMIT)
    world.run(made(world))
    assert (max(map(len, world.batches)), world.failures, world.kept.text) == (10, 0, None)


def test_a_batch_that_is_in_flight_when_all_pieces_are_read_counts_as_cut(made: Any) -> None:
    """Spark's source has the limit of its query, also while the next query will have none."""
    world = World([100] * 200, lambda _: True, kept=Kept(end=50))
    one = made(world)
    one.note_out_of_memory()
    one.split_planned_batch(NO_COMMIT)
    limit = one.max_records
    assert one.finish({"t": {0: 50}})
    world.kept.read, world.kept.end, world.kept.batch_id = 50, 50 + limit, 5
    starts, ends = {"t": {0: 50}}, {"t": {0: 50 + limit}}
    assert is_cut(one.max_records, starts, ends)
    assert is_cut(one.limit_of(5), starts, ends)
    # It did not end: it runs again in the next driver, and in the one after that.
    for another in (made(world), made(world)):
        another.split_planned_batch(NO_COMMIT)
        assert (another.max_records, another.limit_of(6)) == (0, 0)
        assert is_cut(another.limit_of(5), starts, ends)
    world.kept.read = world.kept.end
    another.split_planned_batch(NO_COMMIT)
    assert world.kept.text is None


@pytest.mark.parametrize("after", [0, 100, 5])
def test_a_planned_batch_counts_as_cut_by_the_limit_of_an_earlier_release(made: Any, after: int) -> None:
    world = World([100] * 200, lambda _: True)
    made(world, max_records=10).split_planned_batch(NO_COMMIT)
    world.kept.end = 10
    later = made(world, max_records=after)
    later.split_planned_batch(NO_COMMIT)
    assert later.max_records == later.limit_of(1) == after
    assert is_cut(later.limit_of(0), {"t": {0: 0}}, {"t": {0: 10}})
    world.kept.read = 10
    later.split_planned_batch(NO_COMMIT)
    assert later.limit_of(0) == after


def test_a_record_that_never_fits_is_found_among_many_and_put_aside(made: Any) -> None:
    world = World([100] * 3000, lambda batch: 1234 not in batch)
    world.run(made(world))
    assert world.aside == [1234]
    assert [n for batch in world.batches for n in batch] == list(range(3000))
    assert world.failures < 10
    # Not each record by itself.
    assert len(world.batches) < 500


def test_a_small_batch_that_fails_once_is_not_cut(made: Any) -> None:
    """It may have been another stream's fault."""
    fails = [True]
    world = World([1] * 50, lambda _: not (fails and fails.pop()))
    world.run(made(world))
    assert (world.batches, world.aside, world.kept.text) == ([range(50)], [], None)


def test_a_light_record_is_blamed_only_after_more_failures(made: Any) -> None:
    """Another stream of the driver may have taken the memory, three times."""
    fails = [True] * 4
    world = World([1], lambda _: not (fails and fails.pop()))
    world.run(made(world))
    assert (world.failures, world.aside) == (4, [])
    world = World([1], lambda batch: not batch)
    world.run(made(world))
    assert world.aside == [0]


def test_records_without_bytes_are_split_by_their_number(made: Any) -> None:
    world = World([0] * 3, lambda batch: not batch)
    world.run(made(world))
    assert world.aside == [0, 1, 2]


def test_headers_take_memory_too(made: Any) -> None:
    world = World([0] * 50, lambda batch: len(batch) <= 10, headers=[("h", b"x" * 99)])
    world.run(made(world))
    assert world.batches == [range(n, n + 10) for n in range(0, 50, 10)]


def test_records_of_any_size_get_through(made: Any) -> None:
    sizes = [1, 5000, 1, 1, 900, 900, 1, 30, 5000, 5000, 2]
    world = World(sizes, lambda batch: sum(sizes[n] for n in batch) <= 5000)
    world.run(made(world))
    assert [n for batch in world.batches for n in batch] == list(range(len(sizes)))
    assert world.aside == []


def test_where_nothing_is_left_to_cut_it_is_blocked_until_there_is_more_memory(made: Any) -> None:
    world = World([100], lambda _: False)
    first = made(world)
    with pytest.raises(Blocked, match="raise PENSTOCK_DRIVER_MEMORY and release app a"):
        world.run(first)
    with pytest.raises(Blocked):
        first.split_planned_batch(NO_COMMIT)
    world.fits = lambda _: True
    world.run(made(world, 2 * HEAP))
    assert (world.batches, world.aside) == ([range(1)], [])


def test_a_record_that_cannot_even_be_left_out_is_passed_over(made: Any) -> None:
    world = World([100] * 20 + [5000] + [100] * 20, lambda _: True, reads=lambda batch: 20 not in batch)
    world.run(made(world))
    assert world.aside == [20]
    assert [n for batch in world.batches for n in batch] == [n for n in range(41) if n != 20]


def test_a_batch_that_is_written_is_read_whole_for_its_state(made: Any) -> None:
    world = World([100] * 50, lambda _: True)
    one = made(world)
    world.kept.end = 50
    one.note_out_of_memory()
    one.split_planned_batch(CommitMarker("q", 0, {}))
    assert world.kept.end == 50


@pytest.mark.parametrize("text", ["", "{", "[]", '{"heap": 1}', '{"levels": 3}'])
def test_a_damaged_note_is_as_if_there_were_none(made: Any, text: str) -> None:
    world = World([100] * 5, lambda _: True, kept=Kept(text=text))
    world.run(made(world))
    assert world.batches == [range(5)]


@pytest.mark.parametrize(
    ("changes", "upto", "left"),
    [
        (InputChanges(frozenset("t"), {}, {}), [{"u": {0: 7}}, {"u": {0: 9}}], []),
        (InputChanges(frozenset("u"), {}, {}), [{"t": {0: 50}}], [5, 40]),
        (InputChanges(frozenset(), {("t", 0): (0, 30)}, {}), [{"t": {0: 30}, "u": {0: 7}}, {"u": {0: 9}}], [5]),
        (
            InputChanges(frozenset(), {("t", 0): (10, 90)}, {}),
            [{"t": {0: 50}, "u": {0: 7}}, {"u": {0: 9}}],
            [5, 40],
        ),
    ],
    ids=["recreated", "another topic", "cut", "removed"],
)
def test_a_split_follows_its_logs(made: Any, changes: InputChanges, upto: list[TopicOffsets], left: list[int]) -> None:
    levels = SplitLevel({"t": {0: 50}, "u": {0: 7}}, 10), SplitLevel({"u": {0: 9}}, 5)
    without = tuple(RecordPosition("t", 0, at) for at in (5, 40))
    world = World([], lambda _: True, kept=Kept(text=SplitState(HEAP, levels, without=without).text()))
    made(world).forget(changes)
    kept = SplitState.read(world.kept.text, HEAP)
    assert [level.upto for level in kept.levels] == upto
    assert [position.offset for position in kept.without] == left


def test_an_error_of_pythons_is_no_lack_of_the_jvms() -> None:
    assert not is_out_of_memory(ValueError("java.lang.OutOfMemoryError"))
    assert not is_out_of_memory(None)


def test_a_plan_that_is_cut_ends_earlier_and_nowhere_before_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two inputs read one topic: the second is ahead of the first."""
    head = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":5}\n'
    texts = {
        "0": head + '{"t":{"0":10,"1":10}}\n{"t":{"0":14,"1":10}}',
        "1": head + '{"t":{"0":90,"1":50},"u":{"0":7}}\n{"t":{"0":90,"1":50}}',
    }
    monkeypatch.setattr("penstock.engine.checkpoint.layout.HadoopFolder", lambda _, path: Files(Path(path)))
    for name in ("offsets", "commits"):
        (tmp_path / "s" / name).mkdir(parents=True)
    for number, text in texts.items():
        (tmp_path / "s" / "offsets" / number).write_text(text)
    (tmp_path / "s" / "commits" / "0").write_text("v1\n{}")
    checkpoint = Checkpoint(cast(Any, None), str(tmp_path), "s")
    batch = checkpoint.planned_batch()
    assert batch
    assert (batch.starts, batch.ends) == ({"t": {0: 10, 1: 10}}, {"t": {0: 90, 1: 50}, "u": {0: 7}})
    checkpoint.shorten_batch(batch, {"t": {0: 12, 1: 30}, "u": {0: 7}})
    cut = checkpoint.planned_batch()
    assert cut
    assert [json.loads(line) for line in cut.plan.text.split("\n")[2:]] == [
        {"t": {"0": 12, "1": 30}, "u": {"0": 7}},
        {"t": {"0": 14, "1": 30}},
    ]
    assert (cut.plan.metadata, cut.ends["t"]) == (batch.plan.metadata, {0: 12, 1: 30})


class Files:
    """A folder without Hadoop."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def list_numbers(self, name: str) -> list[int]:
        return sorted(int(entry.name) for entry in (self._path / name).iterdir())

    def replace(self, name: str, text: str) -> None:
        (self._path / name).write_text(text)
