"""The stores that a stream's outputs belong to, each with its writer and the marker of the last batch it holds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from penstock.engine.checkpoint.offset_log import BatchPlan
from penstock.engine.commit.async_writer import writer_counts
from penstock.engine.commit.delivery import OutputStore
from penstock.errors import PenstockError
from penstock.model.output import NO_COMMIT, CommitMarker, Output, SideOutput, Writer, WriterOwner
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.model.stream import Stream


class OutputStores:
    """The open stores of one stream, in the order in which a batch is delivered to them.

    Stores without commit markers come first. Once a store with markers has a batch, all stores before it have it too.
    """

    def __init__(self, stream: Stream, bootstrap: str) -> None:
        self._stream, self._bootstrap = stream, bootstrap
        self.stores: list[OutputStore] = []
        # Counts of closed writers are kept: a count that falls would make rates over it wrong.
        self._closed_counts: Counter[str] = Counter()
        self._counting = threading.Lock()

    def open(self, open_writer: Callable[[list[Output], WriterOwner], Writer]) -> None:
        """Open a writer for each store, which fences earlier writers of the same stream."""
        outputs = [*self._stream.outputs.values(), *self._stream.side_outputs.values()]
        # A stream without a topic of its own keeps its marker in this one: it shows that a topic was deleted and
        # created again.
        outputs.append(SideOutput(DEAD_LETTERS))
        by_store: dict[Hashable, list[Output]] = {}
        for output in sorted(outputs, key=lambda o: o.delivery == "exactly once"):
            by_store.setdefault(output.store, []).append(output)
        owner = WriterOwner(self._stream.name, self._stream.group, self._bootstrap)
        for shared in by_store.values():
            self.stores.append(OutputStore(shared, open_writer(shared, owner), NO_COMMIT))

    def read_markers(self) -> None:
        """Ask each writer for the marker of the last batch in its store."""
        for store in self.stores:
            store.marker = store.writer.committed()

    def close(self) -> None:
        """Close all writers, and keep their counts."""
        with self._counting:
            stores, self.stores = self.stores, []
            self._closed_counts = sum((writer_counts(store.writer) for store in stores), self._closed_counts)
        for store in stores:
            store.writer.close()

    @property
    def committed(self) -> CommitMarker:
        """The marker of the last batch that any store holds."""
        return max((store.marker for store in self.stores), key=lambda marker: marker.batch, default=NO_COMMIT)

    def counts(self) -> Counter[str]:
        """What all writers have counted, those that are closed included."""
        with self._counting:
            return sum((writer_counts(store.writer) for store in self.stores), self._closed_counts)

    def pending(self, query: str, batch: PlannedBatch) -> list[OutputStore]:
        """The stores that may lack the batch.

        Raises:
            PenstockError: a marker belongs to a batch that was planned with other offsets.
        """
        for number, store in reversed(list(enumerate(self.stores))):
            if store.marker.query == query and self._has_batch(store.marker, batch):
                return self.stores[number + 1 :]
        return self.stores

    def _has_batch(self, marker: CommitMarker, batch: PlannedBatch) -> bool:
        """Whether a marker says that the batch is written.

        The number alone does not tell: an offset log that lost its end plans other records under the same number.
        """
        plan = BatchPlan.read(marker.plans.get(batch.batch_id, ""))
        if plan and plan.sources == batch.plan.sources:
            return True
        before = BatchPlan.read(marker.plans.get(marker.batch, ""))
        if marker.batch == batch.batch_id - 1 and (
            before is None or (batch.before and before.sources == batch.before.sources)
        ):
            return False
        raise PenstockError(
            f"stream {self._stream.name}: batch {batch.batch_id} was planned with other offsets than are written",
            got=f"the commit marker is of batch {marker.batch}",
            hint="no action needed; the query starts again from its commit marker",
        )

    def replace_markers(self, query: str, change: Callable[[CommitMarker], CommitMarker]) -> None:
        """Write the changed marker of each store that holds a marker of this query, if it differs."""
        for store in self.stores:
            if query and store.marker.query == query and (changed := change(store.marker)) != store.marker:
                store.write_marker(changed)
