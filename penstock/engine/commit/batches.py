"""A stream's batches on their way out: rows to the outputs, dead letters and late records beside them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.control.repositories.data_loss import DataLoss
from penstock.engine.checkpoint import plan_fingerprint
from penstock.engine.checkpoint.offset_log import BatchPlan
from penstock.engine.checkpoint.recovery import UnmarkedBatches
from penstock.engine.commit.async_writer import writer_counts
from penstock.engine.commit.delivery import BatchDelivery, OutputStore, merge_tables
from penstock.engine.commit.reject_budget import RejectBudget
from penstock.engine.commit.rejected import RejectFinder
from penstock.engine.faults.batch_splitting import BatchSplitter, is_out_of_memory
from penstock.engine.faults.data_loss import InputCheck
from penstock.engine.faults.poison import PoisonRecords
from penstock.engine.faults.poison_search import PoisonSearch
from penstock.engine.jvm.bridge import BatchExecution, fair_turn
from penstock.engine.operations.reset import Reset, activate_reset
from penstock.engine.query.encode import encode_rows, split_by_output
from penstock.engine.query.upstream import UpstreamProgress, open_upstream
from penstock.engine.query.watermark import Watermark
from penstock.engine.state.fold_store import fold_store
from penstock.errors import Blocked, DeclarationError, LeaseLost, PenstockError
from penstock.kafka.admin import admin, partition_counts, topic_ids
from penstock.model.output import NO_COMMIT, CommitMarker, Output, SideOutput, WriterOwner
from penstock.model.topic import COMMITS, DEAD_LETTERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.control.repositories.data_loss import DataLossLog
    from penstock.engine.checkpoint.layout import Checkpoint, PlannedBatch
    from penstock.engine.query.source import RecordPosition
    from penstock.engine.query.tables import StreamTables
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchResult:
    """What a batch came to. dead and late: records, kept or counted; offsets: the next ones of its inputs."""

    rows: int
    dead: int
    late: int
    offsets: dict[str, dict[int, int]]


class BatchCommitter:
    """Writes the batches of one stream, each to every store once or over itself.

    Stores without marks come first: so once a store with marks has a batch, all before it have it too. done: is told
    of each batch written; stands: why the stream stands still, a Wait where it is a store that asks for it, and None
    once it goes on. upstream_streams: the streams that write what it reads; None for all whose marks say so.
    """

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        bootstrap: str,
        checkpoint: Checkpoint,
        tables: StreamTables,
        book: DataLossLog,
        done: Callable[[BatchResult], None],
        stands: Callable[[Exception | None], None],
        upstream_streams: Collection[str] | None = None,
    ) -> None:
        self._stream, self._spark, self._bootstrap = stream, spark, bootstrap
        self._checkpoint, self._tables, self._done = checkpoint, tables, done
        self._stores: list[OutputStore] = []
        self._past: Counter[str] = Counter()
        # Counts never fall: else rates over them would be of what was never written.
        self._counting = threading.Lock()
        self._rejects: RejectFinder
        self._book, self._inputs = book, InputCheck(stream, bootstrap, checkpoint, book)
        self._watermark: Watermark
        self._fed_by = upstream_streams
        self._feeds: UpstreamProgress | None = None
        self.folds = fold_store(stream.name, spark, checkpoint.path)
        self.splitter = BatchSplitter(stream, spark, bootstrap, checkpoint)
        search = PoisonSearch(stream, spark, bootstrap, self._made, checkpoint.path)
        self._poison = PoisonRecords(stream, search, stands)
        # Held while a batch is written: a stop waits for it, so that no transaction is cut.
        self._writing = threading.Lock()
        self._stopping = threading.Event()
        self._untaken = RejectBudget(stream)
        self._giving = BatchDelivery(stream, bootstrap, self._stopping, stands, self._untaken)
        self._begun: float | None = None
        # A batch whose output had no answer, to be counted once it is known to be written: query, number, figures.
        self._unanswered: tuple[str, int, BatchResult] | None = None
        self.started_batch: int | None = None
        """The number of the batch that Spark gave last since it was opened."""
        self.reset: Reset | None = None
        """What it began anew with."""
        self.blocked: Blocked | None = None
        """Why the present query may not go on: Spark hands on no more than the error's text."""

    @property
    def committed(self) -> CommitMarker:
        """The mark of the last batch that is written."""
        return max((store.marker for store in self._stores), key=lambda mark: mark.batch, default=NO_COMMIT)

    @property
    def excluded(self) -> Collection[RecordPosition]:
        """Places of records that make their batch fail: the query is not to read them."""
        return self._poison.left_out

    def write_seconds(self) -> float:
        """See `Giving`."""
        return self._giving.write_seconds()

    def busy_for(self) -> float:
        """Seconds since Spark gave the present batch; 0 if there is none."""
        begun = self._begun
        return 0.0 if begun is None else time.monotonic() - begun

    def open(self) -> None:
        """Open the stores, which fences earlier writers of the same stream, and find what is written."""
        self._stopping.clear()
        self.started_batch = None
        self.blocked = None
        by_store: dict[Hashable, list[Output]] = {}
        outputs = [*self._stream.outputs.values(), *self._stream.side_outputs.values()]
        # Where there is no other topic, this one's writer keeps the mark: it tells a topic deleted and made again.
        outputs.append(SideOutput(DEAD_LETTERS))
        for output in sorted(outputs, key=lambda o: o.delivery == "exactly once"):
            by_store.setdefault(output.store, []).append(output)
        owner = WriterOwner(self._stream.name, self._stream.group, self._bootstrap)
        for shared in by_store.values():
            self._stores.append(OutputStore(shared, self._giving.open_writer(shared, owner), NO_COMMIT))
        self._topics_exist()
        for store in self._stores:
            store.marker = store.writer.committed()
            if any(output.name in self._stream.side_outputs for output in store.outputs):
                self._tables.load_progress(store.marker)
        reset = activate_reset(self._checkpoint, self.committed)
        self.reset = reset and reset.of(topic_ids(admin(self._bootstrap), reset.ids, self._bootstrap))
        self._fits()
        ids = self._mend()
        self._poison.left_out |= self.splitter.split_planned_batch(self.committed)
        self._poison.corrupt = self.splitter.unreadable_record or self._poison.corrupt
        self._rejects = RejectFinder(self._stream, self._spark, self._bootstrap, self.excluded, self.reset)
        self._rejects.index.topic_ids = ids
        self._poison.reset = self.reset
        self._skip_corrupt_offsets()
        planned = self._checkpoint.planned_batch()
        self._feeds = open_upstream(self._stream, self._bootstrap, self._fed_by, planned.batch_id if planned else -1)
        time = self.committed.event_time if self.committed.query == self._checkpoint.query_id else None
        self._watermark = Watermark(self._stream, self.splitter, self._feeds, time or 0)

    def quiesce(self, timeout: float) -> None:
        """Let no further batch begin, and wait for the present one."""
        # Spark's stop waits for the callback: that must find the flag, not a lock held here.
        self._stopping.set()
        if self._writing.acquire(timeout=timeout):
            self._writing.release()

    def close(self) -> None:
        with self._counting:
            stores, self._stores = self._stores, []
            self._past = sum((writer_counts(store.writer) for store in stores), self._past)
        for store in stores:
            store.writer.close()
        feeds, self._feeds = self._feeds, None
        if feeds:
            feeds.close()

    @property
    def store_status(self) -> dict[str, Any] | None:
        """Of a sink: its place, and what its writers have counted, also those that are closed."""
        outputs = [output for output in self._stream.outputs.values() if output.delivery != "exactly once"]
        if not outputs:
            return None
        with self._counting:
            counts = sum((writer_counts(store.writer) for store in self._stores), self._past)
        return {
            "place": ", ".join(output.name for output in outputs),
            "aside": [output.dead_letter_topic.name for output in outputs],
            **counts,
            "waits": self._giving.waits,
            "answered_at": self._giving.answered_at,
        }

    def _made(self, frames: dict[str, DataFrame]) -> DataFrame:
        """The encoded rows of some frames of the inputs: a batch, run apart from its query."""
        if self._stream.tables:
            frames = {name: frame.hint("shuffle_hash") for name, frame in frames.items()}
        return encode_rows(self._stream, self._stream.transform(**frames, **self._tables.frames(self._spark)))

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch of the encoded rows; Spark calls it."""
        self._begun = time.monotonic()
        try:
            self._write(frame, batch_id)
        except Exception as e:
            self.blocked = e if isinstance(e, Blocked) else None
            self.splitter.out_of_memory |= is_out_of_memory(e)
            raise
        finally:
            self._begun = None

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        with self._writing, fair_turn(self._spark):
            if not self._stores or self._stopping.is_set():
                raise LeaseLost(f"stream {self._stream.name} is being stopped")
            self.started_batch = batch_id
            query = self._query()
            self._tables.advance(str(query.id), batch_id, self._stopping.is_set)
            if self._feeds:
                self._feeds.begin_batch()
            batch, stopping = self._checkpoint.batch(batch_id), self._stopping.is_set
            todo = self._todo(str(query.id), batch)
            self.folds.begin_batch(batch)
            if not todo:
                # Its output is out already; the rows are consumed all the same, so that the state is committed.
                self._poison.watch(batch, frame.write.format("noop").mode("append").save, stopping, written=True)
                self.folds.commit_batch(batch)
                self._watermark.cap(batch, BatchExecution.last_of(query))
                self._checkpoint.sync()
                if self._unanswered and self._unanswered[:2] == (str(query.id), batch_id):
                    self._done(self._unanswered[2])
                self._unanswered = None
                log.info("stream %s: batch %d was written before the restart", self._stream.name, batch_id)
                return
            ids = self._rejects.index.topic_ids = self._inputs.check_before(batch, self.committed, str(query.id))
            written = len(todo) < len(self._stores)
            rows = split_by_output(self._stream, self._poison.watch(batch, frame.toArrow, stopping, written=written))
            self.folds.commit_batch(batch)
            come = self._watermark.cap(batch, BatchExecution.last_of(query))
            fed = self._feeds.fed_inputs if self._feeds else ()
            rejects = self._rejects.find(batch, BatchExecution.last_of(query), late=self.folds.has_late_rows(), fed=fed)
            rejects += self._poison.dead_letters(batch, self._rejects.index)
            self._inputs.check_after(batch)
            # Nobody takes them where the store that does has this batch already.
            takes = any(output.name in self._stream.side_outputs for store in todo for output in store.outputs)
            of_tables, dead, first = self._tables.unwritten_dead_letters() if takes else ({}, 0, "")
            known = self.committed.offsets
            of_marks = self._tables.offsets if takes else {t: known[t] for t in self._tables.ids if t in known}
            writes = tuple(topic.name for topic in self._stream.output_topics)
            mark = CommitMarker(
                str(query.id), batch_id, {**batch.ends, **of_marks}, {**ids, **self._tables.ids}, batch.plans,
                self._checkpoint.copy_id, batch.starts, writes, come,
                self._stream.output_mode.heartbeat_schedule is not None,
            )  # fmt: skip
            self._checkpoint.sync()
            beside = merge_tables(rejects.tables, of_tables)
            self._untaken.begin_batch()
            taken, refused = sum(table.num_rows for table in rows.values()), 0
            written_so = BatchResult(taken, rejects.dead + dead, rejects.late, batch.ends)
            self._unanswered = (str(query.id), batch_id, written_so)
            for store in todo:
                refused += self._giving.deliver(store, rows, beside, mark, self._rejects.index)
                store.marker = mark
            if takes:
                self._tables.dead_letters_written()
            self._unanswered = None
            taken = sum(table.num_rows for table in rows.values())
            self._untaken.batch_written(taken)
            self._done(replace(written_so, rows=taken, dead=rejects.dead + dead + refused))
            if rejects.dead or dead:
                log.warning(
                    "stream %s: %d records of batch %d are put aside, the first: %s",
                    self._stream.name, rejects.dead + dead, batch_id, rejects.first_reason or first,
                )  # fmt: skip

    def _todo(self, query: str, batch: PlannedBatch) -> list[OutputStore]:
        """The stores that may not have the batch yet."""
        for place, store in reversed(list(enumerate(self._stores))):
            if store.marker.query == query and self._has(store.marker, batch):
                return self._stores[place + 1 :]
        return self._stores

    def _has(self, mark: CommitMarker, batch: PlannedBatch) -> bool:
        """Whether a batch is written. PenstockError if it neither is the one behind the mark nor one that is written.

        The number alone does not tell: a log that lost its end plans other records under the same one.
        """
        plan = BatchPlan.read(mark.plans.get(batch.batch_id, ""))
        if plan and plan.sources == batch.plan.sources:
            return True
        before = BatchPlan.read(mark.plans.get(mark.batch, ""))
        if mark.batch == batch.batch_id - 1 and (
            before is None or (batch.before and before.sources == batch.before.sources)
        ):
            return False
        raise PenstockError(
            f"stream {self._stream.name}: batch {batch.batch_id} was planned with other offsets than are written",
            got=f"the mark is of batch {mark.batch}",
            hint="nothing: the query starts again from what its mark says",
        )

    def _topics_exist(self) -> None:
        """Say which topic is missing, instead of a source that waits for it or an output that is made by chance."""
        there = partition_counts(admin(self._bootstrap), self._bootstrap)
        wanted = {topic.name for topic in self._stream.topics()}
        if missing := sorted(wanted - there.keys()):
            if deleted := self._inputs.deleted_topics(missing):
                raise deleted
            raise DeclarationError(
                f"stream {self._stream.name} needs topics the broker does not have",
                got=", ".join(missing),
                hint=self._stream.create_hint,
            )

    def _fits(self) -> None:
        """See that the checkpoint is that of the mark; one without a mark is marked once somebody has accepted it."""
        stateful, name = self._stream.stateful_steps > 0, self._stream.name
        try:
            self._checkpoint.recover(
                self.committed,
                stateful=stateful,
                restores=lambda: plan_fingerprint.can_rebuild(self._stream, self._spark, self._bootstrap),
            )
        except UnmarkedBatches as e:
            query = self._checkpoint.query_id
            gap = DataLoss(COMMITS.name, "unmarked", start=self.committed.batch + 1, end=e.ended + 1, topic_id=query)
            if gap not in self._book.report_data_loss(name, [gap]):
                raise
            ends, _ = self._checkpoint.pending_offsets()
            mark = CommitMarker(
                query, e.ended, ends, {}, self._checkpoint.batch(e.ended).plans, self._checkpoint.copy_id
            )
            for store in self._stores:
                if store.keeps_markers:
                    store.writer.write({}, mark)
                    store.marker = mark
            self._book.pass_data_loss(name, [gap])
            self._checkpoint.recover(mark, stateful=stateful)

    def _mend(self) -> Mapping[str, str]:
        """Let reading go on behind gaps that may be passed, and return the broker's ids of the topics that are there.

        Offsets go into the marks first, and what a mark says of another topic goes last: to die in between leaves what
        shows the gap once more.
        """
        mended = self._inputs.check_at_start(self.committed)
        if mended.gone or mended.logs:
            self._poison.forget(mended)
            # Meanwhile the mark holds no plans: it would say that the log is another's.
            self._remark(lambda mark: replace(mended.within(mark), plans={}))
            self._checkpoint.replace_offsets(
                lambda topic, partition, at: None if topic in mended.gone else mended.offset(topic, partition, at)
            )
            self._checkpoint.sync()
            self._remark(lambda mark: replace(mark, plans=self._checkpoint.batch(mark.batch).plans))
        self._remark(mended.without)
        return mended.ids

    def _remark(self, change: Callable[[CommitMarker], CommitMarker]) -> None:
        query = self._checkpoint.query_id
        for store in self._stores:
            if query and store.marker.query == query and (fresh := change(store.marker)) != store.marker:
                store.writer.write({}, fresh)
                store.marker = fresh

    def _skip_corrupt_offsets(self) -> None:
        """Let reading go on behind what is broken in the log, which is put aside with the mark that says so.

        A batch that begins before it first ends there.
        """
        found, batch = self._poison.corrupt, self._checkpoint.planned_batch()
        self._poison.corrupt = None
        if found is None or batch is None:
            return
        start = batch.starts.get(found.topic, {}).get(found.partition)
        if start is None or start < found.offsets.start:
            self.splitter.shorten(batch, found.topic, found.partition, found.offsets.start)
            return
        query, ids = self._checkpoint.query_id, self._rejects.index.topic_ids
        beside = found.dead_letters(self._stream, self._rejects.index, self._bootstrap)
        for store in self._stores:
            if not store.keeps_markers:
                continue
            mine = store.marker.query == query
            mark = (
                store.marker
                if mine
                else CommitMarker(query, -1, batch.starts, ids, checkpoint=self._checkpoint.copy_id)
            )
            # As if it had died behind this, it finds that it has passed.
            if (fresh := replace(found.skip_marker(mark), plans={})).offsets != mark.offsets:
                self._giving.deliver(store, {}, beside.tables, fresh, self._rejects.index)
                store.marker = fresh
        self._checkpoint.replace_offsets(found.skip)
        self._checkpoint.sync()
        self._remark(lambda mark: replace(mark, plans=self._plans(mark.batch)))
        self._done(BatchResult(0, beside.dead, 0, self._checkpoint.pending_offsets()[0]))

    def _plans(self, batch_id: int) -> dict[int, str]:
        return self._checkpoint.batch(batch_id).plans if batch_id >= 0 else {}

    def _query(self) -> StreamingQuery:
        # The callback may run before the query's start() has returned.
        return next(query for query in self._spark.streams.active if query.name == self._stream.name)
