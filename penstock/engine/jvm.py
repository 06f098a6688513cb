"""What Penstock asks of Spark's JVM behind the public API, all in one place. Tried on Spark 4.2.0.

`_jvm`, `_jsc`, `_jsq`, `_jdf` and `_gateway` are PySpark's own and may change with any version: tests/integration/
test_jvm.py calls each function here, so that a new Spark shows at once what is to be mended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# A metric of Spark's state operators.
LATE = "numRowsDroppedByWatermark"
# Logical operators that keep state when their input is a stream.
STATEFUL = {
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Join", "Distinct", "TransformWithState",
    "TransformWithStateInPySpark", "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "GlobalLimit",
}  # fmt: skip
OWN_STATE = {step for step in STATEFUL if step.startswith(("TransformWithState", "FlatMapGroups"))}
# A column that a watermark lies on.
TIMED_COLUMN = re.compile(r"-T\d+ms\b")
# What Spark makes of `window(...)`: the plan has no other word of it. In microseconds.
STARTS = r"LongType\) - (?P<start>-?\d+)\) % (?P<slide>\d+)\) \+ \d+\) ELSE .{1,500}? END\) - 0\)"
WINDOWS = re.compile(STARTS + r" \+ (?P<length>\d+)\), LongType")


@dataclass(frozen=True)
class Windows:
    """Windows of event time, one every `slide`; start: how long after each multiple of that one begins."""

    length: timedelta
    slide: timedelta
    start: timedelta

    @property
    def phase(self) -> timedelta:
        """How long after each multiple of `slide` one ends."""
        return (self.start + self.length) % self.slide


def answers(spark: SparkSession) -> None:
    """Come back if the JVM works; a paused one leaves this waiting."""
    spark._jvm.System.nanoTime()  # type: ignore[union-attr]


def progress(query: StreamingQuery, after: str) -> list[dict[str, Any]]:
    """The progress of batches since the one with the timestamp `after`, oldest first."""
    recent = query._jsq.recentProgress()
    found: list[dict[str, Any]] = []
    for i in reversed(range(len(recent))):
        one = json.loads(recent[i].json())
        if one["timestamp"] == after:
            break
        found.append(one)
    return found[::-1]


def stateful_steps(frame: DataFrame) -> list[str]:
    """The operators of a streaming frame's plan that keep state, by name."""
    plan = frame._jdf.queryExecution().analyzed()
    return [node.nodeName() for node in _nodes(plan) if node.nodeName() in STATEFUL and _keeps_state(node)]


def clocks(frame: DataFrame) -> list[str]:
    """What the timers of a frame's own state go by: `EventTime`, `ProcessingTime`, `NoTime`; of older functions
    `EventTimeTimeout` and the like. `no event time` if that does not reach it: then Spark takes no record for late."""
    found = []
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        if node.nodeName() not in OWN_STATE or not node.isStreaming():
            continue
        clock = node.timeMode() if node.nodeName().startswith("Transform") else node.timeout()
        found.append(clock.toString() if TIMED_COLUMN.search(_reads(node)) else "no event time")
    return found


def _reads(node: Any) -> str:
    """The columns of an operator's first child, as Spark writes them."""
    return str(node.children().apply(0).output().toString())


def windows(frame: DataFrame) -> list[Windows]:
    """The windows that a streaming frame's plan puts times into."""
    text = frame._jdf.queryExecution().analyzed().toString()
    found = (
        {name: timedelta(microseconds=int(n)) for name, n in m.groupdict().items()} for m in WINDOWS.finditer(text)
    )
    return list(dict.fromkeys(Windows(**lengths) for lengths in found))


def _keeps_state(node: Any) -> bool:
    """Whether an operator reads streams: a join keeps none unless it joins two."""
    children = node.children()
    wanted = children.size() if node.nodeName() == "Join" else 1
    return all(children.apply(i).isStreaming() for i in range(wanted))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for i in range(children.size()):
        yield from _nodes(children.apply(i))


@dataclass(frozen=True)
class Execution:
    """A batch as Spark ran it."""

    _execution: Any

    @classmethod
    def last(cls, query: StreamingQuery) -> Execution:
        return cls(query._jsq.streamingQuery().lastExecution())

    def observed(self, metric: str) -> Any | None:
        """The row of an observed metric; None if the batch has none of that name."""
        found = self._execution.observedMetrics().get(metric)
        return found.get() if found.isDefined() else None

    def late_places(self) -> list[tuple[int, ...]]:
        """Where the plan's operators are that drop late rows: indexes of children from the root."""
        return list(_places(self._execution.executedPlan()))

    def late(self, places: list[tuple[int, ...]]) -> int:
        """Rows, after partial aggregation, that those operators dropped in this batch."""
        plan = self._execution.executedPlan()
        return sum(int(_node(plan, place).metrics().get(LATE).get().value()) for place in places)


def _places(plan: Any, here: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if plan.metrics().contains(LATE):
        yield here
    children = plan.children()
    for i in range(children.size()):
        yield from _places(children.apply(i), (*here, i))


def _node(plan: Any, place: tuple[int, ...]) -> Any:
    for i in place:
        plan = plan.children().apply(i)
    return plan


class Folder:
    """A folder on any file system that Hadoop knows; what is written keeps Hadoop's checksum beside it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._folder = jvm.org.apache.hadoop.fs.Path(path)
        self._fs = self._folder.getFileSystem(spark._jsc.hadoopConfiguration())

    def exists(self) -> bool:
        return bool(self._fs.exists(self._folder))

    def move(self, to: str) -> None:
        """Let the folder take a place, whatever is there."""
        place = self._jvm.org.apache.hadoop.fs.Path(to)
        self._fs.delete(place, True)
        if not self._fs.rename(self._folder, place):
            raise OSError(f"{self._folder.toString()} could not be moved to {to}")

    def names(self, name: str) -> list[str]:
        """What lies in a folder below this one; nothing if it is not there."""
        if not self._fs.exists(self._at(name)):
            return []
        return [status.getPath().getName() for status in self._fs.listStatus(self._at(name))]

    def read(self, name: str) -> str:
        stream = self._fs.open(self._at(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        self._fs.delete(self._at(name), False)

    def replace(self, name: str, text: str) -> None:
        """Put a text in the place of a file, whole or not at all."""
        fresh = self._at(f"{name}.fresh")
        out = self._fs.create(fresh, True)
        try:
            out.write(text.encode())
        finally:
            out.close()
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        how = self._gateway.new_array(rename, 1)
        how[0] = rename.OVERWRITE
        self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._fs.getUri()).rename(
            self._fs.makeQualified(fresh), self._fs.makeQualified(self._at(name)), how
        )

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, name)


def end(spark: SparkSession) -> int:
    """Let a JVM that this process started end by itself, as it does when its standard input is closed; its exit code.

    `SparkSession.stop` alone leaves it running.
    """
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    return int(gateway.proc.wait())
