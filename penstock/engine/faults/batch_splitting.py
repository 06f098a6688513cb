"""Splitting of a batch that the driver's memory does not hold.

Spark bounds a batch by the number of its records alone, and a record may have a megabyte. So when memory was full, of
the JVM or of a Python worker, the batch that was planned is cut by bytes, as they are read off the log, and all that it
held is read in batches of no more records than its first piece has. One of these that fails is cut likewise, down to
one record, which becomes a dead letter in the end.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.engine.faults.corrupt_offsets import CorruptOffsets
from penstock.engine.jvm import bridge
from penstock.engine.query.source import RecordPosition
from penstock.errors import Blocked
from penstock.kafka.admin import admin, first_offsets
from penstock.kafka.dead_letters import headers_of, open_consumer, read_range

if TYPE_CHECKING:
    from collections.abc import Collection

    from confluent_kafka import Message as Taken
    from pyspark.sql import SparkSession

    from penstock.engine.checkpoint.layout import Checkpoint, PlannedBatch
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.faults.data_loss import InputChanges
    from penstock.model.output import CommitMarker
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# The JVM has several copies of a batch at a time: records, rows, and results on their way to Python.
HEAP_DIVISOR = 16
SPLIT_FACTOR = 64
# A record smaller than this fraction of the heap is left out only after more failures: a JVM that runs out of memory
# does not say which of its streams used it.
SMALL_DIVISOR, SMALL_RECORD_FAILURES = 1000, 5
# Errors of a lack of memory that the JVM survives. Texts are matched of Spark's own errors only.
MEMORY_ERROR = re.compile(
    r"java\.lang\.OutOfMemoryError|org\.apache\.spark\.memory\.SparkOutOfMemoryError|"
    r"org\.apache\.arrow\.(memory\.OutOfMemoryException|vector\.util\.OversizedAllocationException)"
)
MEMORY_MESSAGE = re.compile(
    r"TaskResultLost|bigger than (local )?maxResultSize|bigger than spark\.driver\.maxResultSize|"
    r"[Ee]xited with code 52\b|exceeding (physical )?memory limits|Python worker exited unexpectedly|"
    r": [\w.$]*OutOf(Direct)?Memory(Error|Exception)\b"
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a query failed for want of memory, of the JVM or of a Python worker, which then dies silently."""
    errors = bridge.error_chain(error) if error is not None else []
    return any(
        MEMORY_ERROR.fullmatch(name)
        or (name == "org.apache.spark.SparkException" and MEMORY_MESSAGE.search(text[:2000]))
        for name, text in errors
    )


class RecordsSize(NamedTuple):
    """The number of some records, their bytes, and the position of the last."""

    records: int
    bytes: int
    last: RecordPosition | None


@dataclass(frozen=True)
class SplitLevel:
    """A batch that memory did not hold.

    Attributes:
        upto: Its next offsets.
        records: The most records of a batch until `upto` is read; 0 for no limit.
    """

    upto: TopicOffsets
    records: int

    def holds(self, ends: TopicOffsets) -> bool:
        """Whether some of that batch is not read yet, by the next offsets; nothing of a deleted topic is."""
        return any(ends.get(t, {}).get(p, at) < at for t, parts in self.upto.items() for p, at in parts.items())

    def within(self, changes: InputChanges) -> SplitLevel:
        """The level in the logs that there are now."""
        upto = {t: {p: changes.offset(t, p, at) for p, at in parts.items()} for t, parts in self.upto.items()}
        return replace(self, upto={t: parts for t, parts in upto.items() if t not in changes.gone})


@dataclass(frozen=True)
class SplitState:
    """What is known of the batches that memory did not hold; it is kept in the checkpoint.

    Attributes:
        heap: The JVM's heap, bytes.
        levels: The batches, each within the one before.
        batch: The number of the batch that failed last.
        times: How often it failed with its present plan.
        without: Its records that are left out.
        limit: The least number of records at which an earlier query may have cut the planned batch; 0 for none.
    """

    heap: int
    levels: tuple[SplitLevel, ...] = ()
    batch: int = -1
    times: int = 0
    without: tuple[RecordPosition, ...] = ()
    limit: int = 0

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str | None, heap: int) -> SplitState:
        """Parse it; empty if there is none or it is damaged: then the batch fails once more."""
        try:
            fields = json.loads(text or "")
            levels = tuple(
                SplitLevel(
                    {t: {int(p): at for p, at in parts.items()} for t, parts in level["upto"].items()}, level["records"]
                )
                for level in fields["levels"]
            )
            state = cls(
                **fields | {"levels": levels, "without": tuple(RecordPosition(*at) for at in fields["without"])}
            )
        except (ValueError, TypeError, KeyError):
            return cls(heap)
        return state if state.heap == heap else replace(state, heap=heap, times=0, without=())


