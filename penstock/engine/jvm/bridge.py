"""Access to Spark's JVM beyond the public API. Tested with Spark 4.2.0.

`_jvm`, `_jsc`, `_jsq`, `_jdf` and `_gateway` are PySpark's own and may change with any version:
tests/integration/engine/jvm/test_bridge.py calls each function here, so that a new Spark shows at once what
has changed.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.model.checks.spark_plan import analyzed_nodes, analyzed_plan, elements, inlined_plan, nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# A metric of Spark's state operators.
LATE_METRIC = "numRowsDroppedByWatermark"
# The operator that notes the event times of a batch; the latest moves the watermark when the batch ends.
WATERMARK_NODE = "EventTimeWatermark"
METRICS_NODE = "CollectMetrics"
# The latest event time where there is none.
NO_EVENT_TIME = -(2**63)
# Logical operators that keep state when their input is a stream.
STATEFUL = {
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Join", "Distinct", "TransformWithState",
    "TransformWithStateInPySpark", "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "GlobalLimit",
}  # fmt: skip
CUSTOM_STATE = {step for step in STATEFUL if step.startswith(("TransformWithState", "FlatMapGroups"))}
# Metadata of a column with a watermark.
WATERMARK_METADATA = "spark.watermarkDelayMs"
# The same in the text of a plan.
TIMED_COLUMN = re.compile(r"-T\d+ms\b")
# Parts of a plan's text that differ each time: numbered names, column ids, a watermark's delay.
NUMBERED_NAMES = re.compile(r"\b([xyz])_\d+(?=#)")
VOLATILE_IDS = re.compile(r"#\d+L?|-T\d+ms\b")
# What Spark makes of `session_window(...)`.
SESSIONS = re.compile(r"end, knownnullable\(.{1,500}? \+ cast\((?P<gap>.{1,500}?) as interval\) as timestamp\)")
# What Spark makes of `window(...)`, in microseconds: the plan has no other trace of it.
WINDOW_START = r"LongType\) - (?P<start>-?\d+)\) % (?P<slide>\d+)\) \+ \d+\) ELSE .{1,500}? END\) - 0\)"
WINDOWS = re.compile(WINDOW_START + r" \+ (?P<length>\d+)\), LongType")

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
POOL = "spark.scheduler.pool"


@dataclass(frozen=True)
class EventTimeWindows:
    """Windows of event time, one every `slide`. start: how long after each multiple of `slide` one begins."""

    length: timedelta
    slide: timedelta
    start: timedelta

    @property
    def phase(self) -> timedelta:
        """How long after each multiple of `slide` one ends."""
        return (self.start + self.length) % self.slide


def is_alive(spark: SparkSession) -> bool:
    """Whether Spark has its context. A JVM that is paused leaves the call waiting."""
    return not spark.sparkContext._jsc.sc().isStopped()


def executor_count(spark: SparkSession) -> int:
    """How many executors the driver of a cluster has at present."""
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is among them


def worker_page_urls(spark: SparkSession, host: str, port: int) -> list[str]:
    """URLs of the pages of a standalone master's live workers. Py4JJavaError if the master does not answer."""
    jvm: Any = spark._jvm
    deploy = "org.apache.spark.deploy.DeployMessages$"
    address = jvm.org.apache.spark.rpc.RpcAddress.apply(host, port)
    master = jvm.org.apache.spark.SparkEnv.get().rpcEnv().setupEndpointRef(address, "Master")
    answer = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName(f"{deploy}MasterStateResponse"))
    workers = master.askSync(getattr(getattr(jvm, f"{deploy}RequestMasterState$"), "MODULE$"), answer).workers()
    return [str(worker.webUiAddress()) for worker in workers if str(worker.state()) == "ALIVE"]


def max_heap_bytes(spark: SparkSession) -> int:
    """The largest size of the JVM's heap."""
    return int(spark._jvm.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]


def recent_progress(query: StreamingQuery, after: tuple[str, int]) -> list[dict[str, Any]]:
    """The progress of batches since the one with the timestamp and number `after`, oldest first."""
    recent = query._jsq.recentProgress()
    newest_first: list[dict[str, Any]] = []
    for i in reversed(range(len(recent))):
        progress = json.loads(recent[i].json())
        if (progress["timestamp"], progress["batchId"]) == after:
            break
        newest_first.append(progress)
    return newest_first[::-1]


