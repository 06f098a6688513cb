"""How far rows that other streams wrote move time: what the stream before let in is in time for its reader."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import catalog
from penstock.engine.checkpoint.layout import PlannedBatch
from penstock.engine.faults.batch_splitting import BatchSplitter
from penstock.engine.jvm.bridge import BatchExecution
from penstock.engine.query import upstream
from penstock.engine.query.upstream import (
    HOLD,
    NO_LIMIT,
    UNKNOWN,
    CommitMarkerObserver,
    UpstreamCommit,
    UpstreamProgress,
    UpstreamSnapshot,
    event_time_limit,
    inputs_limited_by_upstream,
)
from penstock.engine.query.watermark import Watermark
from penstock.model.output import CommitMarker
from penstock.streams import EmitChanges, EmitFinal, Input, Stateless, Stream, Topic, TopicOutput

SECOND = 1000
MINUTE = 60 * SECOND
SOURCE, BETWEEN = Topic("source"), Topic("between")
AT = "at BIGINT NOT NULL"


def given(topic: Topic) -> Input:
    return Input(topic, schema=AT, event_time="timestamp_millis(at)")


def stream(name: str, read: Topic, write: Topic, window: int, grace: int, most: int = 0) -> Stream:
    output_mode = EmitChanges(timedelta(milliseconds=window), timedelta(milliseconds=grace))
    output = TopicOutput(write, key="at", value="at")
    return Stream(name, "tests", {"rows": given(read)}, lambda rows: rows, output, output_mode, max_records=most)


def fed(time: int, batch: int = 1, *, rests: bool = False, writes: str = "between") -> UpstreamCommit:
    return UpstreamCommit(("query", batch), (writes,), time, {}, rests)


BETWEENS = given(BETWEEN)


def test_rows_of_a_stream_move_time_as_far_as_it_had_come_before_the_batch_was_planned() -> None:
    before, after = UpstreamSnapshot({"a": fed(5, 1)}), UpstreamSnapshot({"a": fed(9, 2)})
    assert event_time_limit(BETWEENS, before, after) == 5
    assert event_time_limit(given(SOURCE), before, after) == NO_LIMIT
    both = UpstreamSnapshot({"a": fed(5), "b": fed(3), "c": fed(1, writes="else")})
    assert event_time_limit(BETWEENS, both, both) == 3, "the one that has come least far"


def test_a_stream_that_rests_holds_nobody() -> None:
    look = UpstreamSnapshot({"a": fed(5), "b": fed(3, rests=True)})
    assert event_time_limit(BETWEENS, look, look) == 5
    assert event_time_limit(BETWEENS, look, UpstreamSnapshot({"a": fed(5), "b": fed(3, batch=2)})) == 3, (
        "it has written since"
    )
    alone = UpstreamSnapshot({"b": fed(3, rests=True)})
    assert event_time_limit(BETWEENS, alone, alone) == NO_LIMIT


def test_a_stream_rests_only_if_all_that_its_inputs_hold_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = 'v1\n{"batchTimestampMs": 1}\n{"source": {"0": 3, "1": 4}}'
    marker = CommitMarker("query", 1, {}, plans={1: plan}, output_topics=("between",), event_time=5).value()
    monkeypatch.setattr(upstream, "admin", lambda _: None)
    monkeypatch.setattr(upstream, "partition_counts", lambda *_: {"source": 2})
    observer = CommitMarkerObserver(stream("reader", BETWEEN, Topic("out"), MINUTE, 0), "broker", ("a",))
    observer._marks = cast("Any", SimpleNamespace(read=lambda: {"a": marker}, may_be_hidden=False))

    def rests(ends: Mapping[tuple[str, int], int]) -> bool:
        monkeypatch.setattr(upstream, "end_offsets", lambda *_: ends)
        return observer(observer(UNKNOWN)).commits["a"].idle

    assert rests({("source", 0): 3, ("source", 1): 4})
    assert not rests({("source", 0): 3, ("source", 1): 5})
    assert not rests({("source", 0): 3}), "a partition without a leader may hold more"
    monkeypatch.setattr(upstream, "partition_counts", lambda *_: {})
    assert rests({}), "a deleted topic holds nothing more"


def test_time_waits_where_a_stream_is_new_or_nothing_could_be_seen() -> None:
    known, new = UpstreamSnapshot({"a": fed(5)}), UpstreamSnapshot({"a": fed(5), "b": fed(9)})
    assert event_time_limit(BETWEENS, known, new) == HOLD
    assert event_time_limit(BETWEENS, UNKNOWN, known) == HOLD, "a batch that was planned before the start"
    assert event_time_limit(BETWEENS, known, UNKNOWN) == HOLD
    assert event_time_limit(BETWEENS, UNKNOWN, UpstreamSnapshot({})) == NO_LIMIT, "nobody writes it"
    assert event_time_limit(BETWEENS, known, UpstreamSnapshot({})) == 5


def test_a_mark_says_how_far_its_stream_has_come() -> None:
    plan = 'v1\n{"batchWatermarkMs":7,"batchTimestampMs":9}\n{"source":{"0":4}}'
    mark = CommitMarker(
        "query", 3, {"source": {0: 4}, "table": {0: 8}}, {}, {3: plan}, "copy", output_topics=["between"], event_time=7
    )
    assert UpstreamCommit.parse(mark.value()) == UpstreamCommit(("query", 3), ("between",), 7, {"source": {0: 4}})
    assert CommitMarker.read(mark.value()) == replace(mark, output_topics=("between",))
    waits = UpstreamCommit.parse(replace(mark, waits_for_clock=True).value())
    assert waits is not None
    assert not waits.ends, "it never rests: its windows close though nothing comes"
    earlier = {"query": "query", "batch": 3, "offsets": {}, "topic_ids": {}, "plans": {}, "checkpoint": ""}
    for other in (json.dumps(earlier).encode(), b"", b"{}", b"[]", CommitMarker("query", 3, {}).value()):
        assert UpstreamCommit.parse(other) is None


@dataclass
class Executed:
    """A batch as computed. latest: of its event times, epoch ms; moved: how far it was let move time."""

    latest: int
    beat: int | None = None
    moved: int | None = None

    def watermark_paths(self) -> list[tuple[int, ...]]:
        return [(0,)]

    def metric_names_below(self, _: tuple[int, ...]) -> set[str]:
        return {"bad_rows"}

    def observed_metric(self, _: str) -> object:
        return SimpleNamespace(getAs=lambda _: self.beat)

    def cap_watermark(self, _: object, latest: list[int | None]) -> list[int | None]:
        self.moved = None if latest[0] is None else min(self.latest, latest[0])
        return [self.moved]


@dataclass
class Stage:
    """A stream as the engine runs it, without Spark: it drops what is late by its watermark."""

    stream: Stream
    feeds: UpstreamProgress | None = None
    read: list[int] = field(default_factory=lambda: [0] * 4)
    batch: int = -1
    watermark: int = 0

    def __post_init__(self) -> None:
        splitter = cast(
            BatchSplitter, SimpleNamespace(limit_of=lambda _: self.stream.max_records, is_split=lambda _: False)
        )
        self._clock = Watermark(self.stream, splitter, self.feeds)

    def run(self, now: int, times: list[list[int]], ends: list[int]) -> tuple[list[int], list[int], int]:
        """The event times that it took, those that were late, and what its mark says."""
        topic = self.stream.inputs["rows"].source
        self.batch += 1
        if self.feeds:
            self.feeds.begin_batch()
        starts, self.read = {topic: dict(enumerate(self.read))}, ends
        planned = SimpleNamespace(
            batch_id=self.batch, starts=starts, ends={topic: dict(enumerate(ends))}, at_ms=now,
            watermark_ms=self.watermark,
        )  # fmt: skip
        found = [at for p, end in enumerate(ends) for at in times[p][starts[topic][p] : end]]
        size = self.stream.output_mode.window_length // timedelta(milliseconds=1)
        late = [at for at in found if at // size * size + size <= self.watermark]
        executed = Executed(max(found, default=0))
        come = self._clock.cap(cast(PlannedBatch, planned), cast(BatchExecution, executed))
        if executed.moved is not None:
            self.watermark = max(
                self.watermark, executed.moved - self.stream.output_mode.watermark_delay // timedelta(milliseconds=1)
            )
        kept = Counter(found)
        kept.subtract(late)
        return list(kept.elements()), late, come or 0


class Between:
    """The topic between: a transaction is seen in one partition earlier than in another, and its mark anywhen; the next
    one begins when it is seen everywhere."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self.now = chance, 0
        self.times: list[list[int]] = [[], [], [], []]
        self._seen: list[list[int]] = [[], [], [], []]
        self._marks: list[tuple[int, UpstreamCommit]] = []
        self.whole_at = 0

    def write(self, rows: list[int], batch: int, come: int) -> None:
        self._marks.append((self.now + self._chance.choice([0, 0, 20 * SECOND]), fed(come, batch)))
        shown = [self.now + self._chance.choice([0, 0, 20 * SECOND]) for _ in range(4)]
        for at in rows:
            partition = self._chance.randrange(4)
            self.times[partition].append(at)
            self._seen[partition].append(shown[partition])
        self.whole_at = max(*shown, self._marks[-1][0])

    def ends(self) -> list[int]:
        return [sum(at <= self.now for at in seen) for seen in self._seen]

    def __call__(self, _: UpstreamSnapshot) -> UpstreamSnapshot:
        found = [one for at, one in self._marks if at <= self.now]
        return UpstreamSnapshot({"first": found[-1]} if found else {}, complete=bool(found) or not self._marks)

    def close(self) -> None:
        return


