"""From a declaration to a running query."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, StreamingQueryException

from penstock.control.repositories.data_loss import InMemoryDataLossLog
from penstock.engine.checkpoint import plan_fingerprint, recovery
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.checkpoint.plan_fingerprint import PlanFingerprint
from penstock.engine.commit.batches import BatchCommitter, BatchResult
from penstock.engine.error_text import root_message
from penstock.engine.jvm import bridge
from penstock.engine.progress.caught_up import CaughtUpTracker
from penstock.engine.progress.metrics import StreamMetrics
from penstock.engine.query import source, spark_limits
from penstock.engine.query.encode import encode_rows
from penstock.engine.query.tables import StreamTables
from penstock.engine.session import session_for
from penstock.engine.state import fold
from penstock.errors import Blocked, BrokerError, Wait

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.control import ProgressRow
    from penstock.control.repositories.data_loss import DataLossLog
    from penstock.kafka.admin import PartitionOffsets
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# A failing query is tried again at once, then ever more slowly: a broker that is away must not fill the log.
RETRY_DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
# What only time or a person mends is looked at again after this.
BLOCKED_RETRY_S = 30.0
# A batch that closes windows is planned by now, in seconds behind the one that moved time.
NEXT_BATCH_S = 1.0
# Seconds without a word on how far its topics reach after which a stream that is up is failing: Spark asks for minutes
# before it gives up.
BROKER_SILENT_S = 15.0
# The driver asks every fifth time that it looks after its streams. Held up by one of them, it has asked nobody.
MAX_UNANSWERED_CHECKS = 6


class StreamRun:
    """One stream of a driver: starts its query, restarts it when it fails, stops it between two batches."""

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        bootstrap: str,
        checkpoint_root: str,
        figures: ProgressRow,
        book: DataLossLog | None = None,
        *,
        short: bool = False,
        upstream_streams: Collection[str] | None = None,
    ) -> None:
        """short: whether memory was full when it ran last. upstream_streams: the streams that write what it reads; None
        for all that say so."""
        self.stream = stream
        self.offsets: dict[str, dict[int, int]] = {}
        self._figures = StreamMetrics(figures)
        self._through = CaughtUpTracker(figures.behind_ms, waits=stream.output_mode.heartbeat_schedule is not None)
        self._spark = session_for(spark, stream)
        self._bootstrap = bootstrap
        self._checkpoint = Checkpoint(self._spark, checkpoint_root, stream.name)
        self._plan = PlanFingerprint(self._spark, stream.name, self._checkpoint.path)
        self._tables = StreamTables(stream, checkpoint_root, bootstrap, self._loads)
        self._batches = BatchCommitter(
            stream, self._spark, bootstrap, self._checkpoint, self._tables, book or InMemoryDataLossLog(), self._wrote,
            self._stands, upstream_streams,
        )  # fmt: skip
        self._batches.splitter.out_of_memory = short
        self._loading: threading.Thread | None = None
        self._load_error: Exception | None = None
        self._query: StreamingQuery | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._wrote_at = 0.0
        self._tended = False
        # It failed or was blocked, and since then neither has a batch ended well nor was there nothing to read.
        self._ill = False
        self._catching_up = threading.Lock()
        self._heard_at, self._looks, self._unheard = time.monotonic(), 0, False

    @property
    def figures(self) -> ProgressRow:
        return self._figures.row

    @property
    def running(self) -> bool:
        """Started and not stopped; its query may have failed and wait to be tended."""
        return self._tended

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    def write_seconds(self) -> float:
        """Seconds since the output of the present batch began; 0 if none is being written."""
        return self._batches.write_seconds()

    def start(self) -> None:
        """Load the tables, and start the query from its checkpoint."""
        self._tended = True
        self._tables.load()
        self._begin()

    def _begin(self) -> None:
        """Start the query from its checkpoint; earlier writers of the same stream are fenced first."""
        self._becomes("starting")
        try:
            self._checkpoint.check_reachable()
            self._batches.open()
            self._through.reset()
            self._heard()
            # What was read before may be gone by now, or another topic's; a mark may be of what it was before a reset.
            mark, asked = self._batches.committed, self._batches.reset
            known = mark.offsets if mark.query == self._checkpoint.query_id else asked.starts if asked else {}
            begins = source.next_offsets_before_first_batch(self.stream, known, self._bootstrap)
            self.offsets = begins or self.offsets
            tables, left_out, reset = self._tables.frames(self._spark), self._batches.excluded, self._batches.reset
            begun = self._checkpoint.has_commits
            with fold.use_checkpoint(self.stream, self._checkpoint.path) as place:
                rows = plan_fingerprint.build_frame(
                    self._spark, self.stream, self._bootstrap, tables, left_out, reset,
                    begun=begun, most=self._batches.splitter.max_records,
                )  # fmt: skip
            state = plan_fingerprint.fingerprint_lines(self.stream, rows, place)
            self._plan.check(state, restores=place.can_rebuild)
            self._batches.folds.open(place, self._checkpoint.last_commit)
            writer = (
                encode_rows(self.stream, rows)
                .writeStream.queryName(self.stream.name)
                .outputMode(self.stream.output_mode.spark_mode)
                .option("checkpointLocation", self._checkpoint.path)
                .foreachBatch(self._batches.write)
            )
            if self.stream.every:
                writer = writer.trigger(processingTime=f"{self.stream.every} seconds")
            if not begun:
                # Of a first state nothing else would tell, if the driver died behind the start.
                self._plan.keep(state)
            self._query = writer.start()
            if begun:
                self._plan.keep(state)
        except BaseException as e:
            self._batches.close()
            if isinstance(e, AnalysisException) and (told := spark_limits.explain_refusal(self.stream.name, e)):
                raise told from e
            raise
        if self.figures.state == "starting":
            self._becomes("idle")
        log.info("stream %s started from batch %d", self.stream.name, self._batches.committed.batch + 1)

    def stop(self, timeout: float = 30.0) -> None:
        """Stop between two batches; one that has not begun to write is run again at the next start."""
        self._tables.stop()
        if self._loading is not None:
            self._loading.join(timeout)
            self._loading = None
        query = self._query
        if query is not None:
            self._end(query, timeout)
            self._query = None
        self._batches.close()
        self._tables.close()
        self._failures, self._retry_at = 0, 0.0
        self._tended = self._ill = False
        self._figures.set(state="stopped", rows_per_s=0.0)

    def _end(self, query: StreamingQuery, timeout: float = 30.0) -> None:
        self._batches.quiesce(timeout)
        try:
            query.stop()
        except StreamingQueryException as e:
            # A batch that was about to be written; it is run again at the next start.
            log.info("stream %s was stopped in the middle of a batch: %s", self.stream.name, root_message(e))
        self._catch_up()

    def process_all_available(self) -> None:
        """Wait until all that is there has been read and written, and the figures say so. For tests and tools."""
        assert self._query is not None
        self._query.processAllAvailable()
        # Processing ends with the last batch's commit; its progress comes after. Where no batch ran there is none.
        while self._batches.started_batch not in (None, self.figures.batch_id):
            time.sleep(0.01)
            self._catch_up()
            # A batch may have begun behind the last: if it failed, this says so.
            self._query.processAllAvailable()

    def reconcile(self) -> None:
        """Start what should run and restart what failed. LeaseLost from the output comes through to the caller."""
        self._tended = True
        self._looks += 1
        if (query := self._query) is not None:
            if query.isActive:
                if not self._is_through():
                    return
                self._end(query)
            else:
                # What ended well before it failed is no sign that it is well now.
                self._catch_up()
                self._failed(self._batches.blocked or query.exception())
            self._query = None
            self._batches.close()
        if time.monotonic() < self._retry_at:
            return
        try:
            if self._is_loaded():
                self._begin()
        except Exception as e:
            # A transform may raise anything; the other streams of the app go on.
            self._failed(e)

    def _is_through(self) -> bool:
        """Whether the query is to start again, for its batches need be cut no more."""
        try:
            return self._batches.splitter.finish(self.offsets)
        except Exception as e:
            # The disk is full or away: it is as well as with smaller batches.
            log.warning("stream %s goes on with small batches: %s", self.stream.name, root_message(e))
            return False

    def _is_loaded(self) -> bool:
        """Whether the tables are; else they are being loaded, beside the other streams of the app."""
        if not self.stream.tables:
            return True
        if self._loading is None:
            self._loading = threading.Thread(target=self._load, name=f"tables of {self.stream.name}", daemon=True)
            self._loading.start()
        # What is loaded already is only looked through.
        self._loading.join(0.2)
        if self._loading.is_alive():
            return False
        self._loading = None
        if error := self._load_error:
            raise error
        return True

    def _load(self) -> None:
        self._load_error = None
        try:
            self._tables.load()
        except Exception as e:
            self._load_error = e

    def _loads(self, offsets: dict[str, dict[int, int]], ends: dict[tuple[str, int], int]) -> None:
        self._figures.set_lag(offsets, ends)
        if self.figures.lag:
            self._figures.set(state="loading")
        elif self.figures.state == "loading":
            self._figures.set(state="failing" if self._ill else "idle")

    def _rest(self) -> None:
        """See whether a stream that waits for the clock has closed the windows of its last batch."""
        query, quiet = self._query, time.monotonic() - self._wrote_at >= NEXT_BATCH_S and not self._batches.busy_for()
        if query is not None and quiet and self.stream.output_mode.heartbeat_schedule and bridge.is_idle(query):
            self._through.query_idle()

    def _becomes(self, state: str) -> None:
        """What its query does now; one that is ill stays so until it has shown that it is not."""
        if not self._ill:
            self._figures.set(state=state)

    def _failed(self, cause: BaseException | None) -> None:
        if not isinstance(cause, Blocked) and recovery.is_unreadable_at_start(cause):
            cause = recovery.damaged_checkpoint(self.stream.name, f"its state: {root_message(cause)}")
        if isinstance(cause, Blocked):
            self._blocked(cause)
            return
        delay = RETRY_DELAYS_S[min(self._failures, len(RETRY_DELAYS_S) - 1)]
        self._failures += 1
        self._ill = True
        self._retry_at = time.monotonic() + delay
        message = root_message(cause)
        self._figures.set(state="failing", error=message, error_at=int(time.time() * 1000))
        self._figures.increment(restarts=1)
        log.error("stream %s failed and is tried again in %g s: %s", self.stream.name, delay, message)

    def _blocked(self, why: Blocked) -> None:
        self._retry_at = time.monotonic() + BLOCKED_RETRY_S
        self._ill = True
        if (self.figures.state, self.figures.error) != ("blocked", str(why)):
            log.error("stream %s is blocked: %s", self.stream.name, why)
            self._figures.set(state="blocked", error=str(why), error_at=int(time.time() * 1000))

    def _wrote(self, batch: BatchResult) -> None:
        self._figures.increment(rows_out=batch.rows, dead=batch.dead, late=batch.late)
        self.offsets = batch.offsets
        self._wrote_at = time.monotonic()
        self._through.batch_written(batch.offsets)

    def _stands(self, why: Exception | None) -> None:
        """Say why the stream stands still, and since when; None if it goes on."""
        if not self._tended:
            return
        if why is None:
            self._figures.set(state="failing" if self._ill else "idle")
            return
        state, now = "waiting" if isinstance(why, Wait) else "failing", int(time.time() * 1000)
        since = self.figures.error_at if state == self.figures.state == "waiting" else now
        self._figures.set(state=state, error=str(why), error_at=since)

    def _catch_up(self) -> None:
        """Take the progress of batches that ended since the last look into the figures.

        A listener in Python would be told of each batch at once, by a hundred calls between the two languages: that was
        a third of a busy driver's CPU time.
        """
        # The reporter's thread looks too: each progress is counted once.
        with self._catching_up:
            if (query := self._query) is None:
                return
            for progress in bridge.recent_progress(query, self._figures.progress_at):
                self._figures.add_progress(progress)
                # A trigger that failed leaves none.
                self._failures = 0
                if self._ill:
                    self._ill = False
                    self._figures.set(state="idle")

    def lag(
        self, offsets: dict[str, dict[int, int]], stable: PartitionOffsets, ends: PartitionOffsets, at: float
    ) -> None:
        if all((t, p) in stable and (t, p) in ends for t, parts in offsets.items() for p in parts):
            self._heard()
        if self.figures.state != "loading":
            self._figures.set_lag(offsets, ends, stable)
            if self.active and self.offsets:
                self._through.add_measurement(at, ends, self.offsets)

    def _heard(self) -> None:
        """Take in that the broker answers for all that it reads."""
        self._heard_at, self._looks = time.monotonic(), 0

    def _listen(self) -> None:
        """Say so if the broker has not answered for long: a batch that waits for it, or is not planned, fails late."""
        if not self.active:
            return  # a query that has ended: the driver, which may be held up by another stream, has yet to say why
        silent_for = time.monotonic() - max(self._heard_at, self._wrote_at)
        if self._looks > MAX_UNANSWERED_CHECKS and silent_for > BROKER_SILENT_S:
            if self.figures.state in ("idle", "running"):
                self._unheard = True
                self._stands(
                    BrokerError(
                        f"stream {self.stream.name} waits for the broker, which does not say how far its topics reach",
                        hint="nothing, once enough brokers are back: it goes on by itself",
                    )
                )
        elif self._unheard:
            self._unheard = False
            if self.figures.state == "failing" and not self._ill:
                self._stands(None)

    def report(self) -> ProgressRow:
        """The figures as they stand: a copy, with the rate over the last seconds."""
        self._catch_up()
        self._rest()
        self._listen()
        self._figures.set(behind_ms=self._through.behind_ms, store=self._batches.store_status)
        if kept := self._batches.folds.size:
            self._figures.set(state_rows=kept[0], state_bytes=kept[1])
        return self._figures.snapshot(self._batches.busy_for())
