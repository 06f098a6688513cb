"""How far a batch moves the watermark: never beyond its own clock, and not at all while a backlog is read in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine import source

if TYPE_CHECKING:
    from penstock.declare.stream import Stream
    from penstock.engine.checkpoint import Batch
    from penstock.engine.jvm import Execution
    from penstock.engine.portions import Portions


class Watermark:
    """Of one run of a query.

    A record that lies ahead of the clock keeps its own time and its window, but moves the watermark as if it came from
    now: so one fast clock takes nothing of the grace that all others have. A batch that `max_records` or
    a lack of memory cut short does not move it: what waits may be older than what was read, and must not become late by
    the order of reading. It is moved by the first batch that reads to the end of all partitions.
    """

    def __init__(self, stream: Stream, portions: Portions) -> None:
        self._stream, self._portions = stream, portions
        self._places: list[tuple[int, ...]] | None = None

    def settle(self, batch: Batch, execution: Execution) -> None:
        """To be called when a batch has been computed and has not ended yet."""
        if self._places is None:
            # A query's plan keeps its shape, and to walk all of it each time costs a hundred calls to the JVM.
            self._places = execution.time_places()
        execution.hold_time(self._places, None if self._cut(batch) or self._portions.cuts(batch) else batch.at_ms)

    def _cut(self, batch: Batch) -> bool:
        """Whether more may wait in an input than the batch took of it.

        Spark rounds each partition's share down. What it took of a partition that is new to it is not known here: that
        counts as all there is, for to hold the watermark once more than needed does no harm.
        """
        limit = self._portions.most
        for given in self._stream.sources.values() if limit else ():
            parts = [
                end - batch.starts.get(topic, {}).get(partition, 0)
                for topic, ends in source.read(given, batch).items()
                for partition, end in ends.items()
            ]
            if sum(parts) > limit - len(parts):
                return True
        return False
