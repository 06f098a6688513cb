"""Runs one stream of a driver: its query, its restarts, its progress."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from penstock.control.repositories.data_loss import InMemoryDataLossLog
from penstock.engine.checkpoint import plan_fingerprint, recovery
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.checkpoint.plan_fingerprint import PlanFingerprint
from penstock.engine.commit.batch_output import CommittedBatch
from penstock.engine.commit.committer import BatchCommitter
from penstock.engine.error_text import root_message
from penstock.engine.jvm import bridge
from penstock.engine.jvm.polling_delay import PollingDelay
from penstock.engine.progress.batch_spans import BatchSpans, tracer
from penstock.engine.progress.broker_watch import BrokerWatch
from penstock.engine.progress.caught_up import CaughtUpTracker
from penstock.engine.progress.metrics import StreamMetrics
from penstock.engine.progress.violation_counts import declared_counts
from penstock.engine.query import source, spark_limits, trace_context
from penstock.engine.query.column_lineage import frame_columns
from penstock.engine.query.encode import encode_rows
from penstock.engine.query.run_state import RunEvent, RunPhase, RunState
from penstock.engine.query.tables import StreamTables, TableLoader
from penstock.engine.session import session_for
from penstock.engine.state import fold
from penstock.errors import Blocked, BrokerError, Wait
from penstock.lineage.stream_lineage import StreamLineage
from penstock.settings import settings

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.control import ProgressRow
    from penstock.control.repositories.data_loss import DataLossLog
    from penstock.kafka.admin import PartitionOffsets
    from penstock.lineage.emitter import LineageEmitter
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# Seconds until a blocked stream, which only time or an operator mends, is tried again.
BLOCKED_RETRY_S = 30.0
# Seconds after which the batch that closes windows is planned, after the batch that moved the watermark.
NEXT_BATCH_S = 1.0
# Seconds that a stop waits for Spark's commit of a batch whose output is written.
COMMIT_TIMEOUT_S = 10.0


class StreamRun:
    """One stream of a driver: starts its query, restarts it when it fails, stops it between two batches.

    Args:
        stream: the stream.
        spark: the driver's session; the stream gets one of its own.
        bootstrap: the brokers.
        checkpoint_root: the folder of all checkpoints.
        progress: the row of progress that the run keeps up to date.
        data_losses: where data loss is reported and accepted.
        out_of_memory: whether the stream's last driver ran out of memory.
        upstream_streams: the streams that write the inputs; None for all whose commit markers say so.
        emitter: where the events of its lineage go; None for nowhere.
    """

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        bootstrap: str,
        checkpoint_root: str,
        progress: ProgressRow,
        data_losses: DataLossLog | None = None,
        *,
        out_of_memory: bool = False,
        upstream_streams: Collection[str] | None = None,
        emitter: LineageEmitter | None = None,
    ) -> None:
        self.stream = stream
        self.lineage = StreamLineage(stream, progress, emitter)
        self.offsets: dict[str, dict[int, int]] = {}
        self._bootstrap = bootstrap
        self._spark = session_for(spark, stream)
        progress.expectations = declared_counts(stream.expectations, progress.expectations)
        self._metrics = StreamMetrics(progress)
        self._spans = BatchSpans(stream, self._spark, tracer())
        self._caught_up = CaughtUpTracker(progress.behind_ms, waits=stream.output_mode.heartbeat_schedule is not None)
        self._broker = BrokerWatch()
        self._checkpoint = Checkpoint(self._spark, checkpoint_root, stream.name)
        self._plan = PlanFingerprint(self._spark, stream.name, self._checkpoint.path)
        self._tables = StreamTables(stream, checkpoint_root, bootstrap, self._on_loading)
        self._loader = TableLoader(self._tables, stream.name)
        self._committer = BatchCommitter(
            stream, self._spark, bootstrap, self._checkpoint, self._tables, data_losses or InMemoryDataLossLog(),
            self._on_commit, self._on_stall, upstream_streams, out_of_memory=out_of_memory,
        )  # fmt: skip
        self._query: StreamingQuery | None = None
        self._polling: PollingDelay | None = None
        self._state = RunState()
        self._changing = threading.Lock()
        self._retry_at = 0.0
        self._committed_at = 0.0
        self._reading_progress = threading.Lock()

    @property
    def figures(self) -> ProgressRow:
        """The row of progress as it stands."""
        return self._metrics.row

    @property
    def session(self) -> SparkSession:
        """The session of its queries."""
        return self._spark

    @property
    def running(self) -> bool:
        """Whether it is started and not stopped; its query may have failed and wait for its restart."""
        return self._state.phase is not RunPhase.STOPPED

    @property
    def active(self) -> bool:
        """Whether its query runs."""
        return self._query is not None and self._query.isActive

    def write_seconds(self) -> float:
        """Seconds since the delivery of the present batch to a store with markers began; 0 if there is none."""
        return self._committer.write_seconds()

    def start(self) -> None:
        """Load the tables, and start the query from its checkpoint."""
        self._apply(RunEvent.START)
        self._tables.load()
        self._start_query()

    def stop(self, timeout: float = 30.0) -> None:
        """Stop between two batches; one that has not begun to write runs again at the next start."""
        self._loader.stop(timeout)
        if (query := self._query) is not None:
            self._end_query(query, timeout)
            self._query = None
        self._committer.close()
        self._tables.close()
        self._retry_at = 0.0
        self._apply(RunEvent.STOPPED, rows_per_s=0.0)
        self.lineage.stopped()

    def reconcile(self) -> None:
        """Start the query if it is to run, and restart it if it failed. LeaseLost of the output reaches the caller."""
        if not self.running:
            self._apply(RunEvent.START)
        self._broker.tick()
        if (query := self._query) is not None:
            if query.isActive:
                if not self._can_grow():
                    return
                self._end_query(query)
            else:
                # Batches that ended before it failed do not make it healthy.
                self._read_progress()
                self._fail(self._committer.blocked or query.exception())
            self._query = None
            self._committer.close()
        if time.monotonic() < self._retry_at:
            return
        try:
            if not self.stream.tables or self._loader.is_loaded():
                self._start_query()
        except Exception as e:
            # A transform may raise anything; the other streams of the app go on.
            self._fail(e)

    def process_all_available(self) -> None:
        """Wait until all present records are read and written, and the progress says so. For tests and tools."""
        assert self._query is not None
        self._query.processAllAvailable()
        # Processing ends with the last batch's commit; its progress comes after. Where no batch ran there is none.
        while self._committer.started_batch not in (None, self.figures.batch_id):
            time.sleep(0.01)
            self._read_progress()
            # Another batch may have begun: if it failed, this raises its error.
            self._query.processAllAvailable()

    def held(self) -> AbstractContextManager[None]:
        """Plan no batch within a block of one thread: the next one reads all that is written in it. For tests."""
        assert self._query is not None
        return bridge.held(self._query)

    def lag(
        self, offsets: dict[str, dict[int, int]], stable: PartitionOffsets, ends: PartitionOffsets, at: float
    ) -> None:
        """Take a measurement of the inputs.

        Args:
            offsets: next offsets of the stream.
            stable: how far a reader of committed records comes, by topic and partition.
            ends: the ends of the partitions.
            at: monotonic time of the measurement.
        """
        if all((t, p) in stable and (t, p) in ends for t, parts in offsets.items() for p in parts):
            self._broker.answered()
        if self._state.phase is not RunPhase.LOADING:
            self._metrics.set_lag(offsets, ends, stable)
            if self.active and self.offsets:
                self._caught_up.add_measurement(at, ends, self.offsets)

    def report(self) -> ProgressRow:
        """A copy of the progress as it stands, with the rates over the last seconds."""
        self._read_progress()
        self._check_idle()
        self._check_broker()
        self._metrics.set(behind_ms=self._caught_up.behind_ms, store=self._committer.store_status())
        if self.active and self._polling:
            self._polling.adjust(time.monotonic() - self._committed_at)
        if sizes := self._committer.folds.size:
            self._metrics.set(state_rows=sizes[0], state_bytes=sizes[1])
        self.lineage.reported()
        return self._metrics.snapshot(self._committer.busy_for())

    def _apply(self, event: RunEvent, **values: Any) -> None:
        """Move to the state after an event, and publish it with further values of the progress."""
        with self._changing:
            before, self._state = self._state, self._state.after(event)
            if values or self._state.phase is not before.phase:
                self._metrics.set(state=self._state.phase.published, **values)

    def _start_query(self) -> None:
        """Start the query from its checkpoint; earlier writers of the same stream are fenced first."""
        self._apply(RunEvent.START)
        try:
            self._checkpoint.check_reachable()
            self._committer.open()
            self._caught_up.reset()
            self._broker.answered()
            self._find_offsets()
            with spark_limits.refusals(self.stream):
                self._run_query()
        except BaseException:
            self._committer.close()
            raise
        self._apply(RunEvent.STARTED)
        log.info("stream %s started from batch %d", self.stream.name, self._committer.committed.batch + 1)

    def _find_offsets(self) -> None:
        """Learn the next offsets: what an earlier query read may be gone, and a marker may be of before a reset."""
        marker, reset = self._committer.committed, self._committer.reset
        written = marker.offsets if marker.query == self._checkpoint.query_id else reset.starts if reset else {}
        self.offsets = source.next_offsets_before_first_batch(self.stream, written, self._bootstrap) or self.offsets

    def _run_query(self) -> None:
        """Build the transform's frame, compare its plan with the checkpoint's, and start the query."""
        tables, has_commits = self._tables.frames(self._spark), self._checkpoint.has_commits
        with fold.use_checkpoint(self.stream, self._checkpoint.path) as folds:
            rows = plan_fingerprint.build_frame(
                self._spark, self.stream, self._bootstrap, tables, self._committer.excluded, self._committer.reset,
                has_commits=has_commits, max_records=self._committer.max_records, traces=settings().traces,
            )  # fmt: skip
        fingerprint = plan_fingerprint.fingerprint_lines(self.stream, rows, folds)
        self._plan.check(fingerprint, can_rebuild=folds.can_rebuild)
        self._committer.folds.open(folds, self._checkpoint.last_commit)
        rows_out = trace_context.carried(self.stream, rows) if settings().traces else rows
        writer = (
            encode_rows(self.stream, rows_out)
            .writeStream.queryName(self.stream.name)
            .outputMode(self.stream.output_mode.spark_mode)
            .option("checkpointLocation", self._checkpoint.path)
            .foreachBatch(self._spans.traced(self._committer.write))
        )
        limited = source.is_limited(self._committer.max_records, self._committer.reset, has_read=has_commits)
        if source.has_trigger(self.stream, limited=limited):
            writer = writer.trigger(processingTime=f"{self.stream.every} seconds")
        if not has_commits:
            # If the driver died right after the start, nothing else would say what the first state is made of.
            self._plan.store(fingerprint)
        self._query = writer.start()
        self._polling = PollingDelay(self._query, self.stream.every, self.stream.output_mode.heartbeat_schedule)
        if has_commits:
            self._plan.store(fingerprint)
        self.lineage.started(lambda: frame_columns(self.stream, rows, tables))

    def _end_query(self, query: StreamingQuery, timeout: float = 30.0) -> None:
        self._committer.quiesce(timeout)
        self._await_commit(query)
        try:
            query.stop()
        except StreamingQueryException as e:
            # A batch that was about to be written; it runs again at the next start.
            log.info("stream %s was stopped in the middle of a batch: %s", self.stream.name, root_message(e))
        self._read_progress()

    def _await_commit(self, query: StreamingQuery) -> None:
        """Wait until Spark has committed the batch that was written last, which would run again at the next start."""
        written, until = self._committer.committed, time.monotonic() + COMMIT_TIMEOUT_S
        try:
            if written.query != self._checkpoint.query_id:
                return
            while query.isActive and self._checkpoint.last_commit < written.batch and time.monotonic() < until:
                time.sleep(0.02)
        except Exception as e:
            # The disk or the store of the checkpoint is away.
            log.warning("the last commit of stream %s cannot be read: %s", self.stream.name, root_message(e))

    def _can_grow(self) -> bool:
        """Whether the query is to restart with larger batches, as a split batch is read."""
        try:
            return self._committer.can_grow(self.offsets)
        except Exception as e:
            # The disk is full or away: the stream runs on with smaller batches.
            log.warning("stream %s goes on with small batches: %s", self.stream.name, root_message(e))
            return False

    def _fail(self, cause: BaseException | None) -> None:
        """Note why the query failed, and when it is started again."""
        if not isinstance(cause, Blocked) and recovery.is_unreadable_at_start(cause):
            cause = recovery.damaged_checkpoint(self.stream.name, f"its state: {root_message(cause)}")
        now_ms, message = int(time.time() * 1000), str(cause) if isinstance(cause, Blocked) else root_message(cause)
        self.lineage.failed(message)
        if isinstance(cause, Blocked):
            self._retry_at = time.monotonic() + BLOCKED_RETRY_S
            if (self.figures.state, self.figures.error) != ("blocked", message):
                log.error("stream %s is blocked: %s", self.stream.name, cause)
                self._apply(RunEvent.BLOCKED, error=message, error_at=now_ms)
            return
        delay = self._state.retry_delay
        self._retry_at = time.monotonic() + delay
        self._apply(RunEvent.FAILED, error=message, error_at=now_ms)
        self._metrics.increment(restarts=1)
        log.error("stream %s failed and is tried again in %g s: %s", self.stream.name, delay, message)

    def _on_loading(self, offsets: dict[str, dict[int, int]], ends: dict[tuple[str, int], int]) -> None:
        self._metrics.set_lag(offsets, ends)
        self._apply(RunEvent.LOADING if self.figures.lag else RunEvent.LOADED)

    def _on_commit(self, batch: CommittedBatch) -> None:
        self._metrics.increment(rows_out=batch.rows, dead=batch.dead, late=batch.late)
        self._metrics.add_violations(batch.violations)
        self._spans.committed(batch)
        self.offsets = batch.offsets
        self._committed_at = time.monotonic()
        self._caught_up.batch_written(batch.offsets)
        if self._polling:
            self._polling.adjust(0)

    def _on_stall(self, reason: Exception | None) -> None:
        """Publish why the stream is stalled, and since when; None if it resumes."""
        if not self.running:
            return
        if reason is None:
            self._apply(RunEvent.RESUMED)
        elif isinstance(reason, Wait):
            since = self.figures.error_at if self._state.phase is RunPhase.WAITING else int(time.time() * 1000)
            self._apply(RunEvent.STORE_WAITS, error=str(reason), error_at=since)
        else:
            self._apply(RunEvent.STALLED, error=str(reason), error_at=int(time.time() * 1000))

    def _read_progress(self) -> None:
        """Take the progress of batches that ended since the last call into the metrics.

        A listener in Python would be called for each batch, at a hundred calls between the two languages: that was a
        third of a busy driver's CPU time.
        """
        # The reporter's thread reads too: each progress is counted once.
        with self._reading_progress:
            if (query := self._query) is None:
                return
            for progress in bridge.recent_progress(query, self._metrics.last_progress):
                self._metrics.add_progress(progress)
                # A batch that failed leaves no progress.
                self._apply(RunEvent.BATCH_ENDED)
                self.lineage.batch_ended()

    def _check_idle(self) -> None:
        """See whether a stream that waits for the clock has closed the windows of its last batch."""
        quiet = time.monotonic() - self._committed_at >= NEXT_BATCH_S and not self._committer.busy_for()
        query = self._query
        if query is not None and quiet and self.stream.output_mode.heartbeat_schedule and bridge.is_idle(query):
            self._caught_up.query_idle()

    def _check_broker(self) -> None:
        """Publish that the broker does not answer: a batch that waits for it, or is not planned, fails late."""
        if not self.active:
            return  # the next call of `reconcile`, which another stream may delay, says why the query ended
        if not self._broker.is_silent(self._committed_at):
            self._apply(RunEvent.BROKER_ANSWERED)
        elif self._state.phase is RunPhase.RUNNING:
            error = BrokerError(
                f"stream {self.stream.name} waits for the broker, which does not say how far its topics reach",
                hint="no action needed once enough brokers are back; the stream resumes by itself",
            )
            self._apply(RunEvent.BROKER_SILENT, error=str(error), error_at=int(time.time() * 1000))
