"""A batch that the driver's memory does not hold, made smaller, until the stream is through.

Spark bounds a batch by the number of its records alone, and a record may have a megabyte. So when memory was full, of
the JVM or of a Python worker, the batch that was planned is cut by bytes, as they are read off the log, and all that it
held is read in batches of no more records than its first piece has. One of these that fails is cut likewise, down to
one record, which is put aside in the end.
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
from penstock.kafka.dead_letters import open_consumer, read_range

if TYPE_CHECKING:
    from collections.abc import Collection

    from confluent_kafka import Message as Taken
    from pyspark.sql import SparkSession

    from penstock.engine.checkpoint.layout import Checkpoint, PlannedBatch
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.model.output import CommitMarker
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# Of a batch the JVM has several copies at a time: of records, rows, and results on their way to Python.
HEAP_DIVISOR = 16
SPLIT_FACTOR = 64
# A record of less than such a part of the heap is blamed only after more failures: a JVM that ends for want of memory
# does not say which of its streams took it.
SMALL_DIVISOR, SMALL_RECORD_FAILURES = 1000, 5
# What is thrown where memory is short and the JVM can go on. Text is looked at of Spark's own errors only.
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
    """Whether a query failed because memory was full, of the JVM or of a worker, which then ends without a word."""
    found = bridge.error_chain(error) if error is not None else []
    return any(
        MEMORY_ERROR.fullmatch(name)
        or (name == "org.apache.spark.SparkException" and MEMORY_MESSAGE.search(text[:2000]))
        for name, text in found
    )


class RecordsSize(NamedTuple):
    """Of records: how many, their bytes, and the place of the last."""

    records: int
    bytes: int
    last: RecordPosition | None


@dataclass(frozen=True)
class SplitLevel:
    """upto: next offsets of a batch that memory did not hold; records: the most of a batch until they are read, 0 for
    no limit."""

    upto: TopicOffsets
    records: int

    def holds(self, ends: TopicOffsets) -> bool:
        """Whether something of that batch lies behind these next offsets; of a topic that is gone nothing does."""
        return any(ends.get(t, {}).get(p, at) < at for t, parts in self.upto.items() for p, at in parts.items())


@dataclass(frozen=True)
class SplitState:
    """levels: each within the one before. batch: the number of that which failed last, as it is planned, so many times.
    heap: what the JVM had, in bytes; without: records of that batch that are left out."""

    heap: int
    levels: tuple[SplitLevel, ...] = ()
    batch: int = -1
    times: int = 0
    without: tuple[RecordPosition, ...] = ()

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str | None, heap: int) -> SplitState:
        """As if nothing had happened if there is none, or it is damaged: then memory will be full once more."""
        try:
            found = json.loads(text or "")
            levels = tuple(
                SplitLevel(
                    {t: {int(p): at for p, at in parts.items()} for t, parts in one["upto"].items()}, one["records"]
                )
                for one in found["levels"]
            )
            made = cls(**found | {"levels": levels, "without": tuple(RecordPosition(*at) for at in found["without"])})
        except (ValueError, TypeError, KeyError):
            return cls(heap)
        return made if made.heap == heap else replace(made, heap=heap, times=0, without=())


class BatchSplitter:
    """The portions of one stream's batches. short: whether memory was full since its last start."""

    def __init__(self, stream: Stream, spark: SparkSession, bootstrap: str, checkpoint: Checkpoint) -> None:
        self._stream, self._bootstrap, self._checkpoint = stream, bootstrap, checkpoint
        self._now = SplitState(bridge.max_heap_bytes(spark))
        self.out_of_memory = False
        self.unreadable_record: CorruptOffsets | None = None
        """A record that memory does not even hold to pass over it: the next query is to begin behind it."""

    @property
    def max_records(self) -> int:
        """Records of a batch, 0 for no limit."""
        limits = (self._stream.max_records, *(level.records for level in self._now.levels))
        return min(filter(None, limits), default=0)

    def is_split(self, batch: PlannedBatch) -> bool:
        """Whether something waits that was planned with what a batch holds."""
        return any(level.holds(batch.ends) for level in self._now.levels)

    def finish(self, read: TopicOffsets) -> bool:
        """Whether batches may be larger now, by the next offsets that are read: so from the next start on."""
        levels = tuple(level for level in self._now.levels if level.holds(read))
        if not read or levels == self._now.levels:
            return False
        log.warning("stream %s is through a batch that was cut", self._stream.name)
        self._keep(SplitState(self._now.heap, levels))
        return True

    def split_planned_batch(self, mark: CommitMarker) -> dict[RecordPosition, str]:
        """Cut the batch that is planned, if memory was full; the records that it is to be run without, and why.

        Blocked if there is nothing left to cut. mark: of the last batch written. The query must not run.
        """
        self._now, self.unreadable_record = SplitState.read(self._checkpoint.batch_split(), self._now.heap), None
        batch = self._checkpoint.planned_batch()
        written = mark.batch if mark.query == self._checkpoint.query_id else -1
        # One that is written must be read whole, for its state.
        if self.out_of_memory and batch is not None and batch.batch_id > written:
            self._cut(batch)
        self.out_of_memory = False
        return dict.fromkeys(self._now.without, self._why)

    @property
    def _why(self) -> str:
        return f"the driver's memory ({self._now.heap >> 20} MiB) does not hold what is made of it, even by itself"

    def shorten(self, batch: PlannedBatch, topic: str, partition: int, at: int) -> None:
        """Let a batch that is planned, and of which nothing is written, end earlier in one partition."""
        if not self.is_split(batch):
            self._keep(replace(self._now, levels=(*self._now.levels, SplitLevel(batch.ends, 0))))
        self._checkpoint.shorten_batch(batch, {topic: {partition: at}})

    def _cut(self, batch: PlannedBatch) -> None:
        now, levels = self._now, self._now.levels
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
            # To leave it out it must be read: not even that can be done.
            self.unreadable_record = CorruptOffsets(
                heavy.topic, heavy.partition, range(heavy.offset, heavy.offset + 1), self._why
            )
            times, without = 0, ()
        elif times > (1 if size > now.heap // SMALL_DIVISOR else SMALL_RECORD_FAILURES) and count == 1:
            without = (*without, *(one.last for one in sizes if one.last))
        # Once may be another stream's fault.
        levels = levels or (SplitLevel(batch.ends, 0),)
        log.warning(
            "stream %s: the driver's memory was full in batch %d, of %d records and %d bytes%s",
            self._stream.name, batch.batch_id, count, size,
            "; its record is put aside" if without or self.unreadable_record else "; it is cut" if times == 0 else "",
        )  # fmt: skip
        self._keep(replace(now, levels=levels, batch=batch.batch_id, times=times, without=without))

    def _keep(self, state: SplitState) -> None:
        self._checkpoint.save_batch_split(state.text() if state.levels else "")
        self._now = state

    def _starts(self, batch: PlannedBatch) -> dict[tuple[str, int], int]:
        every = [(topic, p) for topic, parts in batch.ends.items() for p in parts]
        firsts = first_offsets(admin(self._bootstrap), every, self._bootstrap)
        return {(t, p): max(batch.starts.get(t, {}).get(p, 0), firsts.get((t, p), 0)) for t, p in every}

    def _size(
        self, topic: str, partition: int, start: int, end: int, without: Collection[RecordPosition]
    ) -> RecordsSize:
        records = size = 0
        last = None
        with open_consumer(self._bootstrap) as reader:
            for message in read_range(reader, topic, partition, start, end):
                place = RecordPosition(topic, partition, message.offset() or 0)
                if place not in without:
                    records, size, last = records + 1, size + _bytes(message), place
        return RecordsSize(records, size, last)

    def _ends(self, batch: PlannedBatch, starts: dict[tuple[str, int], int], share: int) -> TopicOffsets:
        """Where each partition ends if it gives no more than its share of bytes; all of them together a record."""
        ends: TopicOffsets = {}
        anything = False
        with open_consumer(self._bootstrap) as reader:
            for (topic, partition), start in starts.items():
                end, left = batch.ends[topic][partition], share
                for message in read_range(reader, topic, partition, start, end):
                    left -= _bytes(message)
                    if left < 0 and anything:
                        end = message.offset() or 0
                        break
                    anything = True
                ends.setdefault(topic, {})[partition] = end
        return ends

    def _blocked(self, batch: PlannedBatch, without: Collection[RecordPosition]) -> Blocked:
        what = "a record that is put aside" if without else "its state alone"
        return Blocked(
            f"stream {self._stream.name}: the driver's memory does not hold batch {batch.batch_id}, and nothing of it "
            "is left to cut",
            got=f"{self._now.heap >> 20} MiB, filled by {what}"
            + "".join(f": {place.topic}[{place.partition}]@{place.offset}" for place in without),
            hint=f"give drivers more, PENSTOCK_DRIVER_MEMORY, and release app {self._stream.app}: it goes on where it "
            f"is; or go past it by `penstock streams reset {self._stream.name} --to`, which takes offsets",
        )


def _bytes(message: Taken) -> int:
    return len(message.key() or b"") + len(message.value() or b"")
