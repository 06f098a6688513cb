"""The driver of a replacement: the process that builds the new version of a stream beside the running one.

It runs the code of the new version: `python -m penstock.engine.replacement.driver --app replacement:STREAM
--incarnation ID`. Killed anywhere, its successor goes on: what it has built is in the folder of the new version, and
what is decided is in the control database.
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.control import Control, ProgressRow
from penstock.engine.host_memory import lacking_memory
from penstock.engine.replacement.cut import discard_documents, is_handed_over, show_documents
from penstock.engine.replacement.folders import new_version_folder
from penstock.engine.replacement.input_archive import find_archive
from penstock.engine.replacement.replacement import Replacement, ReplacementOptions, ReplacementProgress
from penstock.engine.replacement.step_error import StepInterrupted
from penstock.engine.session import open_session, session_for
from penstock.errors import BrokerError, ControlError, PenstockError, Wait
from penstock.model.declaration import replaced_stream
from penstock.settings import settings
from penstock.supervision.lifecycle import Driver
from penstock.supervision.release import cut_over, undo_cut
from penstock.supervision.thread_run import ThreadRun

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

    from penstock.control import ReplacementRow
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# Seconds between two looks at the running version, once the new version is where it is.
FOLLOW_EVERY, CUT_EVERY, RETRY_EVERY = 1.0, 0.1, 5.0
# Seconds that a stop waits for a step, and that the first batch of the new version is waited for after the cut.
STOP_TIMEOUT, PAUSE_TIMEOUT = 60.0, 50.0
# How often in a row a step is run again. A broker that is away is waited for as long as it is, before the next step.
MAX_INTERRUPTED = 5
# Ms that the running version may be behind before the new version waits for it.
MAX_BEHIND_MS = 30_000


class ReplacementRun(ThreadRun):
    """Does the work of one replacement, in a thread.

    Args:
        stream: The new version.
        control: The control database.
        figures: Its progress.
        streams: All streams of the project, those of archives too.
    """

    def __init__(self, stream: Stream, control: Control, figures: ProgressRow, streams: Collection[Stream]) -> None:
        super().__init__(f"replacement of {stream.name}", figures, STOP_TIMEOUT)
        self._stream, self._control, self._streams = stream, control, streams
        self._spark: SparkSession | None = None
        self._replacement: Replacement | None = None
        # Whether it is at the cut, which is better finished.
        self._cuts = False
        # How often a step was interrupted, one time after the other.
        self._interrupted = 0

    def reconcile(self) -> None:
        """Start the thread if it does not run."""
        if not self.active:
            self.start()

    def stop(self) -> None:
        """As of each run, without the rest of a step: who waits for it is killed, and then its files stay."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_TIMEOUT
        while self._thread and self.active and not self._cuts and time.monotonic() < deadline:
            if replacement := self._replacement:
                with suppress(Exception):
                    replacement.new.interrupt()
            self._thread.join(CUT_EVERY)
        super().stop()

    def report(self) -> ProgressRow:
        self.update_rate(time.monotonic())
        return self.figures

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                wait = self._step(stopping)
            except (BrokerError, ControlError, Wait) as e:
                log.warning("the replacement of %s waits: %s", self._stream.name, e)
                self._say(str(e))
                self._close()
                wait = RETRY_EVERY
            except Exception as e:
                if stopping.is_set():
                    log.info("the replacement of %s is stopped: %s", self._stream.name, e)
                    break
                wait = self._run_again(e) if isinstance(e, StepInterrupted) else self._fail(e)
            if wait is None:
                break
            stopping.wait(wait)
        self._close()
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
        # A driver leaves as soon as its replacement has ended, perhaps before the next step. Before its session ends,
        # Spark's maintenance of state may write where the checkpoint was.
        with suppress(ControlError):
            row = self._control.replacement_of(self._stream.name)
            if row and not row.is_open:
                self._clear(row)

    def _clear(self, row: ReplacementRow) -> None:
        """Remove what a replacement that has ended leaves."""
        shutil.rmtree(new_version_folder(self._stream.name, settings().checkpoint_root), ignore_errors=True)
        if row.state in ("cancelled", "failed"):
            try:
                discard_documents(self._stream, row.id, back=bool(row.options.get("back")))
            except PenstockError as e:
                log.warning("the next replacement of %s removes what is left of this one: %s", self._stream.name, e)

    def _step(self, stopping: threading.Event) -> float | None:
        """Do what is due; seconds to wait before the next step, None if there is none."""
        row = self._control.replacement_of(self._stream.name)
        if row is None or not row.is_open:
            self.figures.state = "stopped"
            return None
        self._cuts = row.state == "cutting"
        if self._cuts:
            return self._cut(row, stopping)
        if self._spark is None and (lacking := lacking_memory()):
            self._say(lacking)
            self.figures.state = "queued"
            return RETRY_EVERY
        replacement = self._replacement or self._open(row)
        self.figures.state = "running"
        if row.options.get("in_place"):
            return self._stop_running_version(row)
        if row.state == "queued" and not self._control.move_replacement(row.id, "building"):
            return 0.0
        if replacement.progress.lag and (behind := self._running_behind(row)):
            self._say(f"the running version is {behind / 1000:.0f} s behind, so the new version waits for it")
            return RETRY_EVERY
        caught_up = replacement.advance()
        self._report(row, replacement)
        if not caught_up or not replacement.is_ready:
            return 0.0
        if row.state == "building" and not self._control.move_replacement(row.id, "following"):
            return 0.0
        if row.state == "following" and (row.options.get("cut", "auto") == "auto" or row.cut_requested_at):
            replacement.check_can_cut()
            cut_over(self._control, row)
            return 0.0
        return FOLLOW_EVERY

    def _stop_running_version(self, row: ReplacementRow) -> float:
        """Begin the cut of a replacement in place before there is anything to compare."""
        assert self._replacement
        self._report(row, self._replacement)
        if row.state == "queued":
            self._control.move_replacement(row.id, "building")
        elif row.state == "building":
            self._control.move_replacement(row.id, "following")
        else:
            cut_over(self._control, row)
        return 0.0

    def _open(self, row: ReplacementRow) -> Replacement:
        if self._spark is None:
            self._spark = open_session(row.app)
        session = session_for(self._spark, self._stream)
        options = options_of(row.options)
        root = settings().checkpoint_root
        archive = find_archive(self._stream, self._streams) if row.options.get("archive", True) else None
        self._replacement = Replacement(self._stream, session, settings().bootstrap, root, row.id, options, archive)
        self._replacement.open()
        if not row.figures:
            # The first step may take minutes.
            self._control.report_replacement(row.id, figures=_figures(self._replacement.progress))
        return self._replacement

    def _cut(self, row: ReplacementRow, stopping: threading.Event) -> float:
        """Finish the cut once no driver of the running version can write."""
        replacement = self._replacement
        if replacement is None:
            if self._handed_over(row):
                show_documents(self._stream, row.id, back=bool(row.options.get("back")))
                return self._end_cut(row, {})
            replacement = self._open(row)
        while not stopping.is_set() and self._running_version_runs(row):
            # The less is left, the shorter is the pause of the output.
            if row.options.get("in_place") or replacement.advance():
                stopping.wait(CUT_EVERY)
        # Of a replacement in place all is left.
        while not stopping.is_set() and not (replacement.is_ready or replacement.advance()):
            self._report(row, replacement)
        if stopping.is_set():
            return 0.0
        began = time.monotonic()
        replacement.cut()
        self._report(row, replacement)
        return self._end_cut(row, {"cut_ms": round((time.monotonic() - began) * 1000)})

    def _end_cut(self, row: ReplacementRow, figures: dict[str, Any]) -> float:
        """Let the next driver start the stream, and measure how long there was no output."""
        current = self._control.replacement(row.id)
        assert current
        stopped_at = self._committed_at(row)
        figures = {**current.figures, **figures}
        self._control.move_replacement(row.id, "cut", figures=figures)
        self._close()
        deadline = time.monotonic() + PAUSE_TIMEOUT
        while stopped_at and time.monotonic() < deadline:
            if (goes_on_at := self._committed_at(row)) > stopped_at:
                self._control.report_replacement(row.id, figures={**figures, "pause_ms": goes_on_at - stopped_at})
                break
            time.sleep(CUT_EVERY)
        else:
            if stopped_at:
                pause = {"pause_over_ms": self._control.now() - stopped_at}
                self._control.report_replacement(row.id, figures={**figures, **pause})
        return 0.0

    def _committed_at(self, row: ReplacementRow) -> int:
        """When the last batch of the stream was committed, epoch ms by the control database; 0 if that is unknown."""
        progress = self._control.progress(row.app).get(self._stream.name)
        return (progress.batch_at or 0) if progress else 0

    def _running_version_runs(self, row: ReplacementRow) -> bool:
        """Whether the lease of the stream is held by a driver from before the release that the cut made."""
        lease = self._control.leases().get(self._stream.name)
        holder = self._control.driver(lease.holder) if lease else None
        return holder is not None and row.release_seq is not None and holder.release_seq < row.release_seq

    def _handed_over(self, row: ReplacementRow) -> bool:
        """Whether a process that was killed had put the new version in its place."""
        if self._spark is None:
            self._spark = open_session(row.app)
        return is_handed_over(self._spark, settings().checkpoint_root, self._stream.name, row.id)

    def _running_behind(self, row: ReplacementRow) -> int:
        """Ms that the running version is behind, if that is too much; 0 if not."""
        progress = self._control.progress(row.app).get(self._stream.name)
        # One that is blocked or stopped does not come closer by waiting.
        behind = (progress.behind_ms or 0) if progress and progress.state == "running" else 0
        return behind if behind > MAX_BEHIND_MS else 0

    def _report(self, row: ReplacementRow, replacement: Replacement) -> None:
        self._interrupted, progress = 0, replacement.progress
        self.figures.rows_in, self.figures.lag = progress.records, progress.lag
        self._control.report_replacement(row.id, why="", figures=_figures(progress))

    def _say(self, why: str) -> None:
        """Report what the replacement waits for, if the control database answers."""
        try:
            if row := self._control.replacement_of(self._stream.name):
                # While it waits, it comes no nearer to its end.
                figures = {**row.figures, "rate": 0.0, "remaining_ms": None} if row.figures else None
                self._control.report_replacement(row.id, why=why, figures=figures)
        except ControlError as e:
            log.warning("what the replacement of %s waits for could not be reported: %s", self._stream.name, e)

    def _run_again(self, error: StepInterrupted) -> float:
        """Let a step run again, unless that has not helped."""
        self._interrupted += 1
        if self._interrupted > MAX_INTERRUPTED:
            return self._fail(error)
        log.warning("the replacement of %s runs a step again: %s", self._stream.name, error)
        self._say(str(error))
        self._close()
        return RETRY_EVERY

    def _fail(self, error: Exception) -> float:
        """Let the running version go on, because of an error that would come again."""
        log.error("the replacement of %s failed", self._stream.name, exc_info=error)
        why = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        try:
            row = self._control.replacement_of(self._stream.name)
            if row and row.state == "cutting" and self._handed_over(row):
                log.error("the replacement of %s is in place: %s", self._stream.name, why)
                self._say(why)
                return RETRY_EVERY
            if row and row.is_open:
                if self._replacement is not None:
                    # What it has compared may be the reason.
                    self._report(row, self._replacement)
                undo_cut(self._control, row, why)
        except ControlError as e:
            log.warning("the end of the replacement of %s could not be reported: %s", self._stream.name, e)
            return RETRY_EVERY
        finally:
            self._close()
        return 0.0

    def _close(self) -> None:
        if self._replacement is not None:
            self._replacement.close()
            self._replacement = None


class ReplacementDriver(Driver):
    """Runs one replacement."""

    def create_run(self, name: str, figures: ProgressRow) -> ReplacementRun:
        stream = replaced_stream(name)
        assert stream
        return ReplacementRun(self.catalog.stream(stream), self._control, figures, self.catalog.streams.values())


def _figures(progress: ReplacementProgress) -> dict[str, Any]:
    compared = asdict(progress.comparison) if progress.comparison else {}
    return {
        "records": progress.records, "total": progress.total, "rate": progress.rate, "lag": progress.lag,
        "remaining_ms": progress.remaining_ms, **compared,
    }  # fmt: skip


def options_of(options: dict[str, Any]) -> ReplacementOptions:
    """The options of a replacement's row."""
    expected = options.get("expect") or {}
    return ReplacementOptions(
        since=options.get("from"), rate=options.get("rate") or 0, write=options.get("write") or "differing",
        must_equal=bool(expected.get("equal")), ignored=tuple(expected.get("except", ())),
        back=bool(options.get("back")),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(ReplacementDriver.main())