class BatchSplitter:
    """Splits the batches of one stream.

    Args:
        stream: The stream.
        spark: A session, whose JVM has the heap.
        bootstrap: The brokers.
        checkpoint: The checkpoint of the stream's query.
        out_of_memory: Whether the last driver ran out of memory.

    Attributes:
        max_records: The most records of a batch that the present query plans; 0 for no limit.
        unreadable_record: A record that memory does not hold even to skip it: the next query begins after it.
    """

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        bootstrap: str,
        checkpoint: Checkpoint,
        *,
        out_of_memory: bool = False,
    ) -> None:
        self._stream, self._bootstrap, self._checkpoint = stream, bootstrap, checkpoint
        self._state = SplitState(bridge.max_heap_bytes(spark))
        self._out_of_memory = out_of_memory
        self.max_records = stream.max_records
        # Of the batch that was planned before the query, by its number.
        self._planned_limit: dict[int, int] = {}
        self.unreadable_record: CorruptOffsets | None = None

    def limit_of(self, batch_id: int) -> int:
        """The number of records at which Spark may have cut a batch when it was planned; 0 for none."""
        return self._planned_limit.get(batch_id, self.max_records)

    def note_out_of_memory(self) -> None:
        """Split the planned batch before the next start."""
        self._out_of_memory = True

    def is_split(self, ends: TopicOffsets) -> bool:
        """Whether a batch with these next offsets is part of one that was split."""
        return any(level.holds(ends) for level in self._state.levels)

    def finish(self, read: TopicOffsets) -> bool:
        """End the levels that are read, by the next offsets; whether batches may be larger from the next start on."""
        levels = tuple(level for level in self._state.levels if level.holds(read))
        if not read or levels == self._state.levels:
            return False
        log.warning("stream %s has read a batch that was split", self._stream.name)
        self._save(SplitState(self._state.heap, levels, limit=self._state.limit))
        return True

    def forget(self, changes: InputChanges) -> None:
        """Drop offsets at which there are other records now, or none: a level is of the log that is read.

        The query must not run.
        """
        state = SplitState.read(self._checkpoint.batch_split(), self._state.heap)
        levels = tuple(level for level in (level.within(changes) for level in state.levels) if level.upto)
        self._save(replace(state, levels=levels, without=tuple(p for p in state.without if changes.keeps(*p))))

    def split_planned_batch(self, mark: CommitMarker) -> dict[RecordPosition, str]:
        """Split the planned batch, if memory ran out; the records that it must run without, and why.

        The query must not run.

        Args:
            mark: The marker of the last batch that is written.

        Raises:
            Blocked: There is nothing left to split.
        """
        self._state, self.unreadable_record = SplitState.read(self._checkpoint.batch_split(), self._state.heap), None
        batch = self._checkpoint.planned_batch()
        written = mark.batch if mark.query == self._checkpoint.query_id else -1
        # A batch that is written must be read whole, for its state.
        if self._out_of_memory and batch is not None and batch.batch_id > written:
            self._split(batch)
        self._out_of_memory = False
        self._fix_limits(batch)
        return dict.fromkeys(self._state.without, self._why)

    def _fix_limits(self, planned: PlannedBatch | None) -> None:
        """Fix the limit of the query that begins, and that of the batch that is planned already.

        Each batch counts as cut by the limit that it was planned with. Spark's source keeps this as long as its query
        runs, though a level ends meanwhile; the checkpoint keeps it until a query begins without a planned batch.
        """
        limits = [self._stream.max_records, *(level.records for level in self._state.levels)]
        self.max_records = limit = min(filter(None, limits), default=0)
        self._planned_limit = {}
        if planned:
            limit = min(filter(None, (limit, self._state.limit)), default=0)
            self._planned_limit[planned.batch_id] = limit
        if limit != self._state.limit:
            self._save(replace(self._state, limit=limit))

    @property
    def _why(self) -> str:
        return f"the driver's memory ({self._state.heap >> 20} MiB) does not hold its rows, even in a batch of its own"

    def shorten(self, batch: PlannedBatch, topic: str, partition: int, at: int) -> None:
        """Let a planned batch, of which nothing is written, end earlier in one partition."""
        if not self.is_split(batch.ends):
            self._save(replace(self._state, levels=(*self._state.levels, SplitLevel(batch.ends, 0))))
        self._checkpoint.shorten_batch(batch, {topic: {partition: at}})

    def _split(self, batch: PlannedBatch) -> None:
        now, levels = self._state, self._state.levels
        same = now.batch == batch.batch_id
        times, without = (now.times + 1, now.without) if same else (1, ())
        starts = self._starts(batch)
        sizes = [self._size(*at, start, batch.ends[at[0]][at[1]], without) for at, start in starts.items()]
        count, size = sum(one.records for one in sizes), sum(one.bytes for one in sizes)
        bound = now.heap // HEAP_DIVISOR
        if count > 1 and (size > bound or levels):
            bound = min(bound, size // SPLIT_FACTOR) if levels else bound
            levels = (*levels, SplitLevel(batch.ends, max(1, count * bound // size)))
            self._checkpoint.shorten_batch(
                batch, self._ends(batch, starts, bound // sum(one.records > 0 for one in sizes))
            )
            times = 0
        elif times > 1 and count == 0:
            heavy = next(
                (at for at in without if self._size(*at, at.offset + 1, ()).bytes > now.heap // SPLIT_FACTOR), None
            )
            if heavy is None:
                raise self._blocked(batch, without)
            # Not even the record can be read, which is needed to leave it out.
            self.unreadable_record = CorruptOffsets(
                heavy.topic, heavy.partition, range(heavy.offset, heavy.offset + 1), self._why
            )
            times, without = 0, ()
        elif times > (1 if size > now.heap // SMALL_DIVISOR else SMALL_RECORD_FAILURES) and count == 1:
            without = (*without, *(one.last for one in sizes if one.last))
        # A first failure may be another stream's fault.
        levels = levels or (SplitLevel(batch.ends, 0),)
        leaves_out = without or self.unreadable_record
        log.warning(
            "stream %s: memory was full in batch %d, of %d records and %d bytes, or a Python worker was killed%s",
            self._stream.name, batch.batch_id, count, size,
            "; its record becomes a dead letter" if leaves_out else "; it is split" if times == 0 else "",
        )  # fmt: skip
        self._save(replace(now, levels=levels, batch=batch.batch_id, times=times, without=without))

    def _save(self, state: SplitState) -> None:
        self._checkpoint.save_batch_split(state.text() if state.levels or state.limit else "")
        self._state = state

    def _starts(self, batch: PlannedBatch) -> dict[tuple[str, int], int]:
        every = [(topic, p) for topic, parts in batch.ends.items() for p in parts]
        firsts = first_offsets(admin(self._bootstrap), every, self._bootstrap)
        return {(t, p): max(batch.starts.get(t, {}).get(p, 0), firsts.get((t, p), 0)) for t, p in every}

    def _size(
        self, topic: str, partition: int, start: int, end: int, excluded: Collection[RecordPosition]
    ) -> RecordsSize:
        records = size = 0
        last = None
        with open_consumer(self._bootstrap) as reader:
            for message in read_range(reader, topic, partition, start, end):
                position = RecordPosition(topic, partition, message.offset() or 0)
                if position not in excluded:
                    records, size, last = records + 1, size + _bytes(message), position
        return RecordsSize(records, size, last)

    def _ends(self, batch: PlannedBatch, starts: dict[tuple[str, int], int], share: int) -> TopicOffsets:
        """The end of each partition if it gives at most its share of bytes; all together give at least one record."""
        ends: TopicOffsets = {}
        has_records = False
        with open_consumer(self._bootstrap) as reader:
            for (topic, partition), start in starts.items():
                end, remaining = batch.ends[topic][partition], share
                for message in read_range(reader, topic, partition, start, end):
                    remaining -= _bytes(message)
                    if remaining < 0 and has_records:
                        end = message.offset() or 0
                        break
                    has_records = True
                ends.setdefault(topic, {})[partition] = end
        return ends

    def _blocked(self, batch: PlannedBatch, excluded: Collection[RecordPosition]) -> Blocked:
        cause = "a record that is left out" if excluded else "its state alone"
        return Blocked(
            f"stream {self._stream.name}: the driver's memory does not hold batch {batch.batch_id}, and nothing of it "
            "is left to split",
            got=f"{self._state.heap >> 20} MiB, filled by {cause}"
            + "".join(f": {position.topic}[{position.partition}]@{position.offset}" for position in excluded),
            hint=f"raise PENSTOCK_DRIVER_MEMORY and release app {self._stream.app}: it continues where it "
            f"stopped; or skip the batch by `penstock streams reset {self._stream.name} --to`, which takes offsets",
        )


def _bytes(message: Taken) -> int:
    """The bytes that a record counts: at least one, so that any batch can be split by bytes."""
    headers = sum(len(name) + len(value or b"") for name, value in headers_of(message))
    return max(1, len(message.key() or b"") + len(message.value() or b"") + headers)