def is_idle(query: StreamingQuery) -> bool:
    """Whether a query has found nothing to do since its last batch with data, or since its start."""
    status = query._jsq.status()
    return not status.isDataAvailable() and str(status.message()).startswith("Waiting for ")


@contextmanager
def held(query: StreamingQuery) -> Iterator[None]:
    """Let a query plan no batch within a block of one thread: it does that under a lock."""
    lock = query._jsq.streamingQuery().awaitProgressLock()
    lock.lock()
    try:
        yield
    finally:
        lock.unlock()


def error_chain(error: BaseException) -> list[tuple[str, str]]:
    """Class and message of an error of the JVM and of each of its causes; none for another error."""
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    errors: list[tuple[str, str]] = []
    while thrown is not None:
        errors.append((str(thrown.getClass().getName()), str(thrown.getMessage() or "")))
        thrown = thrown.getCause()
    return errors


def stateful_steps(frame: DataFrame) -> list[str]:
    """The operators of a streaming frame's plan that keep state, by name."""
    return [name for name, node in analyzed_nodes(frame) if name in STATEFUL and _keeps_state(name, node)]


def arrow_functions(frame: DataFrame) -> list[str]:
    """The names of the functions of `mapInArrow`, as often as a frame's plan calls them."""
    return [str(node.functionExpr().name()) for node in nodes(inlined_plan(frame)) if node.nodeName() == "MapInArrow"]


def state_layout(frame: DataFrame) -> list[str]:
    """The state that a streaming frame's plan keeps: a line for the windows, and for each key and value of each
    stateful operator with its type. The lines are the same each time the plan is made.

    Columns are given by name: how they are computed does not matter.
    """
    lines = [f"windows of {w.length} every {w.slide} from {w.start}" for w in event_time_windows(frame)]
    text = analyzed_plan(frame).toString()
    lines += dict.fromkeys(f"sessions of {_plain(m['gap'])}" for m in SESSIONS.finditer(text))
    steps = [(name, node) for name, node in analyzed_nodes(frame) if name in STATEFUL and _keeps_state(name, node)]
    for number, (name, node) in enumerate(steps):
        lines += [f"step {number + 1}, {name}: {line}" for line in _keeps(name, node)]
    return lines


def _keeps(name: str, node: Any) -> Iterator[str]:
    match name:
        case "Aggregate":
            yield from (f"by {_typed(expression)}" for expression in elements(node.groupingExpressions()))
            values = [v for expression in elements(node.aggregateExpressions()) for v in _aggregates(expression)]
            yield from dict.fromkeys(map(_typed, values))
        case "Join":
            on = node.condition()
            yield _plain(f"{node.joinType().toString()} on {on.get().toString() if on.isDefined() else 'nothing'}")
        case "Deduplicate" | "DeduplicateWithinWatermark":
            yield from (f"by {_typed(expression)}" for expression in elements(node.keys()))
        case "TransformWithStateInPySpark":
            columns = list(elements(node.children().apply(0).output()))
            yield from (f"by {_typed(expression)}" for expression in columns[: node.groupingAttributesLen()])
        case _ if name in CUSTOM_STATE:
            yield from (f"by {_typed(expression)}" for expression in elements(node.groupingAttributes()))
        case _:
            yield from (_typed(expression) for expression in elements(node.output()))


def _aggregates(expression: Any) -> Iterator[Any]:
    """The aggregate functions in an expression."""
    if expression.getClass().getSimpleName() == "AggregateExpression":
        yield expression
    else:
        for child in elements(expression.children()):
            yield from _aggregates(child)


def _typed(expression: Any) -> str:
    return f"{_plain(expression.toString())}: {expression.dataType().catalogString()}"


def _plain(text: str) -> str:
    return VOLATILE_IDS.sub("", NUMBERED_NAMES.sub(r"\1", text))