def dropped(seed: int, most: int, *, by_marks: bool, outage: int, grace: int = 4 * MINUTE) -> tuple[int, int, int]:
    """An hour of records, of which some come late, through two streams that are away now and then: how many the first
    let in, and how many of these the second dropped; of these how many were younger than grace when they came."""
    chance = random.Random(seed)
    first = Stage(stream("first", SOURCE, BETWEEN, MINUTE, grace, most))
    between = Between(chance)
    second = Stage(
        stream("second", BETWEEN, Topic("out"), 2 * MINUTE, grace + 2 * MINUTE),
        UpstreamProgress(cast(Stream, SimpleNamespace(name="second", sources={"rows": BETWEENS})), between)
        if by_marks
        else None,
    )
    if second.feeds:
        second.feeds.open(-1)
    coming = [(n * SECOND, chance.choice([0, 0, 20 * SECOND, grace - MINUTE, 2 * grace])) for n in range(3600)]
    written: list[list[int]] = [[], [], [], []]
    young, let_in, lost, lost_young = set[int](), 0, 0, 0
    at, n, reads_at, follows_at = 10**9, 0, 0, 0
    while n < len(coming) or any(end < len(times) for end, times in zip(first.read, written, strict=True)):
        between.now = now = min(reads_at, follows_at)
        while n < len(coming) and coming[n][0] <= now:
            came, age = coming[n]
            # Each five minutes most records come to another partition.
            partition = n // 300 % 4 if chance.random() < 0.9 else chance.randrange(4)
            written[partition].append(at + came - age)
            young |= {at + came - age} if age < grace else set()
            n += 1
        if now == reads_at:
            waits = [len(times) - end for times, end in zip(written, first.read, strict=True)]
            share = min(1.0, most / max(1, sum(waits))) if most else 1.0
            # Of a partition it takes its share, as Spark does.
            took = [min(wait, int(share * wait) or 1) for wait in waits]
            rows, _, come = first.run(at + now, written, [e + t for e, t in zip(first.read, took, strict=True)])
            let_in += len(rows)
            between.write(rows, first.batch, come)
            reads_at = max(now + (outage if chance.random() < 0.03 else 12 * SECOND), between.whole_at + 1)
        else:
            _, late, _ = second.run(at + now, between.times, between.ends())
            lost, lost_young = lost + len(late), lost_young + sum(one in young for one in late)
            follows_at = now + chance.choice([1, 12, 12, 60]) * SECOND
    if second.feeds:
        second.feeds.close()
    return let_in, lost, lost_young


