"""One replacement of a running stream: it builds, follows, compares and cuts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.engine.checkpoint import cut_rows
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.replacement.comparison import OutputComparison, VersionComparison
from penstock.engine.replacement.cut import hand_over, show_documents
from penstock.engine.replacement.folders import new_version_folder
from penstock.engine.replacement.new_documents import NewDocuments
from penstock.engine.replacement.new_version import NewVersion
from penstock.engine.replacement.running_version import RunningPosition, RunningVersion
from penstock.engine.replacement.step_rows import EARLIER_STEP, StepRows
from penstock.errors import PenstockError
from penstock.model.output import SideOutput, WriterOwner, open_store
from penstock.model.output_mode import KeyedState, Timers
from penstock.model.target_versions import versioned_output
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.replacement.input_archive import InputArchive
    from penstock.kafka.commit_marker import TopicAndPartition
    from penstock.model.output import CommitMarker
    from penstock.model.stream import Stream

RUNNING_ROWS, REFUSED_ROWS = "running", "refused"
"""The folders, beside the new version's rows, of those of the running version, and of those that a store refuses."""
WrittenRows = Literal["differing", "all", "none"]
# Seconds that a step reads for, where the rate is limited.
STEP_SECONDS = 5
# Steps of a cut; more than that mean that the running version is not stopped.
CUT_STEPS = 1_000


@dataclass(frozen=True)
class ReplacementOptions:
    """How a stream is replaced.

    Attributes:
        since: Epoch ms from which on its inputs are read; None for what its state needs.
        rate: Records a second that the backlog is read at, at most; 0 for no limit.
        write: Which rows of keys the first batch writes, of a stream that emits changes: those that differ from what
            was written, all, or none.
        must_equal: Whether rows that differ stop the replacement.
        ignored: Columns of the values that may differ.
        back: Whether it goes on with the state that was kept of the version before the running one.
    """

    since: int | None = None
    rate: int = 0
    write: WrittenRows = "differing"
    must_equal: bool = False
    ignored: tuple[str, ...] = ()
    back: bool = False


@dataclass
class ReplacementProgress:
    """How far a replacement is.

    Attributes:
        records: Records that the new version has read.
        total: Records that it has to read to be where the running version is, those included.
        rate: Records a second, of the last steps.
        lag: Records that the running version has read and it has not.
        comparison: The last comparison; None before the first.
    """

    records: int = 0
    total: int = 0
    rate: float = 0.0
    lag: int = 0
    comparison: VersionComparison | None = None

    @property
    def remaining_ms(self) -> int | None:
        """How long the rest of the backlog takes, ms; None if that is unknown."""
        return int(self.lag / self.rate * 1000) if self.rate else None