def timer_clocks(frame: DataFrame) -> list[str]:
    """The clocks of the timers in a frame's custom state: `EventTime`, `ProcessingTime`, `NoTime`; of older functions
    `EventTimeTimeout` and the like. `no event time` if the column does not reach it: then no record is late."""
    clocks = []
    for name, node in analyzed_nodes(frame):
        if name not in CUSTOM_STATE or not node.isStreaming():
            continue
        clock = node.timeMode() if name.startswith("Transform") else node.timeout()
        clocks.append(clock.toString() if TIMED_COLUMN.search(_reads(node)) else "no event time")
    return clocks


def own_watermarks(frame: DataFrame) -> list[str]:
    """The columns of a streaming frame with a watermark in addition to that of the input."""
    marks = [n for name, n in analyzed_nodes(frame) if name == WATERMARK_NODE and n.isStreaming()]
    return [
        _plain(n.eventTime().toString()) for n in marks if any(m.nodeName() == WATERMARK_NODE for m in [*nodes(n)][1:])
    ]


def untimed_groups(frame: DataFrame) -> list[str]:
    """The groups of a streaming frame's aggregates that have no column with a watermark: there no record is late, and
    no state is dropped."""
    untimed: list[str] = []
    for name, node in analyzed_nodes(frame):
        if name == "Aggregate" and _keeps_state(name, node):
            groups = list(elements(node.groupingExpressions()))
            columns = (group for group in groups if group.getClass().getSimpleName() == "AttributeReference")
            if not any(group.metadata().contains(WATERMARK_METADATA) for group in columns):
                untimed += map(_typed, groups)
    return untimed


def _reads(node: Any) -> str:
    """The columns of an operator's first child, as text of the plan."""
    return str(node.children().apply(0).output().toString())


def event_time_windows(frame: DataFrame) -> list[EventTimeWindows]:
    """The windows of event time in a streaming frame's plan."""
    text = analyzed_plan(frame).toString()
    durations = (
        {name: timedelta(microseconds=int(n)) for name, n in m.groupdict().items()} for m in WINDOWS.finditer(text)
    )
    return list(dict.fromkeys(EventTimeWindows(**lengths) for lengths in durations))


def first_batch_metadata(spark: SparkSession, at_ms: int) -> dict[str, Any]:
    """The metadata of a first batch in the offset log, with the settings that Spark pins for a query.

    Args:
        spark: The session of the query.
        at_ms: The batch's time, epoch ms.
    """
    package = "org.apache.spark.sql.execution.streaming.checkpointing"
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    metadata = getattr(jvm, f"{package}.OffsetSeqMetadata").apply(0, at_ms, session.conf())
    fields: dict[str, Any] = json.loads(metadata.json())
    # A query sets the partitions of its state, which are stored under this name, when it starts.
    fields["conf"][SHUFFLE_PARTITIONS] = spark.conf.get(SHUFFLE_PARTITIONS)
    return fields


def subscriptions(frame: DataFrame) -> list[tuple[str, str]]:
    """What the Kafka sources of a streaming frame subscribe to, in the order of the offset log's lines.

    Returns:
        The topic of each, or an empty text; and the pattern, or an empty text.
    """
    sources = (node.extraOptions() for name, node in analyzed_nodes(frame) if name == "StreamingRelationV2")
    return [(str(one.get("subscribe") or ""), str(one.get("subscribePattern") or "")) for one in sources]


def _keeps_state(name: str, node: Any) -> bool:
    """Whether an operator reads streams; a join keeps state only if it joins two."""
    children = node.children()
    return all(children.apply(i).isStreaming() for i in range(2 if name == "Join" else 1))