@pytest.mark.parametrize(("most", "outage"), [(0, 15 * MINUTE), (30, 15 * MINUTE)])
def test_what_the_first_let_in_is_in_time_for_the_second(most: int, outage: int) -> None:
    """Of a backlog in pieces partitions get out of step; of one in a single transaction a half may be seen first."""
    by_rows, by_marks = (
        [dropped(seed, most, by_marks=by_marks, outage=outage) for seed in range(8)] for by_marks in (False, True)
    )
    assert sum(lost for _, lost, _ in by_marks) == 0
    assert sum(let_in for let_in, *_ in by_marks) > 10_000
    assert sum(young for *_, young in by_rows) > 0, "by the rows' own times even those were lost that were in time"


def test_beats_count_in_full_where_windows_wait_for_them() -> None:
    batch = cast(PlannedBatch, SimpleNamespace(batch_id=0, starts={}, ends={}, at_ms=10 * MINUTE, watermark_ms=0))
    updates = stream("second", BETWEEN, Topic("out"), MINUTE, 0)
    final = replace(updates, output_mode=EmitFinal(timedelta(minutes=1), timedelta(0)))
    splitter = cast(BatchSplitter, SimpleNamespace(limit_of=lambda _: 0, is_split=lambda _: False))
    feeds = cast(UpstreamProgress, SimpleNamespace(limits=lambda *_: {"rows": 3 * MINUTE}))
    for latest, beat, moved in ((5, None, 3), (2, None, 2), (5, 4, 4), (4, 4, 4), (12, 11, 10)):
        for one, most in ((updates, 3), (final, 10)):
            executed = Executed(latest * MINUTE, beat * MINUTE if beat else None)
            Watermark(one, splitter, feeds).cap(batch, cast(BatchExecution, executed))
            assert executed.moved == min(moved, most) * MINUTE, (latest, beat)


