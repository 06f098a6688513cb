"""Runs a backfill: reads the source, computes rows, writes and verifies them.

Files and rows are in a folder of the job until they are written and verified. The job's commit marker has the number of
written rows, in the transactions of the rows. So a run that failed anywhere is resumed: the same records give the same
rows in the same order. Records that were archived in the meantime are written by the next run. A second process that
runs the same job is fenced.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from penstock.archive import records
from penstock.archive.state import Span
from penstock.backfill import transform as making
from penstock.backfill.job import BackfillJob, BackfillMarker
from penstock.backfill.os_errors import NO_ROOM, os_error
from penstock.backfill.preflight import (
    TargetTopic,
    Watermarks,
    check_new_records,
    check_retention,
    check_watermark,
    read_target,
    row_extent,
)
from penstock.backfill.progress import BackfillProgress, BackfillStatus
from penstock.backfill.result_text import no_rows_text, row_text, unchanged_text
from penstock.backfill.skipped_records import SkippedRecords
from penstock.backfill.source import BackfillSource
from penstock.backfill.transform import Recompute
from penstock.backfill.verify import verify_target
from penstock.backfill.writer import RateLimiter, write_rows
from penstock.errors import BackfillError, InputNotReady, PenstockError, optional_packages
from penstock.host import files
from penstock.kafka.admin import admin, ensure_topics, log_end_offsets, partition_counts
from penstock.kafka.commit_marker import read_marker_value
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.backfill import Collection, IcebergTable
from penstock.model.output import TopicOutput
from penstock.model.stream import Stream
from penstock.model.topic import COMMITS
from penstock.settings import LIBRARY, settings
from penstock.supervision.code_snapshot import disk_digest

log = logging.getLogger(__name__)

# Rows that a dry run shows.
DRY_RUN_ROWS = 5
INTEGER_TYPES = ("tinyint", "smallint", "int", "bigint")
# Seconds between two reads of the readers' lag, and for which a run waits for them at most.
LAG_INTERVAL, MAX_LAG_WAIT = 1.0, 3600.0
STOPPED_REASON = "it was stopped; run it again: it is resumed"
# Exit status of a process that SIGTERM ended.
SIGTERM_STATUS = 143

ReaderLag = Callable[[], Mapping[str, float]]
"""How many seconds each live reader of the target is behind."""


@dataclass(frozen=True)
class BackfillResult:
    """rows: written by this run; summary: the result in a sentence."""

    rows: int
    summary: str


def run(
    job: BackfillJob,
    bootstrap: str,
    *,
    report: Callable[[BackfillStatus], None] = lambda _: None,
    reader_lag: ReaderLag = dict,
    watermarks: Watermarks = dict,
    recompute: Recompute,
) -> BackfillResult:
    """Run a job, or resume it.

    Args:
        job: The job.
        bootstrap: The brokers.
        report: Called with the status.
        reader_lag: Returns the lag of the target's readers.
        watermarks: Returns the watermarks of streams.
        recompute: Computes windows of streams.

    Raises:
        BackfillError: The job is refused, or the target does not contain the rows.
    """
    progress = BackfillProgress(f"backfill {job.status_key}", report)
    # A dry run has its own folder and lock.
    folder = settings().home / "backfills" / f"{job.short_hash}{'.dry' if job.dry_run else ''}"
    try:
        with files.locked(folder.with_name(f"{folder.name}.lock")):
            return _Run(job, bootstrap, folder, progress, reader_lag, watermarks, recompute).execute()
    except PenstockError as e:
        progress.update(state="failed", why=str(e))
        raise
    except (OSError, *NO_ROOM) as e:
        error = os_error(job, folder, e)
        progress.update(state="failed", why=str(error))
        raise error from e
    except (KeyboardInterrupt, SystemExit):
        progress.update(state="stopped", why=STOPPED_REASON)
        raise
    except Exception as e:
        if isinstance(e, RuntimeError) and "Query interrupted" in str(e):
            # DuckDB raises this in place of the exception of a signal handler.
            progress.update(state="stopped", why=STOPPED_REASON)
            raise SystemExit(SIGTERM_STATUS) from e
        progress.update(state="failed", why=f"{type(e).__name__}: {e}")
        raise


class _Run:
    def __init__(
        self,
        job: BackfillJob,
        bootstrap: str,
        folder: Path,
        progress: BackfillProgress,
        reader_lag: ReaderLag,
        watermarks: Watermarks,
        recompute: Recompute,
    ) -> None:
        self._job, self._bootstrap, self._folder = job, bootstrap, folder
        self._progress, self._reader_lag, self._recompute = progress, reader_lag, recompute
        self._watermarks = watermarks
        self._checked_at = float("-inf")
        self._fetched: list[Path] = []
        self._summary, self._target = "", TargetTopic(compacted=False, id="", settings={})

    def execute(self) -> BackfillResult:
        job = self._job
        check_watermark(job, self._watermarks)
        self._target = read_target(job, self._bootstrap)
        source = self._source()
        self._progress.update(state="running", files=source.files, rows=source.rows)
        if job.dry_run:
            return self._dry(source)
        ensure_topics([COMMITS], self._bootstrap)
        rows = 0
        writer = TransactionalWriter(
            job.marker_key, f"penstock.backfill.{job.short_hash}", self._bootstrap, COMMITS, "", [job.target]
        )
        try:
            marker = self._job.parse_marker(writer.read_marker())
            while (plan := self._plan(source, marker)) is not None:
                marker = self._write_and_verify(source, plan, writer)
                rows += marker.rows - plan.written
        finally:
            writer.close()
        assert marker is not None
        shutil.rmtree(self._folder, ignore_errors=True)
        summary = self._summary or unchanged_text(source, marker)
        self._progress.update(state="done", rows=marker.rows, rows_done=marker.rows, verified=summary)
        return BackfillResult(rows, summary)

    def _source(self) -> BackfillSource:
        def waits(why: str) -> None:
            self._progress.update(state="waiting", why=why)

        job = self._job
        if job.archive is not None:
            with optional_packages():
                from penstock.backfill.archive_source import ArchiveSource
            return ArchiveSource(job, self._bootstrap, waits)
        source, fields = job.backfill.source, job.backfill.fields
        if isinstance(source, IcebergTable):
            with optional_packages():
                from penstock.backfill.iceberg_source import IcebergSource
            return IcebergSource(job, waits)
        assert isinstance(source, Collection)
        with optional_packages():
            from penstock.backfill.mongodb_source import MongoDBSource
        return MongoDBSource(source, [field.name for field in fields if field.type.kind in INTEGER_TYPES], waits)

    def _write_and_verify(
        self, source: BackfillSource, plan: BackfillMarker, writer: TransactionalWriter
    ) -> BackfillMarker:
        """Write the rest of a plan's rows, and verify them."""
        job = self._job
        path = self._make_rows(source, plan)
        skipped_records = self._skipped_records(source)
        plan = replace(self._with_row_count(plan, path), skipped=skipped_records.count)
        if plan.written:
            log.info("backfill %s: goes on behind %d of %d rows", job.id, plan.written, plan.rows)
        if not plan.rows:
            self._summary = self._summary or no_rows_text(source)
            log.warning("backfill %s: %s", job.id, self._summary)
        self._check_retention(plan, path)
        self._progress.update(rows=plan.rows, rows_done=plan.written)
        plan = write_rows(job, plan, path, writer, RateLimiter(job.rate), self._on_progress)
        if plan.rows:
            self._verify(plan, path)
        self._summary += skipped_records.summary
        plan = replace(plan, verified=True)
        writer.commit([], plan.value())
        return plan

    def _verify(self, plan: BackfillMarker, path: Path) -> None:
        job = self._job
        self._progress.update(state="verifying", rows_done=0)
        with self._progress.keepalive("what was written is compared with what was to be"):
            verification = verify_target(
                job, plan, path, self._bootstrap, self._target.compacted, lambda n: self._progress.update(rows_done=n)
            )
        if not verification.ok:
            raise BackfillError(
                f"backfill {job.id}: {verification.summary}",
                hint=f"see who else writes to {job.target} or cleans it; then do it once more: --again",
            )
        self._summary = verification.summary

    def _plan(self, source: BackfillSource, previous: BackfillMarker | None) -> BackfillMarker | None:
        """The rows to write; None if all are written and verified.

        An unfinished plan of the same records and code is resumed; else the rows are computed again.
        """
        job, code = self._job, self._code()
        spans = self._spans(source)
        if previous is not None and previous.target_id not in ("", self._target.id):
            log.warning("backfill %s: topic %s was recreated since, and all rows are written again", job.id, job.target)
            previous = None
        request = job.again or (previous.again if previous else "")
        new = BackfillMarker(
            spans, {}, source.ids, code, self._first(), 0, again=request, job=job.id, target_id=self._target.id
        )
        if previous is None or new.again != previous.again:
            return new
        is_same = job.replays or (previous.code == code and dict(previous.source_spans) == dict(spans))
        if not is_same:
            return new
        if not previous.verified:
            # Rows that are computed again may differ in the last digits of a sum.
            if previous.written and not job.replays and not self._has_rows(previous):
                log.warning("backfill %s: the computed rows are lost; all are computed and written again", job.id)
                return replace(new, generation=previous.generation + 1)
            return previous
        if dict(previous.source_spans) == dict(spans):
            return None
        check_new_records(job, previous, source.ids, self._files(source))
        return replace(
            new, after_offsets={partition: span.last + 1 for partition, span in previous.source_spans.items()}
        )

    def _spans(self, source: BackfillSource) -> Mapping[str, Span]:
        """The records of the source; those of no archive are read first."""
        if self._job.archive is None and not self._fetched:
            shutil.rmtree(self._folder / "files", ignore_errors=True)
            self._fetched = self._fetch(source)
        return source.spans

    def _code(self) -> str:
        """Hash of all that determines the rows."""
        backfill = self._job.backfill
        if isinstance(backfill.target, Stream):
            return sha256(f"{disk_digest(settings().project)} {disk_digest(LIBRARY / 'penstock')}".encode()).hexdigest()
        output = backfill.target
        parts = [repr(backfill.rows), repr((output.key, output.value)) if isinstance(output, TopicOutput) else ""]
        return sha256(json.dumps(parts).encode()).hexdigest()

    def _first(self) -> dict[int, int]:
        client, topic = admin(self._bootstrap), self._job.target
        count = partition_counts(client, self._bootstrap)[topic]
        ends = log_end_offsets(client, [(topic, p) for p in range(count)], self._bootstrap)
        if len(ends) < count:
            raise BackfillError(
                f"backfill {self._job.name}: partitions of topic {topic} have no leader",
                got=f"{count - len(ends)} of {count}",
                hint="wait until the broker is whole, and run it again",
            )
        return {p: at for (_, p), at in ends.items()}

    def _has_rows(self, plan: BackfillMarker) -> bool:
        """Whether the computed rows of a plan exist on this machine."""
        folder = self._folder.with_name(self._job.short_hash)
        return (folder / "rows.parquet").exists() and (folder / "plan").read_text() == plan.run

    def _make_rows(self, source: BackfillSource, plan: BackfillMarker) -> Path:
        """The file of a plan's rows; uses what an earlier run of the same plan has fetched and computed."""
        plan_file, rows = self._folder / "plan", self._folder / "rows.parquet"
        if not (plan_file.exists() and plan_file.read_text() == plan.run):
            rows.unlink(missing_ok=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        plan_file.write_text(plan.run)
        if not rows.exists():
            fetched = self._files(source)
            with self._progress.keepalive("the rows are made"):
                making.make_rows(self._job, fetched, plan, self._folder, self._recompute)
        return rows

    def _skipped_records(self, source: BackfillSource) -> SkippedRecords:
        """The records that give no row, known once the rows are computed."""
        return source.skipped_records + SkippedRecords.load(self._folder / making.SKIPPED_FILE)

    def _files(self, source: BackfillSource) -> list[Path]:
        self._fetched = self._fetched or self._fetch(source)
        return self._fetched

    def _fetch(self, source: BackfillSource) -> list[Path]:
        file_count = row_count = 0

        def on_file(count_of_file: int) -> None:
            nonlocal file_count, row_count
            file_count, row_count = file_count + 1, row_count + count_of_file
            self._progress.update(
                state="running", files=source.files, files_done=file_count, rows_done=row_count, why="files are read"
            )

        folder = self._folder / "files"
        folder.mkdir(parents=True, exist_ok=True)
        return source.fetch(folder, on_file)

    def _with_row_count(self, plan: BackfillMarker, path: Path) -> BackfillMarker:
        """Add the number of rows to a plan; BackfillError if it differs from that of the rows partly written."""
        count = making.count_rows(path)
        # Computed rows always have a key.
        if self._target.compacted and self._job.replays and (without_key := making.count_null_keys(path)):
            raise BackfillError(
                f"backfill {self._job.id}: the topic is compacted, and takes no record without a key",
                got=f"{without_key:,} of {count:,} have none",
                hint="take another topic: --target",
            )
        if plan.written and count != plan.rows:
            raise BackfillError(
                f"backfill {self._job.id}: its records give other rows than when it began",
                got=f"{count:,} rows, and {plan.written:,} of {plan.rows:,} are written",
                hint="verify the archive: penstock archives verify; then do it once more: --again",
            )
        return replace(plan, rows=count)

    def _check_retention(self, plan: BackfillMarker, path: Path) -> None:
        job = self._job
        stamped = job.replays and job.timestamps == "original"
        check_retention(job, self._target, row_extent(path, plan.written, stamped=stamped))

    def _on_progress(self, written: int) -> None:
        """Report the number of written rows, and wait while a reader lags more than `max_lag`."""
        self._progress.update(state="running", rows_done=written)
        bound = self._job.backfill.max_lag.total_seconds()
        started = time.monotonic()
        while time.monotonic() >= self._checked_at + LAG_INTERVAL:
            self._checked_at = time.monotonic()
            lagging = {name: s for name, s in self._reader_lag().items() if s > bound}
            if not lagging:
                return
            lag_text = ", ".join(f"{name} is {s:,.0f} s behind" for name, s in sorted(lagging.items()))
            lag_text = f"{lag_text}; at most {bound:,.0f} s are declared"
            if time.monotonic() >= started + MAX_LAG_WAIT:
                raise InputNotReady(
                    f"backfill {self._job.id}: for {MAX_LAG_WAIT:,.0f} s its readers had too much lag",
                    got=f"{lag_text}; {written:,} rows are written",
                    hint="see what holds them up: penstock streams show; then run it again: it is resumed",
                )
            self._progress.update(state="waiting", why=lag_text)
            time.sleep(LAG_INTERVAL)

    def _dry(self, source: BackfillSource) -> BackfillResult:
        """Show what the run would do; the marker is read without fencing a run."""
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            marker = self._job.parse_marker(read_marker_value(self._job.marker_key, self._bootstrap))
            if (plan := self._plan(source, marker)) is None:
                assert marker is not None
                count, summary = marker.rows, unchanged_text(source, marker)
            else:
                path = self._make_rows(source, plan)
                count = making.count_rows(path)
                self._check_retention(plan, path)
                summary = f"{count - plan.written:,} rows would be written to {self._job.target}; nothing was"
                summary = f"{summary}; {plan.written:,} of {count:,} are there already" if plan.written else summary
                summary = f"{summary}: {no_rows_text(source)}" if not count else summary
                summary += self._skipped_records(source).summary
                self._show(path, plan.written)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._progress.update(state="done", rows=count, rows_done=0, verified=summary)
        return BackfillResult(0, summary)

    def _show(self, path: Path, skip: int) -> None:
        for row in next(making.read_rows(path, skip, DRY_RUN_ROWS), records.SCHEMA.empty_table()).to_pylist():
            log.info("%s: would write %s", self._job.id, row_text(row))
