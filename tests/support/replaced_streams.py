"""Streams of random versions, and random records for them: what is replaced in tests of replacements."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.engine.checkpoint.layout import RESET_FILE
from penstock.engine.replacement.cut import is_handed_over
from penstock.engine.replacement.replacement import Replacement, ReplacementOptions
from penstock.engine.session import session_for
from penstock.model.output_mode import OutputMode
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import sql_stream
from penstock.model.topic import COMMITS
from penstock.streams import EmitChanges, EmitFinal, F, Fold, Input, KeyedState, Stream, StreamJoin, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support import replacement_oracle as oracle
from tests.support.replacement_oracle import Event, Kind, Version

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


ID = "1" * 32
"""Of the replacement of each stream."""
SECOND, MINUTE = 1_000, 60_000
BEGIN = 1_700_000_400_000
DDL = "k STRING, n INT, at BIGINT NOT NULL"
KEPT = {"retention.ms": "-1"}
PARTITIONS = {"left": 2, "right": 1}
KINDS: tuple[Kind, ...] = ("final", "changes", "inner", "outer", "fold")


def random_versions(kind: Kind, rng: random.Random) -> tuple[Version, Version]:
    """A running version and a new one."""
    old = base_version(kind, rng)
    return old, changed_version(old, rng)


def base_version(kind: Kind, rng: random.Random) -> Version:
    """A version that runs first."""
    if kind in ("inner", "outer"):
        return Version(kind, length=10 * SECOND, grace=rng.choice([1, 20]) * SECOND)
    length = MINUTE if kind == "changes" else rng.choice([1, 2]) * MINUTE
    return Version(kind, length=length, grace=0 if kind == "fold" else rng.choice([0, 10, 90]) * SECOND)


def changed_version(old: Version, rng: random.Random) -> Version:
    """A version that replaces another."""
    changes: dict[str, dict[str, Any]] = {
        "equal": {},
        "one more column": {"columns": ("k", "n", "c")},
        "another column": {"columns": ("k", "c")},
        "another key": {"by_parity": True},
        "more partitions": {"partitions": 3},
    }
    if old.kind != "fold":
        changes["longer grace"] = {"grace": old.grace + 30 * SECOND}
        changes["shorter grace"] = {"grace": old.grace // 2}
    if old.kind in ("final", "changes"):
        changes["another window"] = {"length": 3 * MINUTE, "slide": 3 * MINUTE}
        changes["SQL"] = {"sql": True}
    if old.kind == "final":
        changes["overlapping windows"] = {"length": 4 * MINUTE}
    return replace(old, **changes[rng.choice(list(changes))])


def stream(name: str, v: Version) -> Stream:
    """The stream of a version, with topics of its own: `left-<name>`, `right-<name>` and `out-<name>`."""
    topics = {side: Topic(f"{side}-{name}", partitions=n, config=KEPT) for side, n in PARTITIONS.items()}
    output = TopicOutput(Topic(f"out-{name}", partitions=1, config=KEPT), key="k", value=v.columns)
    if v.sql:
        return _sql_stream(name, v, topics["left"], output)
    sides = ("left", "right") if v.kind in ("inner", "outer") else ("left",)
    inputs = {
        side: Input(topics[side], schema=DDL, event_time="timestamp_millis(at)", max_ahead=timedelta(0))
        for side in sides
    }

    def windows(left: DataFrame) -> DataFrame:
        window = F.window("event_time", f"{v.length} milliseconds", f"{v.slide} milliseconds")
        rows = left.groupBy(_key(v).alias("g"), window.alias("w")).agg(F.sum("n").alias("n"), F.count("*").alias("c"))
        return rows.select(F.concat_ws("/", "g", F.unix_millis("w.start") - BEGIN).alias("k"), "n", "c")

    def pairs(left: DataFrame, right: DataFrame) -> DataFrame:
        one, other = (side.withColumn("g", _key(v)).alias(name) for side, name in ((left, "l"), (right, "r")))
        within = f"r.event_time BETWEEN l.event_time AND l.event_time + INTERVAL {v.length // SECOND} SECONDS"
        rows = one.join(other, F.expr(f"l.g = r.g AND {within}"), "inner" if v.kind == "inner" else "leftOuter")
        key = F.concat_ws("/", "l.g", F.col("l.at") - BEGIN)
        return rows.select(key.alias("k"), F.coalesce("r.n", F.lit(-1)).alias("n"), F.lit(1).alias("c"))

    def sums(left: DataFrame) -> DataFrame:
        return FOLD(left.select(_key(v).alias("k"), "n", "event_time"))

    transforms: dict[Kind, Callable[..., DataFrame]] = {"fold": sums, "inner": pairs, "outer": pairs}
    transform = transforms.get(v.kind, windows)
    return Stream(name, "tests", inputs, transform, output, _mode(v), shuffle_partitions=v.partitions)


FOLD = Fold(
    name="sums", key=("k",), state_schema="n BIGINT, c BIGINT",
    update_sql="SELECT k, sum(r.n)::BIGINT + coalesce(any_value(state.n), 0) AS n, "
    "count(*) + coalesce(any_value(state.c), 0) AS c FROM records r LEFT JOIN state USING (k) GROUP BY k",
    emit_sql="SELECT k, n, c FROM folded ORDER BY k", output_schema="k STRING, n BIGINT, c BIGINT",
)  # fmt: skip


def _mode(v: Version) -> OutputMode:
    grace = timedelta(milliseconds=v.grace)
    if v.kind == "fold":
        return KeyedState()
    if v.kind in ("inner", "outer"):
        return StreamJoin(within=timedelta(milliseconds=v.length), grace=grace)
    made = EmitFinal if v.kind == "final" else EmitChanges
    return made(window=timedelta(milliseconds=v.slide), grace=grace)


def _key(v: Version) -> Column:
    return F.concat("k", (F.col("n") % 2).cast("string")) if v.by_parity else F.col("k")


def _sql_stream(name: str, v: Version, left: Topic, output: TopicOutput) -> Stream:
    emit = "FINAL" if v.kind == "final" else "CHANGES"
    text = f"""STREAM INTO `{output.topic.name}` READ `{left.name}` AS JSON ({DDL}) EVENT TIME timestamp_millis(at)
    KEY k VALUE ({", ".join(v.columns)})
    EMIT {emit} WINDOW {v.slide // SECOND} SECONDS GRACE {v.grace // SECOND} SECONDS
    AS SELECT concat_ws('/', k, unix_millis(window.start) - {BEGIN}) AS k, sum(n) AS n, count(*) AS c
    FROM `{left.name}` GROUP BY k, window(event_time, '{v.length} milliseconds', '{v.slide} milliseconds')"""
    topics = {left.name: left, output.topic.name: output.topic}
    declared = sql_stream(parse(text, Path(f"sql/streams/{name}.sql")), topics)
    return replace(declared, app="tests", output=output)


class RandomRecords:
    """Random records: out of order, some late, with times in which there are none."""

    def __init__(self, name: str, rng: random.Random, *, both: bool) -> None:
        self._name, self._rng, self._sides = name, rng, ("left", "right") if both else ("left",)
        self._at, self._n = BEGIN, 0
        self._ends: dict[tuple[str, int], int] = {}
        self.events: list[Event] = []

    def next(self) -> Sequence[Record]:
        """The next records, of a minute or two."""
        rng, made = self._rng, []
        span = rng.choice([30, 60, 100]) * SECOND
        if rng.random() < 0.2:
            self._at += 4 * MINUTE
        quiet = rng.choice([None, None, None, ("left", 1), ("right", 0)])
        for side in self._sides:
            for _ in range(rng.randrange(3, 12)):
                late = rng.choice([0, 0, 0, 0, 0, 1, 4]) * MINUTE
                partition = rng.randrange(PARTITIONS[side])
                if (side, partition) != quiet:
                    made.append(self._record(side, partition, self._at + rng.randrange(span) - late))
        self._at += span
        return made

    def last(self) -> Sequence[Record]:
        """Records so late that all windows close."""
        self._at += 60 * MINUTE
        return [self._record(side, p, self._at) for side in self._sides for p in range(PARTITIONS[side])]

    def _record(self, side: str, partition: int, at: int) -> Record:
        place = f"{side}-{self._name}", partition
        self._ends[place] = (offset := self._ends.get(place, 0)) + 1
        self._n += 1
        event = Event(*place, offset, self._rng.choice("ab"), self._n, at)
        self.events.append(event)
        value = {"k": event.k, "n": event.n, "at": at}
        return Record(event.topic, None, json.dumps(value), partition, timestamp=at)


class ReplacedStream:
    """A stream of two versions on a real broker.

    Args:
        name: Of the stream, as no other one is called on this broker.
        old: The running version.
        new: The new version.
        spark: A session.
        bootstrap: The broker.
        root: The root of its checkpoints.
    """

    def __init__(self, name: str, old: Version, new: Version, spark: SparkSession, bootstrap: str, root: Path) -> None:
        self._name, self._streams = name, (stream(name, old), stream(name, new))
        self._spark, self._bootstrap, self._root = spark, bootstrap, root

    @contextmanager
    def running(self, *, new: bool) -> Iterator[Callable[[Sequence[Record]], None]]:
        """A version runs. What is yielded sends records, and waits until they are processed."""
        with running(self._streams[new], self._spark, self._bootstrap, self._root) as run:

            def process(records: Sequence[Record]) -> None:
                send(self._bootstrap, records)
                run.process_all_available()

            yield process

    def open(self) -> Replacement:
        """The replacement, as a process has it that begins or goes on with it."""
        session = session_for(self._spark, self._streams[1])
        made = Replacement(self._streams[1], session, self._bootstrap, str(self._root), ID, ReplacementOptions())
        try:
            made.open()
        except BaseException:
            made.close()
            raise
        # What the oracle must know, and the replacement does not keep.
        (self._root / f"{self._name}.start").write_text(json.dumps(asdict(made.new.start)))
        return made

    @property
    def is_cut(self) -> bool:
        """Whether the new version is in the running version's place."""
        return is_handed_over(self._spark, str(self._root), self._name, ID)


def create_topics(name: str, bootstrap: str) -> None:
    """Create the topics of a stream."""
    joined = stream(name, Version("inner"))
    create(bootstrap, *joined.topics(), COMMITS)


def check_output(name: str, old: Version, new: Version, events: Sequence[Event], bootstrap: str, root: Path) -> None:
    """Compare the output of a stream that was replaced with what it must be. It is stopped, and its windows closed."""
    start = json.loads((root / f"{name}.start").read_text())
    reset = json.loads((root / name / RESET_FILE).read_text())
    starts = {(topic, int(p)): at for topic, parts in start["starts"].items() for p, at in parts.items()}
    expected = oracle.expected_output(
        oracle.VersionModel(old, events, {}, origin=BEGIN),
        oracle.VersionModel(new, events, starts, start["floor"] or 0, BEGIN),
        oracle.batches(root / f"{name}.before"),
        oracle.batches(root / name),
        last_running=reset["continues"][1],
        cut=reset["cut_batch"],
    )
    found = [(r.key or "", r.value or "") for r in read(bootstrap, f"out-{name}")]
    rows = [row for batch in expected for row in batch.elements()]
    what = f"{old} with {new}"
    assert not (lost := Counter(rows) - Counter(found)), f"lost: {lost}, {what}"
    assert not (more := Counter(found) - Counter(rows)), f"doubled, or wrong: {more}, {what}"
    if old.kind in oracle.UPDATING:
        assert oracle.newest(found) == oracle.newest(rows), what
