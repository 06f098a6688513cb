"""Commits the batches of one stream: rows to the outputs, and dead letters and late records to their topics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.control.repositories.data_loss import DataLoss
from penstock.engine.checkpoint import cut_rows, plan_fingerprint
from penstock.engine.checkpoint.recovery import UnmarkedBatches
from penstock.engine.commit.batch_output import BatchOutput, CommittedBatch
from penstock.engine.commit.checked_rows import CheckedRows
from penstock.engine.commit.delivery import BatchDelivery, OutputStore, merge_tables
from penstock.engine.commit.output_stores import OutputStores
from penstock.engine.commit.reject_budget import RejectBudget
from penstock.engine.commit.rejected import RejectFinder
from penstock.engine.faults.batch_splitting import BatchSplitter, is_out_of_memory
from penstock.engine.faults.data_loss import InputCheck
from penstock.engine.faults.poison import PoisonRecords
from penstock.engine.faults.poison_search import PoisonSearch
from penstock.engine.jvm.bridge import BatchExecution, fair_turn
from penstock.engine.operations.reset import Reset, activate_reset, follow_topics
from penstock.engine.query.encode import encode_rows, split_by_output
from penstock.engine.query.heartbeat_batches import HeartbeatBatches
from penstock.engine.query.tables import BatchIdentity
from penstock.engine.query.upstream import UpstreamProgress, open_upstream
from penstock.engine.query.watermark import Watermark
from penstock.engine.state.fold_store import fold_store
from penstock.errors import Blocked, LeaseLost
from penstock.model.output import CommitMarker
from penstock.model.topic import COMMITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.control.repositories.data_loss import DataLossLog
    from penstock.engine.checkpoint.layout import Checkpoint, PlannedBatch
    from penstock.engine.faults.corrupt_offsets import CorruptOffsets
    from penstock.engine.query.source import RecordPosition
    from penstock.engine.query.tables import StreamTables
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)


class BatchCommitter:
    """Commits the batches of one stream: each reaches every store once, or replaces itself there.

    Args:
        stream: the stream.
        spark: the stream's own session.
        bootstrap: the brokers.
        checkpoint: the checkpoint of the stream's query.
        tables: the tables that the stream joins.
        data_losses: where data loss is reported and accepted.
        on_commit: called after each committed batch.
        on_stall: called with the reason why the stream is stalled (`Wait` if a store asked to back off), and with None
            when it resumes.
        upstream_streams: the streams that write the inputs; None for all whose commit markers say so.
        out_of_memory: whether the stream's last driver ran out of memory.
    """

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        bootstrap: str,
        checkpoint: Checkpoint,
        tables: StreamTables,
        data_losses: DataLossLog,
        on_commit: Callable[[CommittedBatch], None],
        on_stall: Callable[[Exception | None], None],
        upstream_streams: Collection[str] | None = None,
        *,
        out_of_memory: bool = False,
    ) -> None:
        self._stream, self._spark, self._bootstrap = stream, spark, bootstrap
        self._checkpoint, self._tables, self._on_commit = checkpoint, tables, on_commit
        self._data_losses, self._inputs = data_losses, InputCheck(stream, bootstrap, checkpoint, data_losses)
        self._upstream_streams, self._stores = upstream_streams, OutputStores(stream, bootstrap)
        self._upstream: UpstreamProgress | None = None
        self._rejects: RejectFinder
        self._watermark: Watermark
        self.folds = fold_store(stream.name, spark, checkpoint.path)
        self._splitter = BatchSplitter(stream, spark, bootstrap, checkpoint, out_of_memory=out_of_memory)
        self._heartbeats = HeartbeatBatches(stream, spark, bootstrap, self._splitter)
        search = PoisonSearch(stream, spark, bootstrap, self._rows_of_inputs, checkpoint)
        self._poison = PoisonRecords(stream, search, on_stall)
        # Held while a batch is committed: a stop waits for it, so that no transaction is aborted.
        self._committing = threading.Lock()
        self._stopping = threading.Event()
        self._budget = RejectBudget(stream)
        self._delivery = BatchDelivery(stream, bootstrap, self._stopping, on_stall, self._budget)
        self._started_at: float | None = None
        # A batch whose delivery had no answer: query, number, and what to report once it is known to be written.
        self._unanswered: tuple[str, int, CommittedBatch] | None = None
        self.started_batch: int | None = None
        """Number of the last batch that Spark started since `open`."""
        self.reset: Reset | None = None
        """The reset that the present query began with."""
        self.blocked: Blocked | None = None
        """Why the present query cannot continue: Spark hands on the text of an error only."""

    @property
    def committed(self) -> CommitMarker:
        """The marker of the last batch that is written."""
        return self._stores.committed

    @property
    def excluded(self) -> Collection[RecordPosition]:
        """Positions of poison records, which the query does not read."""
        return self._poison.left_out

    @property
    def max_records(self) -> int:
        """Records of a batch, 0 for no limit."""
        return self._splitter.max_records

    def can_grow(self, offsets: dict[str, dict[int, int]]) -> bool:
        """Whether a split batch has been read, so that a restarted query takes larger batches."""
        return self._splitter.finish(offsets)

    def write_seconds(self) -> float:
        """Seconds since the delivery of the present batch to a store with markers began; 0 if there is none."""
        return self._delivery.write_seconds()

    def busy_for(self) -> float:
        """Seconds since Spark started the present batch; 0 if there is none."""
        started_at = self._started_at
        return 0.0 if started_at is None else time.monotonic() - started_at

    def store_status(self) -> dict[str, Any] | None:
        """For a sink: its store, and what its writers have counted; None for other streams."""
        return self._delivery.status(self._stores.counts())

    def open(self) -> None:
        """Open the stores, which fences earlier writers of the same stream, and bring the checkpoint in line with them.

        The query must not run.
        """
        self._stopping.clear()
        self.started_batch = self.blocked = None
        self._stores.open(self._delivery.open_writer)
        self._inputs.check_topics_exist()
        self._stores.read_markers()
        for store in self._stores.stores:
            if self._takes_dead_letters(store):
                self._tables.load_progress(store.marker)
        self.reset = activate_reset(self._checkpoint, self.committed)
        self._recover_checkpoint()
        ids = self._skip_lost_offsets()
        self.reset = self.reset and follow_topics(self.reset, self._checkpoint, self._bootstrap, ids)
        split = self._splitter.split_planned_batch(self.committed)
        corrupt = self._poison.restart(self.reset, split, self._splitter.unreadable_record)
        self._rejects = RejectFinder(self._stream, self._spark, self._bootstrap, self.excluded, self.reset, ids)
        if corrupt is not None:
            self._skip_corrupt_offsets(corrupt)
        planned = self._checkpoint.planned_batch()
        self._upstream = open_upstream(
            self._stream, self._bootstrap, self._upstream_streams, planned.batch_id if planned else -1
        )
        committed = self.committed
        continued = self.reset.continues if self.reset else None
        goes_on = committed.query == self._checkpoint.query_id or continued == (committed.query, committed.batch)
        came_to = (committed.event_time or 0) if goes_on else 0
        self._watermark = Watermark(self._stream, self._splitter, self._upstream, came_to)

    def quiesce(self, timeout: float) -> None:
        """Let no further batch begin, and wait for the present one, for so many seconds at most."""
        # Spark's stop waits for the callback: that must find the flag, not a lock held here.
        self._stopping.set()
        if self._committing.acquire(timeout=timeout):
            self._committing.release()

    def close(self) -> None:
        """Close the stores, and what reads topics."""
        self._stores.close()
        self._heartbeats.close()
        upstream, self._upstream = self._upstream, None
        if upstream:
            upstream.close()

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Commit one batch of encoded rows. Spark calls it by `foreachBatch`."""
        self._started_at = time.monotonic()
        try:
            with self._committing, fair_turn(self._spark):
                if not self._stores.stores or self._stopping.is_set():
                    raise LeaseLost(f"stream {self._stream.name} is being stopped")
                self._run_batch(frame, batch_id)
        except Exception as e:
            self.blocked = e if isinstance(e, Blocked) else None
            if is_out_of_memory(e):
                self._splitter.note_out_of_memory()
            raise
        finally:
            self._started_at = None

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        """The steps of a batch, in their order."""
        self.started_batch = batch_id
        query = self._query()
        query_id = str(query.id)
        self._heartbeats.watch(query)
        batch = self._checkpoint.batch(batch_id)
        pending = self._stores.pending(query_id, batch)
        partly_written = len(pending) < len(self._stores.stores)
        # 1. Make what the batch reads, its tables and its folds' state, that of this batch.
        self._tables.advance(BatchIdentity.of(query_id, batch, is_written=partly_written), self._stopping.is_set)
        if self._upstream:
            self._upstream.begin_batch()
        self.folds.begin_batch(batch)
        if not pending:
            self._rerun_for_state(frame, batch, query)
            return
        # 2. Ask the broker for the records before they are read: Spark skips records that were deleted.
        ids = self._inputs.check_before(batch, self.committed, query_id)
        self._rejects.index.update_topic_ids(ids)
        # 3. Compute the rows.
        computed = self._poison.watch(batch, frame.toArrow, self._stopping.is_set, written=partly_written)
        rows = CheckedRows.of(self._stream, split_by_output(self._stream, computed))
        if self.reset and self.reset.cut_batch == batch_id:
            rows = replace(rows, by_output=cut_rows.read(self._checkpoint.path, self._stream, rows.by_output))
        self.folds.commit_batch(batch)
        # 4. Move the watermark, before Spark ends the batch.
        execution = BatchExecution.last_of(query)
        event_time = self._watermark.cap(batch, execution)
        if self.reset and self.reset.cut_batch == batch_id:
            execution.move_watermark(self.reset.cut_watermark)
        # 5. Find the records that did not reach the rows: bad ones, late ones, poison.
        output = self._with_rejected(rows, batch, execution, pending)
        # 6. Ask the broker again: records may have been deleted while they were read.
        self._inputs.check_after(batch)
        marker = self._marker(query_id, batch, ids, event_time, output)
        # 7. Bring the checkpoint to the disk before the output becomes visible.
        self._checkpoint.sync()
        # 8. Deliver to each store, those with commit markers last.
        self._deliver(output, batch, marker, pending)

    def _rerun_for_state(self, frame: DataFrame, batch: PlannedBatch, query: StreamingQuery) -> None:
        """Compute a batch that is written already, so that Spark commits its state."""
        consume = frame.write.format("noop").mode("append").save
        self._poison.watch(batch, consume, self._stopping.is_set, written=True)
        self.folds.commit_batch(batch)
        self._watermark.cap(batch, BatchExecution.last_of(query))
        self._checkpoint.sync()
        if self._unanswered and self._unanswered[:2] == (str(query.id), batch.batch_id):
            self._on_commit(self._unanswered[2])
        self._unanswered = None
        log.info("stream %s: batch %d was written before the restart", self._stream.name, batch.batch_id)

    def _with_rejected(
        self, rows: CheckedRows, batch: PlannedBatch, execution: BatchExecution, pending: list[OutputStore]
    ) -> BatchOutput:
        """The rows of a batch with the dead letters and late records that belong to it."""
        fed_inputs = self._upstream.fed_inputs if self._upstream else ()
        rejected = self._rejects.find(batch, execution, late_rows=self.folds.late_rows, upstream_inputs=fed_inputs)
        rejected += self._poison.dead_letters(batch, self._rejects.index)
        # If the store that takes dead letters already has this batch, its dead letters are written.
        takes_dead_letters = any(map(self._takes_dead_letters, pending))
        table_letters, table_dead, first_reason = (
            self._tables.unwritten_dead_letters() if takes_dead_letters else ({}, 0, "")
        )
        row_letters = rows.dead_letters(self._stream, self._bootstrap, self._rejects.index)
        return BatchOutput(
            rows.by_output, merge_tables(rejected.tables, table_letters, row_letters), rejected,
            table_dead + rows.dead_count, rejected.first_reason or first_reason or rows.first_reason,
            takes_dead_letters, rows.violations,
        )  # fmt: skip

    def _marker(
        self, query_id: str, batch: PlannedBatch, ids: Mapping[str, str], event_time: int | None, output: BatchOutput
    ) -> CommitMarker:
        """The commit marker that the batch is written with."""
        written, table_ids = self.committed.offsets, self._tables.ids
        of_tables = (
            self._tables.offsets if output.takes_dead_letters else {t: written[t] for t in table_ids if t in written}
        )
        return CommitMarker(
            query_id, batch.batch_id, {**batch.ends, **of_tables}, {**ids, **table_ids}, batch.plans,
            self._checkpoint.copy_id, batch.starts, tuple(t.name for t in self._stream.output_topics), event_time,
            self._stream.output_mode.heartbeat_schedule is not None,
            *((*self.reset.recomputes, self.reset.earlier) if self.reset else ()),
        )  # fmt: skip

    def _deliver(
        self, output: BatchOutput, batch: PlannedBatch, marker: CommitMarker, pending: list[OutputStore]
    ) -> None:
        """Deliver a batch to the pending stores, and report it."""
        self._budget.begin_batch()
        committed = CommittedBatch(output.row_count, output.dead, output.rejected.late, batch.ends, output.violations)
        self._unanswered = (marker.query, batch.batch_id, committed)
        refused = sum(
            self._delivery.deliver(store, output.rows, output.side_rows, marker, self._rejects.index)
            for store in pending
        )
        if output.takes_dead_letters:
            self._tables.dead_letters_written()
        self._unanswered = None
        self._budget.batch_written(output.row_count)
        self._on_commit(replace(committed, rows=output.row_count, dead=output.dead + refused))
        if output.dead:
            log.warning("stream %s: batch %d has %d dead letters, the first: %s",
                        self._stream.name, batch.batch_id, output.dead, output.first_reason)  # fmt: skip

    def _takes_dead_letters(self, store: OutputStore) -> bool:
        return any(output.name in self._stream.side_outputs for output in store.outputs)

    def _rows_of_inputs(self, frames: dict[str, DataFrame]) -> DataFrame:
        """The encoded rows of frames by input name: a batch that runs apart from the query."""
        if self._stream.tables:
            frames = {name: frame.hint("shuffle_hash") for name, frame in frames.items()}
        return encode_rows(self._stream, self._stream.transform(**frames, **self._tables.frames(self._spark)))

    def _recover_checkpoint(self) -> None:
        """Bring the checkpoint in line with the commit marker.

        A checkpoint with batches but no marker gets a marker once an operator has accepted it.
        """
        stateful, name = self._stream.stateful_steps > 0, self._stream.name
        try:
            self._checkpoint.recover(
                self.committed,
                stateful=stateful,
                restores=lambda: plan_fingerprint.can_rebuild(self._stream, self._spark, self._bootstrap),
            )
        except UnmarkedBatches as e:
            query = self._checkpoint.query_id
            loss = DataLoss(COMMITS.name, "unmarked", start=self.committed.batch + 1, end=e.ended + 1, topic_id=query)
            if loss not in self._data_losses.report_data_loss(name, [loss]):
                raise
            ends, _ = self._checkpoint.pending_offsets()
            plans = self._checkpoint.batch(e.ended).plans
            marker = CommitMarker(query, e.ended, ends, {}, plans, self._checkpoint.copy_id)
            for store in self._stores.stores:
                if store.keeps_markers:
                    store.write_marker(marker)
            self._data_losses.pass_data_loss(name, [loss])
            self._checkpoint.recover(marker, stateful=stateful)

    def _skip_lost_offsets(self) -> Mapping[str, str]:
        """Continue after data loss that was accepted, and return the broker's ids of the present topics.

        Offsets go into the markers first, plans and topic ids last: a driver that dies in between finds the loss
        again, or a marker without plans. By its plans a batch that is written is known, so each start restores them.
        """
        changes = self._inputs.check_at_start(self.committed, self.reset.ids if self.reset else {})
        if changes.gone or changes.logs:
            self._poison.forget(changes)
            self._splitter.forget(changes)
            # Meanwhile a marker has no plans: they would say that the offset log is another's.
            self._replace_markers(lambda marker: replace(changes.within(marker), plans={}))
            self._checkpoint.replace_offsets(changes.mapping, self.committed)
            self._checkpoint.sync()
        self._replace_markers(lambda marker: changes.without(marker if marker.plans else self._with_plans(marker)))
        return changes.ids

    def _skip_corrupt_offsets(self, corrupt: CorruptOffsets) -> None:
        """Continue after corrupt offsets; the marker that says so is written with their dead letters.

        A batch that begins before them is shortened to end there.
        """
        if (batch := self._checkpoint.planned_batch()) is None:
            return
        if batch.starts.get(corrupt.topic, {}).get(corrupt.partition, -1) < corrupt.offsets.start:
            self._splitter.shorten(batch, corrupt.topic, corrupt.partition, corrupt.offsets.start)
            return
        query, index = self._checkpoint.query_id, self._rejects.index
        first = CommitMarker(query, -1, batch.starts, index.topic_ids, checkpoint=self._checkpoint.copy_id)
        for store in self._stores.stores:
            if not store.keeps_markers:
                continue
            marker = store.marker if store.marker.query == query else first
            # A driver that dies after this finds the offsets already skipped.
            if (passed := replace(corrupt.skip_marker(marker), plans={})) != marker:
                letters = corrupt.without_passed(marker).dead_letters(self._stream, index, self._bootstrap)
                self._delivery.deliver(store, {}, letters.tables, passed, index)
        self._checkpoint.replace_offsets(corrupt.skip, self.committed)
        self._checkpoint.sync()
        self._replace_markers(self._with_plans)
        letters = corrupt.dead_letters(self._stream, index, self._bootstrap)
        self._on_commit(CommittedBatch(0, letters.dead, 0, self._checkpoint.pending_offsets()[0]))

    def _replace_markers(self, change: Callable[[CommitMarker], CommitMarker]) -> None:
        self._stores.replace_markers(self._checkpoint.query_id, change)

    def _with_plans(self, marker: CommitMarker) -> CommitMarker:
        return replace(marker, plans=self._checkpoint.plans(marker.batch))

    def _query(self) -> StreamingQuery:
        # The callback may run before the query's start() has returned.
        return next(query for query in self._spark.streams.active if query.name == self._stream.name)
