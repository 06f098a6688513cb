"""Poison records: those that make a batch fail. They are found, left out of the query, and become dead letters.

What is found is left out of the stream's query from its next start on, and its dead letter is written in the
transaction of the batch: so it is written once, and after a kill the record is found again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.engine.checkpoint.recovery import damaged_checkpoint, is_unreadable_state
from penstock.engine.commit.rejected import RejectedRecords, origin_headers
from penstock.engine.error_text import root_message
from penstock.engine.faults.bisect import Inconclusive, span_of
from penstock.engine.faults.corrupt_offsets import CorruptOffsets, find_corrupt_offsets
from penstock.engine.faults.poison_search import PoisonSearch, is_infrastructure_error
from penstock.engine.query import source
from penstock.engine.query.source import RecordPosition
from penstock.errors import Blocked, LeaseLost
from penstock.kafka.record_lookup import metadata_at
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.engine.commit.dead_letter_index import DeadLetterIndex
    from penstock.engine.faults.data_loss import InputChanges
    from penstock.engine.operations.reset import Reset
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

T = TypeVar("T")


class SearchingForPoison(Exception):
    """A batch is being searched for records that make it fail."""


@dataclass
class PoisonRecords:
    """The poison records of one stream.

    Attributes:
        stream: The stream.
        search: Finds them.
        report: Called with the reason why the stream makes no progress.
        left_out: The records that the query is not to read, with the reason.
    """

    stream: Stream
    search: PoisonSearch
    report: Callable[[Exception], None]
    left_out: dict[RecordPosition, str] = field(default_factory=dict, init=False)
    _reset: Reset | None = field(default=None, init=False)
    _corrupt: CorruptOffsets | None = field(default=None, init=False)
    _failed: tuple[int, Any] | None = None
    _failures: int = 0
    _in_a_row: int = 0
    _blocked: Blocked | None = None

    def restart(
        self, reset: Reset | None, excluded: Mapping[RecordPosition, str], unreadable: CorruptOffsets | None
    ) -> CorruptOffsets | None:
        """Begin a new query.

        Args:
            reset: the reset that the query begins with.
            excluded: further records that the query is not to read, with the reason.
            unreadable: a record too large to be read.

        Returns:
            Offsets after which the query must begin: of that record, or corrupt ones that the last query found.
        """
        self._reset = reset
        self.left_out |= excluded
        corrupt, self._corrupt = unreadable or self._corrupt, None
        return corrupt

    def watch(self, batch: PlannedBatch, work: Callable[[], T], stopped: Callable[[], bool], *, written: bool) -> T:
        """Run the work on a batch's rows. If it fails for the second time, the records that cause it are searched.

        Args:
            batch: The batch.
            work: Computes its rows.
            stopped: Whether the stream is being stopped.
            written: Whether a store has the batch.

        Raises:
            Blocked: Too many records make it fail, or nothing can be left out.
            Exception: What the work raised.
        """
        try:
            return work()
        except Exception as e:
            if not stopped():
                self._handle(batch, e, stopped, written=written)
            raise

    def _handle(self, batch: PlannedBatch, error: Exception, stopped: Callable[[], bool], *, written: bool) -> None:
        if is_unreadable_state(error):
            raise damaged_checkpoint(self.stream.name, f"its state: {root_message(error)}") from error
        if self._failed != (batch.batch_id, batch.ends):
            self._failed, self._failures, self._blocked = (batch.batch_id, batch.ends), 0, None
        self._failures += 1
        if self._blocked:
            raise self._blocked from error
        if corrupt := find_corrupt_offsets(self.stream, batch, error, self.search.bootstrap, written=written):
            self._corrupt = corrupt
            return
        # At the second failure, and then ever more seldom: no record may be the cause.
        if self._failures < 2 or self._failures & (self._failures - 1) or is_infrastructure_error(error):
            return
        for position, why in self._find(batch, error, stopped).items():
            self.left_out[position] = why
            self._in_a_row += 1
            log.warning(
                "stream %s: a record makes its batch fail and becomes a dead letter: %s",
                self.stream.name, why, extra=position._asdict(),
            )  # fmt: skip

    def _find(self, batch: PlannedBatch, error: Exception, stopped: Callable[[], bool]) -> dict[RecordPosition, str]:
        name = self.stream.name
        log.warning(
            "stream %s: batch %d failed %d times; searching for records that cause it",
            name, batch.batch_id, self._failures,
        )  # fmt: skip
        why = f"batch {batch.batch_id} is searched for records that make it fail: {root_message(error)}"
        self.report(SearchingForPoison(why))
        limit = max(0, self.stream.max_poison - self._in_a_row)
        try:
            return self.search.find(batch, self.left_out, limit, self._reset, stopped)
        except Inconclusive as e:
            log.warning("stream %s: no record makes batch %d fail: %s", name, batch.batch_id, e)
        except Blocked as e:
            self._blocked = e
            raise
        except LeaseLost:
            raise
        except Exception as e:
            # The error of the batch is reported, not the error of the search.
            log.warning("stream %s: no record was found: %s", name, root_message(e))
        return {}

    def forget(self, changes: InputChanges) -> None:
        """Drop positions at which there are other records now."""
        for position in list(self.left_out):
            if not changes.keeps(*position):
                del self.left_out[position]

    def dead_letters(self, batch: PlannedBatch, index: DeadLetterIndex) -> RejectedRecords:
        """The dead letters of a batch, except those that their topics have already."""
        rejected = RejectedRecords()
        for position in list(self.left_out):
            if position.offset < batch.starts.get(position.topic, {}).get(position.partition, 0):
                # Its batch is committed; the next start reads without a filter.
                del self.left_out[position]
        positions = [p for p in self.left_out if p.offset < batch.ends.get(p.topic, {}).get(p.partition, 0)]
        if not positions:
            # Spark runs batches without records too.
            self._in_a_row = self._in_a_row if batch.starts == batch.ends else 0
            return rejected
        rejected.first_reason = self.left_out[positions[0]]
        done: set[RecordPosition] = set()
        letters: dict[RecordPosition, tuple[dict[str, Any], str]] = {}
        for input_ in self.stream.sources.values():
            rows = source.batch_records(self.search.spark, input_, self.search.bootstrap, span_of(positions, batch))
            rows = rows.where(source.is_at(positions))
            target = input_.dead_letter_topic or (None if input_.schema else DEAD_LETTERS)
            for row in rows.select("topic", "partition", "offset", "key", "value").toLocalIterator():
                position = RecordPosition(row.topic, row.partition, row.offset)
                if position in done or index.contains(row.asDict(), target.name if target else ""):
                    continue
                done.add(position)
                rejected.dead += 1
                if target:
                    letters[position] = row.asDict(), target.name
        originals = metadata_at(letters, self.search.bootstrap)
        for position, (record, topic) in letters.items():
            headers = origin_headers(
                record, self.stream.name, "reason", self.left_out[position], index.topic_ids, originals.get(position)
            )
            letter = {"key": record["key"], "value": record["value"], "headers": headers}
            rejected.by_topic.setdefault(topic, []).append(letter)
        return rejected
