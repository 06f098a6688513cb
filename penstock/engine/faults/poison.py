"""Records that make a batch fail: found, left out, and put aside as dead letters.

A transform is pure, so a batch that failed twice can be run on parts of its offsets, without output and state, until
the records are found. What is found is left out of the stream's query from its next start on, and is written aside in
the transaction of the batch: so once, and after a kill it is found again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.codec import columnar
from penstock.engine.checkpoint.recovery import damaged_checkpoint, is_unreadable_state
from penstock.engine.commit.rejected import RejectedRecords, batch_time, origin_headers
from penstock.engine.error_text import root_message
from penstock.engine.faults.batch_splitting import is_out_of_memory
from penstock.engine.faults.bisect import Bisection, Inconclusive, NoCulprit, RecordOrder, span_of
from penstock.engine.faults.corrupt_offsets import CorruptOffsets
from penstock.engine.faults.dry_run import DryRun, checkpoint_copy
from penstock.engine.jvm import bridge
from penstock.engine.query import decode, source
from penstock.engine.query.source import RecordPosition
from penstock.engine.state import fold
from penstock.engine.state.fold_store import begin_batch
from penstock.errors import Blocked, BrokerError, LeaseLost
from penstock.kafka.admin import admin, first_offsets
from penstock.kafka.log_corruption import find_corrupt_range
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.engine.commit.dead_letter_index import DeadLetterIndex
    from penstock.engine.faults.data_loss import InputChanges
    from penstock.engine.operations.reset import Reset
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

T = TypeVar("T")


class SearchingForPoison(Exception):
    """A batch is being taken apart."""


# Classes of errors that no record causes: of the broker, the disk, and what executors fetch from each other. The words
# may be a record's own.
INFRASTRUCTURE_ERROR = re.compile(
    r"org\.apache\.(kafka|spark\.(sql\.kafka010|shuffle|storage|rpc))\..*|io\.netty\..*|java\.nio\.channels\..*"
    r"|java\.io\.(IO|EOF|FileNotFound|UncheckedIO)Exception|java\.nio\.file\.(NoSuchFile|FileSystem|AccessDenied)Exception"
    r"|java\.net\.(Connect|Socket|SocketTimeout|NoRouteToHost|UnknownHost)Exception"
    r"|java\.util\.concurrent\.TimeoutException"
)
SPARK_ERROR = "org.apache.spark.SparkException"
# What Spark's own error begins with where executors were lost with their tasks or their shuffled rows.
EXECUTOR_LOST = re.compile(
    r"Job aborted due to stage failure: (Task \d+ in stage [\d.]+ failed \d+ times, most recent failure: Lost task "
    r"[\d.]+ in stage [\d.]+ \(TID \d+\) \([^()]*\): ExecutorLostFailure \(|\w*Stage \d+ \([^()]*\) has failed the "
    r"maximum allowable number of times)"
)
# Spark's reader of Kafka cannot get past a batch of the log that is broken.
CORRUPT_LOG = re.compile(
    r"fetching the next record from (?P<topic>\S+)-(?P<partition>\d+)\. If needed, please seek past"
)


@dataclass
class PoisonRecords:
    """What of one stream is in quarantine. rows: the encoded rows that the transform makes of frames by input's name.

    checkpoint: the URI of its own; told: is told why the stream stands still; left_out: the places of the records that
    the query is not to read, with the reason; reset: what the query began anew with; damage: of the log, behind which
    the next query is to go on.
    """

    stream: Stream
    spark: SparkSession
    bootstrap: str
    rows: Callable[[dict[str, DataFrame]], DataFrame]
    checkpoint: str
    told: Callable[[Exception], None]
    left_out: dict[RecordPosition, str] = field(default_factory=dict)
    reset: Reset | None = None
    damage: CorruptOffsets | None = None
    _failed: tuple[int, Any] | None = None
    _failures: int = 0
    _in_a_row: int = 0
    _blocked: Blocked | None = None

    def watch(self, batch: PlannedBatch, work: Callable[[], T], stopped: Callable[[], bool], *, written: bool) -> T:
        """What the work on a batch's rows gives; if it fails for the second time, the records that cause it are found.

        The error comes through all the same: Blocked if they are too many. written: whether a store has the batch.
        """
        try:
            return work()
        except Exception as e:
            if not stopped():
                self._note(batch, e, stopped, written=written)
            raise

    def _note(self, batch: PlannedBatch, error: Exception, stopped: Callable[[], bool], *, written: bool) -> None:
        if is_unreadable_state(error):
            raise damaged_checkpoint(self.stream.name, f"its state: {root_message(error)}") from error
        if self._failed != (batch.batch_id, batch.ends):
            self._failed, self._failures, self._blocked = (batch.batch_id, batch.ends), 0, None
        self._failures += 1
        if self._blocked:
            raise self._blocked from error
        if self._unreadable(batch, error, written=written):
            return
        # The second time, and then ever more seldom: it may be nobody's fault.
        if self._failures < 2 or self._failures & (self._failures - 1) or _is_infrastructure(error):
            return
        log.warning("stream %s: batch %d failed %d times; looking for records that cause it",
                    self.stream.name, batch.batch_id, self._failures)  # fmt: skip
        why = f"batch {batch.batch_id} is searched for records that make it fail: {root_message(error)}"
        self.told(SearchingForPoison(why))
        try:
            found = self._search(batch, stopped)
        except Inconclusive as e:
            log.warning("stream %s: no record makes batch %d fail: %s", self.stream.name, batch.batch_id, e)
            return
        except (Blocked, LeaseLost):
            raise
        except Exception as e:
            # What made the batch fail is to be told, not what happened in the search.
            log.warning("stream %s: no record was found: %s", self.stream.name, root_message(e))
            return
        self.left_out |= found
        self._in_a_row += len(found)
        for place, why in found.items():
            log.warning("stream %s: a record makes its batch fail and is put aside: %s",
                        self.stream.name, why, extra=place._asdict())  # fmt: skip

    def _unreadable(self, batch: PlannedBatch, error: Exception, *, written: bool) -> bool:
        """Whether the log is broken, and the next start goes on behind that; Blocked if it cannot."""
        said = [text for name, text in bridge.error_chain(error) if name.startswith("org.apache.kafka.")]
        if not (where := next(filter(None, map(CORRUPT_LOG.search, said)), None)):
            return False
        topic, partition = where["topic"], int(where["partition"])
        _, _, start, end = next(p for p in self._order(batch).parts if p[:2] == (topic, partition))
        found = None
        # Where its checksum fits, the other client does not get past it either, and says nothing.
        with suppress(BrokerError):
            # A batch that is written must be read as it was, for its state.
            found = None if written else find_corrupt_range(topic, partition, start, end, self.bootstrap)
        if not found:
            raise Blocked(
                f"stream {self.stream.name} cannot read what is broken in the broker's log",
                got=f"topic {topic}, partition {partition}, offsets {start} to {end - 1}: {said[-1][:300]}",
                hint="restore the partition from a replica; or go on behind these offsets, which are then lost, with "
                f"`penstock streams reset {self.stream.name} --to`, which takes offsets",
            ) from error
        why = f"its batch is broken in the broker's log, and what is left of it may be wrong: {said[-1][:200]}"
        self.damage = CorruptOffsets(topic, partition, found, why)
        log.error("stream %s: the broker's log is broken: offsets %d to %d are put aside",
                  self.stream.name, found[0], found[-1], extra={"topic": topic, "partition": partition})  # fmt: skip
        return True

    def _search(self, batch: PlannedBatch, stopped: Callable[[], bool]) -> dict[RecordPosition, str]:
        order = self._order(batch)
        try:
            return self._found(batch, order, self._fails, stopped)
        except Inconclusive as e:
            log.info("stream %s: %s; the batch is tried with the stream's state", self.stream.name, e)
        with checkpoint_copy(self.checkpoint) as copy:
            if copy is None:
                raise Inconclusive("the checkpoint is not on a local disk, so the batch cannot be run with its state")

            def fails(part: PlannedBatch, without: list[RecordPosition]) -> str:
                return self._fails_with_state(
                    part, without, DryRun(self.stream, copy, stopped, partial(begin_batch, self.spark, part))
                )

            try:
                return self._found(batch, order, fails, stopped)
            except NoCulprit as e:
                self._blocked = Blocked(
                    f"stream {self.stream.name}: what its transform makes of its state fails without a record to blame",
                    got=str(e),
                    hint="make the transform give a value or NULL there, by try_divide or TRY_CAST, and release app "
                    f"{self.stream.app}: it goes on with the state as it is, and nothing is lost",
                )
                raise self._blocked from e

    def _found(
        self,
        batch: PlannedBatch,
        order: RecordOrder,
        run: Callable[[PlannedBatch, list[RecordPosition]], str],
        stopped: Callable[[], bool],
    ) -> dict[RecordPosition, str]:
        left = list(self.left_out)

        def fails(count: int, without: frozenset[int]) -> str:
            if stopped():
                raise LeaseLost(f"stream {self.stream.name} is being stopped")
            return run(order.first(count, batch), [*left, *map(order.place, without)])

        most = max(0, self.stream.max_poison - self._in_a_row)
        found, all_of_them = Bisection(len(order), fails).found(most)
        if not all_of_them:
            said = next(iter(found.values()), "") or next(iter(self.left_out.values()), "")
            self._blocked = Blocked(
                f"stream {self.stream.name}: more records make their batches fail than are put aside in a row",
                got=f"more than {self.stream.max_poison}, up to batch {batch.batch_id}" + (f": {said}" if said else ""),
                hint=f"mend the transform and release app {self.stream.app}, or declare a larger max_poison=",
            )
            raise self._blocked
        if not found:
            raise Inconclusive("its records pass by themselves")
        return {order.place(number): why for number, why in found.items()}

    def _order(self, batch: PlannedBatch) -> RecordOrder:
        every = [(topic, p) for topic, parts in batch.ends.items() for p in parts]
        firsts = first_offsets(admin(self.bootstrap), every, self.bootstrap)
        known = {(topic, p): at for topic, parts in batch.starts.items() for p, at in parts.items()}
        starts = {at: max(known.get(at, 0), firsts.get(at, 0)) for at in every}
        return RecordOrder([(t, p, min(starts[t, p], batch.ends[t][p]), batch.ends[t][p]) for t, p in sorted(every)])

    def _fails(self, part: PlannedBatch, without: list[RecordPosition]) -> str:
        """Why a part of a batch fails; nothing if it passes. Unclear if it is not the records' fault."""
        frames = {}
        for name, given in self.stream.sources.items():
            raw = source.batch_records(self.spark, given, self.bootstrap, part, without)
            rows = decode.decode_records(raw, given, batch_time(part))
            rows = rows.where(~rows[columnar.BAD_COLUMN]).drop(columnar.BAD_COLUMN, columnar.SOURCE_RECORD_COLUMN)
            frames[name] = decode.drop_heartbeats(source.above_floor(rows, self.reset))
        # State with timers asks where states are kept, which is known once Spark manages streams.
        _ = self.spark.streams
        try:
            encoded = self.rows(frames)
        except Exception as e:
            raise Inconclusive(f"its transform cannot be run on parts: {root_message(e)}") from e
        try:
            encoded.write.format("noop").mode("append").save()
        except Exception as e:
            if _is_infrastructure(e):
                raise Inconclusive(root_message(e)) from e
            return root_message(e)
        return ""

    def _fails_with_state(self, part: PlannedBatch, without: list[RecordPosition], trial: DryRun) -> str:
        """As `_fails`, in a query of its own that goes on from the copy of the checkpoint."""
        of = self.stream
        frames = {
            name: source.input_stream(self.spark, of, name, self.bootstrap, without, part.ends, self.reset)
            for name in of.sources
        }
        with fold.use_checkpoint(of, str(trial.checkpoint)):
            made = self.rows(frames)
        trial.run(made)
        if trial.error is None:
            return ""
        if _is_infrastructure(trial.error):
            raise Inconclusive(root_message(trial.error))
        return root_message(trial.error)

    def forget(self, mended: InputChanges) -> None:
        """Drop the places behind which other records lie now."""
        for place in list(self.left_out):
            _, end = mended.logs.get(place[:2], (0, place.offset + 1))
            if place.topic in mended.gone or place.offset >= end:
                del self.left_out[place]

    def letters(self, batch: PlannedBatch, kept: DeadLetterIndex) -> RejectedRecords:
        """The records of a batch that were put aside, as their topics take them; not those that lie there already."""
        found = RejectedRecords()
        for place in list(self.left_out):
            if place.offset < batch.starts.get(place.topic, {}).get(place.partition, 0):
                # Its batch is behind; the next start reads without a filter.
                del self.left_out[place]
        mine = [p for p in self.left_out if p.offset < batch.ends.get(p.topic, {}).get(p.partition, 0)]
        if not mine:
            # Spark runs batches without records too.
            self._in_a_row = self._in_a_row if batch.starts == batch.ends else 0
            return found
        why: dict[tuple[str, int, int], str] = {place: self.left_out[place] for place in mine}
        found.first_reason = self.left_out[mine[0]]
        known: set[tuple[str, int, int]] = set()
        for given in self.stream.sources.values():
            rows = source.batch_records(self.spark, given, self.bootstrap, span_of(mine, batch))
            rows = rows.where(source.is_at(mine))
            target = given.dead_letter_topic or (None if given.schema else DEAD_LETTERS)
            for row in rows.select("topic", "partition", "offset", "key", "value").toLocalIterator():
                at = (row.topic, row.partition, row.offset)
                if at in known or kept.contains(row.asDict(), target.name if target else ""):
                    continue
                known.add(at)
                found.dead += 1
                if target:
                    headers = origin_headers(row.asDict(), self.stream.name, "reason", why[at], kept.topic_ids)
                    letter = {"key": row.key, "value": row.value, "headers": headers}
                    found.by_topic.setdefault(target.name, []).append(letter)
        return found


def _is_infrastructure(error: Exception) -> bool:
    """Whether no record can be its cause."""
    found = bridge.error_chain(error)
    if not found or is_out_of_memory(error) or is_unreadable_state(error):
        return True
    return any(
        INFRASTRUCTURE_ERROR.fullmatch(name) or (name == SPARK_ERROR and EXECUTOR_LOST.match(text))
        for name, text in found
    )
