"""Builds the state of a stream's new version in a checkpoint of its own, beside the running version.

The query runs in steps. Each step is one batch whose end and watermark are written into Spark's offset log before the
query starts, as Spark runs a batch again that is planned there and not committed. So it never reads further than the
running version has, and the last step ends at exactly the offsets and the watermark of its last batch. Nothing is
written to a topic: the rows go to files (`StepRows`). A step that was killed runs again, and replaces its files.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from penstock.control.repositories.data_loss import InMemoryDataLossLog
from penstock.engine.checkpoint import plan_fingerprint
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.checkpoint.offset_log import committed_watermark
from penstock.engine.checkpoint.plan_fingerprint import PlanFingerprint
from penstock.engine.checkpoint.recovery import CheckpointRecovery
from penstock.engine.commit.checked_rows import CheckedRows
from penstock.engine.faults.data_loss import InputCheck
from penstock.engine.jvm import bridge
from penstock.engine.jvm.hadoop_fs import HadoopFolder
from penstock.engine.operations.reset import Reset
from penstock.engine.query.encode import encode_rows, split_by_output
from penstock.engine.query.spark_limits import clear_refusal
from penstock.engine.query.tables import BatchIdentity, StreamTables
from penstock.engine.query.upstream import open_upstream
from penstock.engine.query.watermark import Watermark
from penstock.engine.replacement.archive_steps import ARCHIVE_STEP_RECORDS, ArchiveSteps, settle
from penstock.engine.replacement.folders import CHECKPOINT, check_replaceable, copy_earlier, new_version_folder
from penstock.engine.replacement.new_documents import NewDocuments, document_start
from penstock.engine.replacement.state_needs import BuildStart, build_start, state_retention_ms
from penstock.engine.replacement.step_error import StepFailed, step_error
from penstock.engine.replacement.step_offsets import StepLimits, batch_entry, count_between, limit_ends
from penstock.engine.replacement.step_rows import StepRows
from penstock.engine.state import fold as folding
from penstock.engine.state.fold_store import fold_store
from penstock.kafka.admin import admin, all_end_offsets, partition_counts, topic_ids
from penstock.model.output import NO_COMMIT, CommitMarker

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.replacement.input_archive import InputArchive
    from penstock.model.stream import Stream

STATE_FILE, ROWS = "replacement.json", "rows"
# Records of a step, so that one that is killed loses little. The watermark waits until the backlog is read.
STEP_RECORDS = 2_000_000


class NewVersion:
    """The new version of a stream while it is built.

    Args:
        stream: The stream as the new code declares it.
        spark: A session for the stream, of a driver that runs nothing else of it.
        bootstrap: The broker.
        root: The root of all checkpoints.
        id: The id of the replacement; a folder that another one left is removed.
        archive: The archive of its input.
        documents: What takes the rows of a sink.

    Raises:
        DeclarationError: The stream cannot be replaced.
    """

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        bootstrap: str,
        root: str,
        id: str,  # noqa: A002
        archive: InputArchive | None = None,
        documents: NewDocuments | None = None,
    ) -> None:
        check_replaceable(stream, root)
        self.stream, self._spark, self._bootstrap, self._root, self._id = stream, spark, bootstrap, root, id
        self.folder = new_version_folder(stream.name, root)
        self._checkpoint = Checkpoint(spark, str(self.folder), CHECKPOINT)
        self.rows = documents or StepRows(self.folder / ROWS, stream)
        self._tables = StreamTables(stream, str(self.folder), bootstrap, lambda _offsets, _ends: None)
        self._folds = fold_store(stream.name, spark, self._checkpoint.path)
        self._archive = archive
        self._archive_steps = ArchiveSteps(spark, self.folder, self._checkpoint, archive) if archive else None
        self._reads_archive = False
        self._limits = StepLimits()
        self._inputs = InputCheck(stream, bootstrap, self._checkpoint, InMemoryDataLossLog())
        self._upstream = open_upstream(stream, bootstrap, None, -1)
        self._watermark: Watermark
        self._start: BuildStart
        self._encoded: DataFrame
        self._fingerprint: list[str]
        self._subscriptions: list[tuple[str, str]]
        self._next_watermark = 0
        # Why a step failed: Spark hands on the text of an error only.
        self._error: Exception | None = None
        self._query: StreamingQuery | None = None

    def open(self, watermark_ms: int, since: int | None = None, *, back: bool = False) -> None:
        """Begin, or go on with what a process of the same replacement has built.

        Args:
            watermark_ms: The watermark of the running version, epoch ms.
            since: As for `build_start`.
            back: Whether it goes on with the checkpoint of the version that the running one has replaced.

        Raises:
            PenstockError: It cannot be built.
        """
        state = self._read_state()
        if state is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            if back:
                copy_earlier(self.stream, self._spark, self._root, self.checkpoint_folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        settle(self._checkpoint, self.folder)
        self._withdraw_cut()
        CheckpointRecovery(
            self.stream.name, HadoopFolder(self._spark, self._checkpoint.path), NO_COMMIT, stateful=True
        ).repair_state()
        self._inputs.check_topics_exist()
        self._tables.load()
        if state is None:
            self._start = self._earlier_start() if back else self._first_start(watermark_ms, since)
        else:
            self._start = BuildStart(**state)
        self._open_query()
        if back:
            PlanFingerprint(self._spark, self.stream.name, self._checkpoint.path).check(self._fingerprint)
        self._read_watermark(self._checkpoint.committed_batches())
        if state is None:
            self._write_state()

    def _open_query(self, archived: DataFrame | None = None) -> None:
        """Let the next steps read the topics, or the records of an archive."""
        with clear_refusal(self.stream), folding.use_checkpoint(self.stream, self._checkpoint.path) as context:
            # A window of which not all records are read must not be upserted.
            frame = self._frame(Reset(self._start.starts, self._start.floor, self._start.ids), archived)
            self._encoded = encode_rows(self.stream, frame)
        if archived is None:
            self._subscriptions = bridge.subscriptions(frame)
            self._fingerprint = plan_fingerprint.fingerprint_lines(self.stream, frame, context)
        self._folds.open(context, self.last_batch)
        self._watermark = Watermark(self.stream, self._limits, self._upstream)
        self._reads_archive = archived is not None

    def _first_start(self, watermark_ms: int, since: int | None) -> BuildStart:
        if isinstance(self.rows, NewDocuments):
            return document_start(self.stream, self._bootstrap, since)
        with clear_refusal(self.stream), folding.use_checkpoint(self.stream, self._checkpoint.path) as context:
            frame = self._frame(None)
            retention = state_retention_ms(self.stream, frame, context.folds.values())
            windows = bridge.event_time_windows(frame)
        archive = self._archive if len(bridge.subscriptions(frame)) == 1 else None
        return build_start(self.stream, self._bootstrap, retention, watermark_ms, since, windows, archive)

    def _earlier_start(self) -> BuildStart:
        """Where a version that was kept goes on; a batch that it has written and not committed runs again."""
        offsets, _ = self._checkpoint.pending_offsets()
        last = self._checkpoint.planned_batch() or self._checkpoint.batch(self.last_batch)
        return BuildStart(offsets, topic_ids(admin(self._bootstrap), offsets, self._bootstrap), 0, last.at_ms, 0)

    def _frame(self, reset: Reset | None, archived: DataFrame | None = None) -> DataFrame:
        tables = self._tables.frames(self._spark)
        return plan_fingerprint.build_frame(
            self._spark, self.stream, self._bootstrap, tables, reset=reset, has_commits=reset is None, records=archived
        )

    @property
    def start(self) -> BuildStart:
        """Where it began to read."""
        return self._start

    @property
    def offsets(self) -> TopicOffsets:
        """The next offsets that it reads."""
        return self._checkpoint.pending_offsets()[0] or self._start.starts

    @property
    def records(self) -> int:
        """How many offsets it has read."""
        return count_between(self._start.starts, self.offsets)

    @property
    def last_batch(self) -> int:
        """The number of its last step; -1 for none."""
        return self._checkpoint.last_commit

    @property
    def watermark_ms(self) -> int:
        """The watermark of its last step, epoch ms."""
        last = self.last_batch
        return self._checkpoint.batch(last).plan.watermark_ms if last >= 0 else 0

    def left(self, ends: TopicOffsets) -> int:
        """How many records there are between its offsets and others; a partition that it has not read counts whole."""
        return count_between(self.offsets, ends)

    def ends_of(self, marker: CommitMarker) -> TopicOffsets:
        """The offsets of its inputs at a running version's marker; the present ends of topics that it does not read.

        A topic of a pattern that the running version has only not seen yet is left out: who sees it reads all of it.
        """
        inputs = {t: dict(parts) for t, parts in marker.offsets.items() if self.stream.has_input_topic(t)}
        counts = partition_counts(admin(self._bootstrap), self._bootstrap)
        unseen = [i for i in self.stream.sources.values() if not i.topic and any(map(i.reads_topic, inputs))]
        others = {
            (t, p)
            for t, n in counts.items()
            if t not in inputs and self.stream.has_input_topic(t) and not any(i.reads_topic(t) for i in unseen)
            for p in range(n)
        }
        for (topic, partition), end in all_end_offsets(admin(self._bootstrap), others, self._bootstrap).items():
            inputs.setdefault(topic, {})[partition] = end
        return inputs

    def is_at(self, ends: TopicOffsets, watermark_ms: int) -> bool:
        """Whether it has read to these offsets, and its watermark is this."""
        return self.last_batch >= 0 and not self.left(ends) and self.watermark_ms == watermark_ms

    def step(self, ends: TopicOffsets, watermark_ms: int, max_records: int = 0, *, exact: bool = False) -> None:
        """Run one batch that ends at these offsets or before.

        Args:
            ends: The next offsets of the running version.
            watermark_ms: Its watermark, epoch ms; that of the step is no later.
            max_records: How many records are read at most; 0 for STEP_RECORDS. Of a sink no more than of its batches.
            exact: Whether the watermark of the step is this one, though its own may be earlier.

        Raises:
            PenstockError: The step failed; a step after it runs it again. StepInterrupted if that may help.
        """
        watermark_ms = watermark_ms if exact else min(self.next_watermark_ms, watermark_ms)
        planned = self._checkpoint.planned_batch()
        if planned is None and self._step_from_archive(ends, watermark_ms, max_records):
            return
        if planned is None:
            limit = min(filter(None, (max_records, self.rows.max_records)), default=STEP_RECORDS)
            self._plan(limit_ends(self.offsets, ends, limit), watermark_ms)
            planned = self._checkpoint.planned_batch()
        # Also of a batch that a killed process has planned.
        self._limits.reads_all = planned is not None and not count_between(planned.ends, ends)
        self._run()

    def _step_from_archive(self, ends: TopicOffsets, watermark_ms: int, max_records: int) -> bool:
        """Run a step that reads the archive, if it has what comes next; whether it has."""
        steps, at = self._archive_steps, self.offsets
        own = steps.ends(at, ends, self._start.ids) if steps and len(self._subscriptions) == 1 else {}
        if not steps or not own:
            if self._reads_archive:
                self._open_query()
            return False
        bounded = limit_ends(at, own, max_records or ARCHIVE_STEP_RECORDS)
        entry = self._entry({t: {**parts, **bounded.get(t, {})} for t, parts in at.items()}, watermark_ms)
        steps.plan(self.last_batch + 1, at, entry, self._checkpoint.plan_text(self.last_batch))
        if not self._reads_archive:
            self._open_query(steps.records())
        self._limits.reads_all = not count_between(steps.batch.ends, ends)
        try:
            self._run()
        finally:
            settle(self._checkpoint, self.folder)
        return True

    def _run(self) -> None:
        self._error = None
        writer = self._encoded.writeStream.queryName(f"{self.stream.name} (new version)")
        writer = writer.outputMode(self.stream.output_mode.spark_mode)
        writer = writer.option("checkpointLocation", self._checkpoint.path).trigger(once=True)
        with clear_refusal(self.stream):
            query = self._query = writer.foreachBatch(self._compute).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as e:
            self._error = self._error or e
        finally:
            query.stop()
        if self._error is not None:
            raise step_error(self.stream.name, self._error)
        self._read_watermark([self.last_batch])

    def interrupt(self) -> None:
        """End the step that runs in another thread, which may take minutes; the next step runs it again."""
        if query := self._query:
            query.stop()

    def _compute(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._compute_batch(frame, batch_id)
        except Exception as e:
            self._error = e
            raise StepFailed from None

    def _compute_batch(self, frame: DataFrame, batch_id: int) -> None:
        query = next(query for query in self._spark.streams.active if query.name == f"{self.stream.name} (new version)")
        query_id = str(query.id)
        archived = self._archive_steps.batch if self._archive_steps and self._reads_archive else None
        batch = archived or self._checkpoint.batch(batch_id)
        self._tables.advance(BatchIdentity.of(query_id, batch), lambda: False)
        if self._upstream:
            self._upstream.begin_batch()
        self._folds.begin_batch(batch)
        if not archived:
            self._inputs.check_before(batch, CommitMarker(query_id, -1, {}, self._start.ids), query_id)
        rows = CheckedRows.of(self.stream, split_by_output(self.stream, frame.toArrow()))
        if not archived:
            self._inputs.check_after(batch)
        self.rows.write(batch_id, rows.by_output)
        self._folds.commit_batch(batch)
        self._watermark.cap(batch, bridge.BatchExecution.last_of(query))

    @property
    def next_watermark_ms(self) -> int:
        """The watermark that its records allow to its next step, epoch ms."""
        return self._next_watermark

    def _read_watermark(self, steps: Iterable[int]) -> None:
        # Spark forgets what the records of a step allowed, where the step after it was given an earlier watermark.
        for step in steps:
            allowed = committed_watermark(self._checkpoint.commit_text(step)) or 0
            self._next_watermark = max(self._next_watermark, allowed)

    def _plan(self, ends: TopicOffsets, watermark_ms: int) -> None:
        """Plan the next batch, which begins where the last one ended."""
        self._checkpoint.plan_batch(self.last_batch + 1, self._entry(ends, watermark_ms))

    def _entry(self, ends: TopicOffsets, watermark_ms: int) -> str:
        """The entry of the next batch in the offset log."""
        now, last = int(time.time() * 1000), self.last_batch
        before = self._checkpoint.batch(last).plan if last >= 0 else None
        first = {} if before else bridge.first_batch_metadata(self._spark, now)
        return batch_entry(before, first, self._subscriptions, ends, watermark_ms, now)

    @property
    def checkpoint_folder(self) -> Path:
        """The folder of its checkpoint."""
        return self.folder / CHECKPOINT

    def take_over(self, marker: CommitMarker) -> None:
        """Prepare the checkpoint to go on after a marker of the running version, which is stopped.

        Its last step is at the marker. An empty batch is planned after it, so that the next driver of the stream writes
        its commit marker at once, whether there are records or not. It has the marker's watermark, so that no record
        behind it is late that would not have been, and moves it on. The next `open` undoes this.
        """
        PlanFingerprint(self._spark, self.stream.name, self._checkpoint.path).store(self._fingerprint)
        reset = Reset(
            self.offsets, ids=self._start.ids, rebuilt=True, continues=(marker.query, marker.batch),
            cut_batch=self.last_batch + 1, cut_watermark=max(self.next_watermark_ms, marker.watermark_ms), id=self._id,
        )  # fmt: skip
        self._checkpoint.begin_with(reset.text())
        self._plan(self.offsets, marker.watermark_ms)

    def _withdraw_cut(self) -> None:
        """Undo `take_over` of a process that was killed before the checkpoint was in its place.

        The running version may have gone on.
        """
        if self._checkpoint.active_reset() is None:
            return
        if (planned := self._checkpoint.planned_batch()) is not None:
            self._checkpoint.withdraw_plan(planned.batch_id)
        self._checkpoint.withdraw_reset()

    def _read_state(self) -> dict[str, Any] | None:
        """What `open` wrote for this replacement; None if there is nothing, or it is another's."""
        try:
            state = json.loads((self.folder / STATE_FILE).read_text())
        except (OSError, ValueError):
            return None
        if state.pop("id", None) != self._id:
            return None
        starts = {t: {int(p): at for p, at in parts.items()} for t, parts in state.pop("starts").items()}
        return {**state, "starts": starts}

    def _write_state(self) -> None:
        fresh = self.folder / f"{STATE_FILE}.fresh"
        fresh.write_text(json.dumps({"id": self._id, **asdict(self._start)}))
        fresh.replace(self.folder / STATE_FILE)

    def close(self) -> None:
        """Close what it holds; its folder stays."""
        if self._upstream:
            self._upstream.close()
            self._upstream = None
        self._tables.close()