def test_a_stream_that_drops_nothing_says_how_far_it_read_to_the_end() -> None:
    """What a batch reads is told by the next one, for of the batch itself some rows may be seen before others."""
    each = Stream(
        "each", "a", {"rows": given(SOURCE)}, lambda rows: rows, TopicOutput(BETWEEN, value="at"), Stateless()
    )
    splitter = SimpleNamespace(limit_of=lambda _: 0, is_split=bool)
    watermark = Watermark(each, cast(BatchSplitter, splitter), None, 3)
    told = []
    for n, (latest, cut) in enumerate([(5, False), (9, True), (7, False), (6, False), (6, False)]):
        batch = SimpleNamespace(batch_id=n, starts={}, ends={"cut": {}} if cut else {}, at_ms=100, watermark_ms=0)
        told.append(watermark.cap(cast(PlannedBatch, batch), cast(BatchExecution, Executed(latest))))
    assert told == [3, 5, 5, 7, 7]


def test_which_streams_feed_which() -> None:
    project = catalog.load()
    upstream_streams = {
        name: project.upstream_streams(one) for name, one in project.streams.items() if inputs_limited_by_upstream(one)
    }
    assert upstream_streams["metric-summaries"] == ("metric-bundles",)
    assert upstream_streams["enriched-walk-ins"] == ("device-contacts", "walk-ins")
    assert upstream_streams["walk-in-counts"] == ("enriched-walk-ins",)
    assert upstream_streams["metric-bundles"] == upstream_streams["walk-ins"] == ()
    assert not upstream_streams.keys() & {"topic-quality", "receipts-archive"}, "these go by the records' own times"
