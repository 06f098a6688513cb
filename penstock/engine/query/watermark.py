"""Limits how far a batch moves the watermark.

It never moves beyond the batch's clock, not at all while a backlog is read in several batches, and by rows of other
streams no further than those streams have come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.engine.query import source
from penstock.engine.query.upstream import NO_LIMIT, inputs_limited_by_upstream

if TYPE_CHECKING:
    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.jvm.bridge import BatchExecution
    from penstock.engine.query.upstream import UpstreamProgress
    from penstock.model.stream import Stream


class BatchLimits(Protocol):
    """Says which batches do not read all that there is."""

    @property
    def max_records(self) -> int:
        """The most records of a batch that is planned now; 0 for no limit."""

    def limit_of(self, batch_id: int) -> int:
        """The number of records at which a batch may have been cut when it was planned; 0 for none."""

    def is_split(self, ends: TopicOffsets) -> bool:
        """Whether a batch with these next offsets is part of a larger one."""


def is_cut(limit: int, starts: TopicOffsets, ends: TopicOffsets) -> bool:
    """Whether an input may hold more than a batch took of it.

    Spark rounds down the share of each partition that has records. What it took of a new partition is not known here,
    and counts as all that there is: holding the watermark once more than needed does no harm.

    Args:
        limit: the most records of a batch; 0 for no limit.
        starts: the first offsets of the batch.
        ends: its next offsets, of the input.
    """
    counts = [end - starts.get(t, {}).get(p, 0) for t, parts in ends.items() for p, end in parts.items()]
    return 0 < limit < sum(counts) + sum(count > 0 for count in counts)


class Watermark:
    """The watermark of one run of a query.

    A record ahead of the clock keeps its time and its window, but moves the watermark as if it had the present time: so
    one fast clock takes nothing of the grace of the others. A batch that `max_records` or a lack of memory cut short
    does not move it: unread records may be older than read ones, and must not become late by the order of reading. The
    first batch that reads to the end of all partitions moves it. Rows that another stream wrote move it no further than
    that stream has come (`penstock.engine.query.upstream`). Heartbeats count in full for a stream that waits for the
    clock: they are held back where they are sent.

    Args:
        stream: the stream.
        limits: says which batches are part of a larger one.
        upstream: how far the streams have come that write the inputs.
        time: how far in event time an earlier run had come, epoch ms.
    """

    def __init__(
        self, stream: Stream, limits: BatchLimits, feeds: UpstreamProgress | None = None, time: int = 0
    ) -> None:
        self._stream, self._limits, self._feeds, self._time = stream, limits, feeds, time
        # The plan's operators that note event times, and the input of each.
        self._inputs_by_path: list[tuple[tuple[int, ...], str]] | None = None

    def cap(self, batch: PlannedBatch, execution: BatchExecution) -> int | None:
        """Cap what a batch adds to the watermark. It must be called when the batch is computed and has not ended.

        Returns:
            How far in event time the stream had come before the batch, epoch ms, None if it is unknown. No row of this
            batch or a later one is older, except by as much as records come late to the inputs.
        """
        if self._inputs_by_path is None:
            # The shape of a query's plan is fixed, and to walk it costs a hundred calls to the JVM.
            self._inputs_by_path = [(path, self._input(path, execution)) for path in execution.watermark_paths()]
        limits = self._feeds.limits(batch.batch_id, inputs_limited_by_upstream(self._stream)) if self._feeds else {}
        cut = self._cut(batch) or self._limits.is_split(batch.ends)
        latest = [None if cut else self._latest(name, limits, batch, execution) for _, name in self._inputs_by_path]
        moved = execution.cap_watermark([path for path, _ in self._inputs_by_path], latest)
        if not self._inputs_by_path:
            return None
        if self._stream.output_mode.drops_late:
            return batch.watermark_ms
        had = min([self._time, *limits.values()])
        self._time = max([self._time, *(at for at in moved if at is not None)])
        return had

    def _input(self, path: tuple[int, ...], execution: BatchExecution) -> str:
        metrics = execution.metric_names_below(path)
        return next((name for name in self._stream.sources if self._metric(name) in metrics), "")

    def _metric(self, name: str) -> str:
        return f"bad_{name}" if self._stream.sources[name].schema else f"beats_{name}"

    def _latest(self, name: str, limits: dict[str, int], batch: PlannedBatch, execution: BatchExecution) -> int | None:
        """The latest time to which records of an input move the watermark, epoch ms."""
        upto = NO_LIMIT if not name or self._stream.sources[name].uses_record_timestamp else limits.get(name, NO_LIMIT)
        if upto >= batch.at_ms:
            return batch.at_ms
        if (
            self._stream.output_mode.heartbeat_schedule
            and (metric := execution.observed_metric(self._metric(name))) is not None
        ):
            upto = max(upto, metric.getAs("heartbeat_at") or 0)
        return min(batch.at_ms, upto) or None

    def _cut(self, batch: PlannedBatch) -> bool:
        """Whether an input may hold more than the batch took of it."""
        limit = self._limits.limit_of(batch.batch_id)
        inputs = self._stream.sources.values() if limit else ()
        return any(is_cut(limit, batch.starts, source.batch_ends_of_input(input_, batch)) for input_ in inputs)