@dataclass(frozen=True)
class BatchExecution:
    """A batch as Spark ran it."""

    _execution: Any

    @classmethod
    def last_of(cls, query: StreamingQuery) -> BatchExecution:
        return cls(query._jsq.streamingQuery().lastExecution())

    @classmethod
    def of_frame(cls, frame: DataFrame) -> BatchExecution:
        """The execution of a frame that was collected."""
        return cls(frame._jdf.queryExecution())

    def observed_metric(self, metric: str) -> Any | None:
        """The row of an observed metric; None if the batch has none of that name."""
        metric_row = self._execution.observedMetrics().get(metric)
        return metric_row.get() if metric_row.isDefined() else None

    def late_operator_paths(self) -> list[tuple[int, ...]]:
        """Paths of the operators that drop late rows: indexes of children from the plan's root."""
        return [path for path, _, node in self._nodes if node.metrics().contains(LATE_METRIC)]

    def late_rows(self, paths: list[tuple[int, ...]]) -> int:
        """Rows, after partial aggregation, that those operators dropped in this batch."""
        plan = self._plan
        return sum(int(_node(plan, path).metrics().get(LATE_METRIC).get().value()) for path in paths)

    def watermark_paths(self) -> list[tuple[int, ...]]:
        """Paths of the operators that note event times, one for each input."""
        return [path for path, name, _ in self._nodes if name == WATERMARK_NODE]

    def metric_names_below(self, path: tuple[int, ...]) -> set[str]:
        """Names of the metrics observed below an operator."""
        within = (node for at, name, node in self._nodes if name == METRICS_NODE and at[: len(path)] == path)
        return {str(node.name()) for node in within}

    def cap_watermark(self, paths: list[tuple[int, ...]], latest: Sequence[int | None]) -> list[int | None]:
        """Cap how far the batch moves the watermark. It must be called when the batch is computed and has not ended.

        Args:
            places: paths of the operators that note event times.
            latest: the latest time of each, epoch ms; None if it is not to move the watermark.

        Returns:
            How far each moves the watermark, epoch ms; None where it does not.
        """
        plan, moved = self._plan, list[int | None]()
        for path, upto in zip(paths, latest, strict=True):
            statistics = _node(plan, path).eventTimeStats()
            at = int(statistics.value().max())
            if upto is None:
                statistics.reset()
            elif at > upto:
                statistics.reset()
                statistics.add(upto)
            moved.append(None if upto is None or at == NO_EVENT_TIME else min(at, upto))
        return moved

    def move_watermark(self, to: int) -> None:
        """Let a batch without records move the watermark to this time, epoch ms. Called when `cap_watermark` may be."""
        plan = self._plan
        for path in self.watermark_paths():
            operator = _node(plan, path)
            operator.eventTimeStats().add(to + int(operator.delayMs()))

    @cached_property
    def _nodes(self) -> list[tuple[tuple[int, ...], str, Any]]:
        """Path, name and operator, from the plan's root down."""
        return list(_operators(self._plan))

    @cached_property
    def _plan(self) -> Any:
        return self._execution.executedPlan()


def _operators(plan: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], str, Any]]:
    yield path, str(plan.nodeName()), plan
    for i, child in enumerate(elements(plan.children())):
        yield from _operators(child, (*path, i))


def _node(plan: Any, path: tuple[int, ...]) -> Any:
    for i in path:
        plan = plan.children().apply(i)
    return plan


@contextmanager
def fair_turn(spark: SparkSession) -> Iterator[None]:
    """Let the jobs of this thread wait for no job of a thread that entered later.

    A free core goes to the pool with the fewest running tasks, and among equals, which all waiting pools are, to the
    first by name (Spark's `FairSchedulingAlgorithm`). With a pool for each stream, the last by name would starve for as
    long as the others have work: so each turn has a pool of its own, named by its time and, as drivers may share the
    JVM, its process.
    """
    context: Any = spark.sparkContext
    root, jvm, package = context._jsc.sc().taskScheduler().rootPool(), context._jvm, "org.apache.spark.scheduler"
    name = f"{time.monotonic_ns():020d}-{os.getpid()}-{threading.get_ident()}"
    mode = getattr(jvm, f"{package}.SchedulingMode").FIFO()
    pool = getattr(jvm, f"{package}.Pool")(name, mode, 0, 1)
    root.addSchedulable(pool)
    context.setLocalProperty(POOL, name)
    try:
        yield
    finally:
        context.setLocalProperty(POOL, None)
        root.removeSchedulable(pool)


def stop_jvm(spark: SparkSession) -> int:
    """Stop the session and the JVM that this process started, by closing its standard input; the JVM's exit code.

    `SparkSession.stop` alone leaves the JVM running.
    """
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    return int(gateway.proc.wait())