class Replacement:
    """Builds the new version of a stream until it can take the running version's place.

    Args:
        stream: The new version.
        spark: A session for it.
        bootstrap: The broker.
        root: The root of all checkpoints.
        id: The id of the replacement.
        options: How it is done.
        archive: The archive of its input, which it reads before the topic.
    """

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        bootstrap: str,
        root: str,
        id: str,  # noqa: A002
        options: ReplacementOptions,
        archive: InputArchive | None = None,
    ) -> None:
        self._stream, self._spark, self._options = stream, spark, options
        self._bootstrap, self._root = bootstrap, root
        self._id, self._documents = id, None
        if output := versioned_output(stream):
            folder = new_version_folder(stream.name, root) / REFUSED_ROWS
            self._documents = NewDocuments(stream, output, folder, bootstrap, id, back=options.back)
        archive = None if self._documents else archive
        self.new = NewVersion(stream, spark, bootstrap, root, id, archive, self._documents)
        topics = [topic.name for topic in stream.output_topics]
        self.running = RunningVersion(stream.name, topics, bootstrap)
        self._comparison: NewDocuments | OutputComparison
        if isinstance(self.new.rows, NewDocuments):
            self._comparison = self.new.rows
        else:
            self._comparison = OutputComparison(
                stream, self.new.rows, self.new.folder / RUNNING_ROWS, bootstrap, options.ignored
            )
        self.progress = ReplacementProgress()
        # Where the running version was, and its offsets, when all was read and only the watermark had to follow. Steps
        # for that do not look again: it is ahead after each of them, if they take longer than its batches.
        self._goal: tuple[RunningPosition, TopicOffsets] | None = None
        # What was compared last: the new version's step, and the ends of the output.
        self._compared: tuple[int, dict[TopicAndPartition, int]] | None = None

    def open(self) -> None:
        """Begin, or go on where another process of it ended.

        Raises:
            PenstockError: The stream cannot be replaced.
        """
        options = self._options
        if self._documents and (options.must_equal or options.write != ReplacementOptions.write):
            raise PenstockError(
                f"the documents of sink {self._stream.name} are not compared with those of its new version",
                got="--expect" if options.must_equal else f"--write {options.write}",
                hint="replace it without this option, and with --cut manual: look at the new documents before the cut",
            )
        marker = self.running.marker()
        if marker.batch < 0:
            raise PenstockError(
                f"stream {self._stream.name} has written nothing, so there is nothing to replace",
                got="no commit marker of it",
                hint=f"release it: `penstock streams release {self._stream.name}`",
            )
        self._check_has_no_reset(marker)
        self.new.open(marker.watermark_ms, self._options.since, back=self._options.back)
        # Only now is the folder known to be of this replacement.
        self._comparison.open()
        if self._options.back and isinstance(self.new.rows, StepRows):
            active = Checkpoint(self._spark, self._root, self._stream.name).path
            self.new.rows.write(EARLIER_STEP, cut_rows.read_earlier(active))
        self._measure(marker_left=self.new.left(self.new.ends_of(marker)))

    def _check_has_no_reset(self, marker: CommitMarker) -> None:
        """A reset would be lost: the new version goes on after the last marker, and takes the place of what waits."""
        checkpoint = Checkpoint(self._spark, self._root, self._stream.name)
        if checkpoint.pending_reset() is not None or not checkpoint.wrote_marker(marker):
            raise PenstockError(
                f"stream {self._stream.name} was reset and has written nothing since, so it is not replaced",
                got=f"its last batch, {marker.batch}, is of before the reset",
                hint="let it write a batch; or reset and release it with its new code, which needs no replacement",
            )

    @property
    def is_ready(self) -> bool:
        """Whether its state is complete and its rows were compared, so that it can be cut over."""
        return self.progress.comparison is not None and not self.progress.lag

    def check_can_cut(self) -> None:
        """Raise PenstockError if a cut would be undone, before the running version is stopped for it."""
        self._check_has_no_reset(self.running.marker())

    def advance(self) -> bool:
        """Do one step towards the running version; compare where it has come there.

        Returns:
            Whether it is where the running version is.

        Raises:
            PenstockError: The step failed, or rows differ that must be equal.
        """
        if self._goal:
            position, ends = self._goal
        else:
            position = self.running.position()
            ends = self.new.ends_of(position.marker)
        began, left = time.monotonic(), self.new.left(ends)
        watermark = position.marker.watermark_ms
        if self.new.last_batch < 0 or left:
            self.new.step(ends, self._allowed(watermark), self._options.rate * STEP_SECONDS)
        elif self.new.watermark_ms < (goal := min(self.new.next_watermark_ms, self._allowed(watermark))):
            self.new.step(ends, goal)
        left_now = self.new.left(ends)
        self._pace(left - left_now, time.monotonic() - began)
        self._measure(left_now)
        if left_now:
            return False
        self._begin_comparison(position)
        if self.new.watermark_ms < min(self.new.next_watermark_ms, watermark):
            self._goal = position, ends
            return False
        self._goal = None
        if self._comparison.has_begun:
            self._compare(position)
        return True

    def _allowed(self, watermark_ms: int) -> int:
        """The watermark of the next step at most: it stops once where rows before are of part of their records."""
        complete = self.new.start.complete_at
        return min(watermark_ms, complete) if self.new.watermark_ms < complete else watermark_ms

    def _begin_comparison(self, position: RunningPosition) -> None:
        complete = self.new.start.complete_at
        if self._comparison.has_begun or self.new.watermark_ms < complete:
            return
        # Where there is a floor, each window that is read is whole.
        first = self.new.last_batch + 1 if complete and self.new.start.floor is None else 0
        self._comparison.begin(first, self.new.start.since, position.output_ends)

    def _compare(self, position: RunningPosition) -> VersionComparison:
        rows = (self.new.last_batch, position.output_ends)
        if self.progress.comparison is not None and rows == self._compared:
            return self.progress.comparison
        self._comparison.follow(self.new.last_batch + 1, position.output_ends)
        self._comparison.read_running(self._spark, position.output_ends)
        self.progress.comparison = result = self._comparison.compare()
        if self._options.must_equal and not result.agrees:
            raise PenstockError(
                f"the rows of the new version of stream {self._stream.name} are not those of the running version, "
                "so it does not take its place",
                got=f"{result.different:,} different, {result.only_new:,} only in the new, {result.only_running:,} "
                "only in the running version",
                hint=f"`penstock replacements show {self._stream.name}` shows some; mend the new version, or let "
                "columns differ with --expect equal-except:COLUMN, or expect nothing",
            )
        self._compared = rows
        return result

    def cut(self) -> None:
        """Put the new version in the running version's place, which must be stopped: its next start goes on with it.

        Raises:
            PenstockError: The new version is not complete, or rows differ that must be equal; nothing is changed.
        """
        # Whoever was paused in the middle of a batch cannot commit it any more.
        owner = WriterOwner(self._stream.name, self._stream.group, self._bootstrap)
        # The marker of a sink's batch is written in a transaction, too.
        outputs = [SideOutput(DEAD_LETTERS)] if self._documents else list(self._stream.outputs.values())
        open_store(outputs, owner).close()
        position = self.running.position()
        marker, ends = position.marker, self.new.ends_of(position.marker)
        self._check_has_no_reset(marker)
        for _ in range(CUT_STEPS):
            if self.new.is_at(ends, marker.watermark_ms):
                break
            is_read = self.new.last_batch >= 0 and not self.new.left(ends)
            self.new.step(ends, marker.watermark_ms, exact=is_read)
        self._measure(self.new.left(ends))
        if not self._comparison.has_begun or not self.new.is_at(ends, marker.watermark_ms):
            raise PenstockError(
                f"the new version of stream {self._stream.name} cannot take its place yet",
                got=f"its state is complete from {self.new.start.complete_at} on, epoch ms, and the watermark is "
                f"{self.new.watermark_ms}",
                hint="wait until it is complete",
            )
        self._compare(position)
        rows, earlier = self._rows_of_cut()
        if self.running.marker() != marker:
            raise PenstockError(
                f"stream {self._stream.name} has written meanwhile, so the new version does not take its place",
                got=f"batch {self.running.marker().batch}, and batch {marker.batch} before",
                hint="stop it, and cut again",
            )
        hand_over(self.new, marker, rows, earlier)
        show_documents(self._stream, self._id, back=self._options.back)

    def _rows_of_cut(self) -> tuple[dict[str, pa.Table], dict[str, pa.Table]]:
        """What the first batch writes besides its own rows, and what going back would write again, by output."""
        if isinstance(self._comparison, NewDocuments):
            return self._comparison.rows_to_write(), {}
        mode, write = self._stream.output_mode, self._options.write
        updates, everything = mode.updates_rows or isinstance(mode, KeyedState | Timers), write == "all"
        rows: dict[str, pa.Table] = {}
        if everything or (write == "differing" and (updates or self._options.back)):
            rows = self._comparison.rows_to_write(all_rows=everything, only_earlier=not (everything or updates))
        return rows, self._comparison.running_rows() if rows or updates else {}

    def _pace(self, records: int, seconds: float) -> None:
        """Wait so long that no more records a second are read than allowed."""
        rate = self._options.rate
        if rate and records > 0:
            time.sleep(max(0.0, records / rate - seconds))
            seconds = max(seconds, records / rate)
        if records > 0 and seconds > 0:
            self.progress.rate = records / seconds

    def _measure(self, marker_left: int) -> None:
        self.progress.lag, self.progress.records = marker_left, self.new.records
        self.progress.total = self.progress.records + marker_left

    def close(self) -> None:
        """Close what it holds; its files stay for the next process."""
        if self._documents:
            self._documents.close()
        self.new.close()
        self.running.close()
