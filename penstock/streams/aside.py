"""Records of a batch that do not reach the transform: what is bad goes to the dead letters, what is late is counted.

A good batch pays for neither: Spark counts both while it runs, and only a batch that has some is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from penstock.kafka.output import Message
from penstock.streams import records, source

if TYPE_CHECKING:
    from pyspark.sql import Column, Row, SparkSession

    from penstock.streams.checkpoint import Batch
    from penstock.streams.declare import Stream

# A metric of Spark's state operators.
LATE = "numRowsDroppedByWatermark"


class Aside:
    """Finds the bad and the late records of one run of a query. execution: Spark's, of the batch, in its JVM."""

    def __init__(self, stream: Stream, spark: SparkSession, bootstrap: str) -> None:
        self._stream, self._spark, self._bootstrap = stream, spark, bootstrap
        self._stateful: list[tuple[int, ...]] | None = None

    def dead(self, batch: Batch, execution: Any) -> Iterator[Message]:
        """The bad records of a batch. Only one that counted more than were held is read a second time."""
        if not any(given.schema for given in self._stream.inputs.values()):
            return
        observed = execution.observedMetrics()
        for name, given in self._stream.inputs.items():
            metric = observed.get(f"bad_{name}")
            if not given.schema or not metric.isDefined():
                continue
            assert given.topic is not None
            count, held = records.bad(self._spark, metric.get())
            if not count:
                continue
            found = source.batch(self._spark, given, self._bootstrap, batch) if held is None else held
            for row in records.rejected(found, given, _at(batch)).toLocalIterator():
                yield self._message(row, given.topic.dead_letters, "reason", row.reason)

    def late(self, batch: Batch, execution: Any) -> tuple[int, list[Message]]:
        """How many records came after their window was closed, and the messages that keep them if they are kept.

        Spark drops groups and counts those, so the batch is read again for the records.
        """
        if not self._dropped(execution.executedPlan()):
            return 0, []
        size = int(self._stream.promise.window.total_seconds() * 1000)
        count, kept = 0, list[Message]()
        for given in self._stream.inputs.values():
            raw = [records.RECORD] if given.schema else list(records.RAW)
            again = source.batch(self._spark, given, self._bootstrap, batch)
            rows = records.walled(records.parse(again, given, _at(batch), keep="all"))
            end = (F.floor(F.unix_millis(records.EVENT_TIME) / size) + 1) * size
            found = records.without_beats(rows.where(~F.col(records.BAD))).where(end <= batch.watermark_ms)
            if not self._stream.keep_late:
                count += found.count()
                continue
            shown = found.select(*raw, (F.lit(batch.watermark_ms) - end).alias("late_ms"))
            for row in (shown.select(f"{records.RECORD}.*", "late_ms") if given.schema else shown).toLocalIterator():
                kept.append(self._message(row, self._stream.late_topic, "late-ms", str(row.late_ms)))
        return count + len(kept), kept

    def _dropped(self, plan: Any) -> int:
        """Rows, after Spark's partial aggregation, that the batch's state operators dropped for being late."""
        if self._stateful is None:
            # A query's plan keeps its shape, and to walk all of it each time costs a hundred calls to the JVM.
            self._stateful = list(_places(plan))
        return sum(int(_node(plan, place).metrics().get(LATE).get().value()) for place in self._stateful)

    def _message(self, row: Row, topic: str, header: str, text: str) -> Message:
        """A record of the input as it came, for a topic beside the output; headers say whence, and one thing more."""
        return Message(
            topic,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            (
                ("penstock.topic", row.topic.encode()),
                ("penstock.partition", str(row.partition).encode()),
                ("penstock.offset", str(row.offset).encode()),
                ("penstock.stream", self._stream.name.encode()),
                (f"penstock.{header}", text.encode()),
            ),
        )


def _at(batch: Batch) -> Column:
    return F.timestamp_millis(F.lit(batch.at_ms))


def _places(plan: Any, here: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Where a plan's state operators are that count late rows, as indexes of children from the root."""
    if plan.metrics().contains(LATE):
        yield here
    children = plan.children()
    for i in range(children.size()):
        yield from _places(children.apply(i), (*here, i))


def _node(plan: Any, place: tuple[int, ...]) -> Any:
    for i in place:
        plan = plan.children().apply(i)
    return plan
