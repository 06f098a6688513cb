"""How far a batch moves the watermark: never beyond its own clock, not at all while a backlog is read in pieces, and by
rows of other streams no further than those have come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.query import source
from penstock.engine.query.upstream import NO_LIMIT, inputs_limited_by_upstream

if TYPE_CHECKING:
    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.engine.faults.batch_splitting import BatchSplitter
    from penstock.engine.jvm.bridge import BatchExecution
    from penstock.engine.query.upstream import UpstreamProgress
    from penstock.model.stream import Stream


class Watermark:
    """Of one run of a query. time: how far an earlier run had come, epoch ms.

    A record that lies ahead of the clock keeps its own time and its window, but moves the watermark as if it came from
    now: so one fast clock takes nothing of the grace that all others have. A batch that `max_records` or
    a lack of memory cut short does not move it: what waits may be older than what was read, and must not become late by
    the order of reading. It is moved by the first batch that reads to the end of all partitions. Rows that another
    stream wrote move it no further than that one has come (`penstock.engine.query.upstream`). Beats count in full
    for a stream that waits for the clock: they are held where they are sent.
    """

    def __init__(
        self, stream: Stream, splitter: BatchSplitter, feeds: UpstreamProgress | None = None, time: int = 0
    ) -> None:
        self._stream, self._splitter, self._feeds, self._time = stream, splitter, feeds, time
        # Where the plan notes event times, and of which input.
        self._places: list[tuple[tuple[int, ...], str]] | None = None

    def cap(self, batch: PlannedBatch, execution: BatchExecution) -> int | None:
        """Move it. To be called when a batch has been computed and has not ended yet.

        How far in event time the stream had come before the batch, epoch ms, None if it cannot say: none of its rows,
        nor of later ones, is older, except by as much as records come late to its inputs.
        """
        if self._places is None:
            # A query's plan keeps its shape, and to walk all of it each time costs a hundred calls to the JVM.
            self._places = [(place, self._input(place, execution)) for place in execution.watermark_paths()]
        limits = self._feeds.limits(batch.batch_id, inputs_limited_by_upstream(self._stream)) if self._feeds else {}
        cut = self._cut(batch) or self._splitter.is_split(batch)
        latest = [None if cut else self._latest(name, limits, batch, execution) for _, name in self._places]
        moved = execution.cap_watermark([place for place, _ in self._places], latest)
        if not self._places:
            return None
        if self._stream.output_mode.drops_late:
            return batch.watermark_ms
        had = min([self._time, *limits.values()])
        self._time = max([self._time, *(at for at in moved if at is not None)])
        return had

    def _input(self, place: tuple[int, ...], execution: BatchExecution) -> str:
        found = execution.metric_names_below(place)
        return next((name for name in self._stream.sources if self._metric(name) in found), "")

    def _metric(self, name: str) -> str:
        return f"bad_{name}" if self._stream.sources[name].schema else f"beats_{name}"

    def _latest(self, name: str, limits: dict[str, int], batch: PlannedBatch, execution: BatchExecution) -> int | None:
        """Behind which time no record of an input moves the watermark."""
        upto = NO_LIMIT if not name or self._stream.sources[name].uses_record_timestamp else limits.get(name, NO_LIMIT)
        if upto >= batch.at_ms:
            return batch.at_ms
        if (
            self._stream.output_mode.heartbeat_schedule
            and (metric := execution.observed_metric(self._metric(name))) is not None
        ):
            upto = max(upto, metric.getAs("alive_at") or 0)
        return min(batch.at_ms, upto) or None

    def _cut(self, batch: PlannedBatch) -> bool:
        """Whether more may wait in an input than the batch took of it.

        Spark rounds each partition's share down. What it took of a partition that is new to it is not known here: that
        counts as all there is, for to hold the watermark once more than needed does no harm.
        """
        limit = self._splitter.max_records
        for given in self._stream.sources.values() if limit else ():
            parts = [
                end - batch.starts.get(topic, {}).get(partition, 0)
                for topic, ends in source.batch_ends_of_input(given, batch).items()
                for partition, end in ends.items()
            ]
            if sum(parts) > limit - len(parts):
                return True
        return False
