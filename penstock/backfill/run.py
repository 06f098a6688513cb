"""A backfill from beginning to end: read, made into rows, written, verified.

What is read and made lies in a folder of the job's own until it is written and verified; how many of the rows are
written stands in the job's mark, in their own transactions. So a run that was cut off anywhere is taken up again where
it was: the same records give the same rows in the same order, even if the archive has got more meanwhile, and those
come with the next run. Who does the same job at the same time is fenced.
"""

from __future__ import annotations

import errno
import json
import logging
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from penstock.archive import parquet
from penstock.archive.layout import Span
from penstock.backfill import transform as making
from penstock.backfill.archive_source import ArchiveSource
from penstock.backfill.job import BackfillJob, BackfillMarker
from penstock.backfill.mongodb_source import MongoDBSource
from penstock.backfill.preflight import (
    TargetTopic,
    Watermarks,
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
from penstock.errors import BackfillError, InputNotReady, PenstockError
from penstock.host import files
from penstock.kafka.admin import admin, ensure_topics, log_end_offsets, partition_counts
from penstock.kafka.commit_marker import read_marker_value
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.backfill import Collection
from penstock.model.output import TopicOutput
from penstock.model.stream import Stream
from penstock.model.topic import COMMITS
from penstock.settings import settings
from penstock.supervision.launch import spec_hash

log = logging.getLogger(__name__)

# Rows that a dry run shows.
DRY_RUN_ROWS = 5
# Types of whole numbers.
INTEGER_TYPES = ("tinyint", "smallint", "int", "bigint")
# Seconds between two looks at the readers' lag, and for which they may hold a run up without a pause.
LAG_INTERVAL, MAX_LAG_WAIT = 1.0, 3600.0
STOPPED_REASON = "it was asked to end; run it again, and it goes on where it was"
UNREACHABLE_ERRNOS = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
# As a shell has it of one that SIGTERM ended.
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
    behind: ReaderLag = dict,
    watermarks: Watermarks = dict,
    recompute: Recompute,
) -> BackfillResult:
    """Do a job, or the rest of it. BackfillError if it is refused, or the target then holds other than the source."""
    progress = BackfillProgress(f"backfill {job.status_key}", report)
    # A dry run is in nobody's way, and nobody in its.
    folder = settings().home / "backfills" / f"{job.short_hash}{'.dry' if job.dry_run else ''}"
    try:
        with files.locked(folder.with_name(f"{folder.name}.lock")):
            return _Run(job, bootstrap, folder, progress, behind, watermarks, recompute).done()
    except PenstockError as e:
        progress.update(state="failed", why=str(e))
        raise
    except OSError as e:
        error = _os_error(job, folder, e)
        progress.update(state="failed", why=str(error))
        raise error from e
    except (KeyboardInterrupt, SystemExit):
        progress.update(state="stopped", why=STOPPED_REASON)
        raise
    except Exception as e:
        if isinstance(e, RuntimeError) and "Query interrupted" in str(e):
            # DuckDB says so instead of what a signal's handler raised within a query.
            progress.update(state="stopped", why=STOPPED_REASON)
            raise SystemExit(SIGTERM_STATUS) from e
        progress.update(state="failed", why=f"{type(e).__name__}: {e}")
        raise


def _os_error(job: BackfillJob, folder: Path, e: OSError) -> BackfillError:
    """Of the disk, or of a connection: Python has one class for both."""
    if isinstance(e, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError) or e.errno in UNREACHABLE_ERRNOS:
        return InputNotReady(
            f"backfill {job.id}: a connection was lost, or none came about",
            got=f"{type(e).__name__}: {e}",
            hint="see that what it reads and the broker run: penstock doctor; then run it again, and it goes on",
        )
    return BackfillError(
        f"backfill {job.id}: the disk does not take, or give, what was read",
        got=e,
        hint=f"make room below {folder.parent}, or take shorter intervals; then run it again, and it goes on",
    )


class _Run:
    def __init__(
        self,
        job: BackfillJob,
        bootstrap: str,
        folder: Path,
        progress: BackfillProgress,
        behind: ReaderLag,
        watermarks: Watermarks,
        recompute: Recompute,
    ) -> None:
        self._job, self._bootstrap, self._folder = job, bootstrap, folder
        self._progress, self._behind, self._recompute = progress, behind, recompute
        self._watermarks = watermarks
        self._looked = float("-inf")
        self._fetched: list[Path] = []
        self._said, self._target = "", TargetTopic(compacted=False, id="", settings={})

    def done(self) -> BackfillResult:
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
            job.marker_key, f"penstock.backfill.{job.short_hash}", self._bootstrap, COMMITS, "backfill", [job.target]
        )
        try:
            done = BackfillMarker.read(writer.read_marker())
            while (plan := self._planned(source, done)) is not None:
                done = self._ended(source, plan, writer)
                rows += done.rows - plan.written
        finally:
            writer.close()
        assert done is not None
        shutil.rmtree(self._folder, ignore_errors=True)
        said = self._said or unchanged_text(source, done)
        self._progress.update(state="done", rows=done.rows, rows_done=done.rows, verified=said)
        return BackfillResult(rows, said)

    def _source(self) -> BackfillSource:
        def waits(why: str) -> None:
            self._progress.update(state="waiting", why=why)

        job = self._job
        if job.archive is not None:
            return ArchiveSource(job, self._bootstrap, waits)
        source, rows = job.backfill.source, job.backfill.rows
        assert isinstance(source, Collection)
        fields = rows.fields(f"backfill {job.name}") if rows else ()
        return MongoDBSource(source, [field.name for field in fields if field.type.kind in INTEGER_TYPES], waits)

    def _ended(self, source: BackfillSource, plan: BackfillMarker, writer: TransactionalWriter) -> BackfillMarker:
        """Write what is not written of a plan, and verify it."""
        job = self._job
        path = self._made(source, plan)
        left_out = self._left_out(source)
        plan = replace(self._counted(plan, path), skipped=left_out.count)
        if plan.written:
            log.info("backfill %s: goes on behind %d of %d rows", job.id, plan.written, plan.rows)
        if not plan.rows:
            self._said = self._said or no_rows_text(source)
            log.warning("backfill %s: %s", job.id, self._said)
        self._keeps(plan, path)
        self._progress.update(rows=plan.rows, rows_done=plan.written)
        plan = write_rows(job, plan, path, writer, RateLimiter(job.rate), self._waited)
        if plan.rows:
            self._verify(plan, path)
        self._said += left_out.summary
        plan = replace(plan, verified=True)
        writer.commit([], plan.value())
        return plan

    def _verify(self, plan: BackfillMarker, path: Path) -> None:
        job = self._job
        self._progress.update(state="verifying", rows_done=0)
        with self._progress.keepalive("what was written is compared with what was to be"):
            verdict = verify_target(
                job, plan, path, self._bootstrap, self._target.compacted, lambda n: self._progress.update(rows_done=n)
            )
        if not verdict.ok:
            raise BackfillError(
                f"backfill {job.id}: {verdict.summary}",
                hint=f"see who else writes to {job.target} or cleans it; then do it once more: --again",
            )
        self._said = verdict.summary

    def _planned(self, source: BackfillSource, done: BackfillMarker | None) -> BackfillMarker | None:
        """What is to be done; None if it was. Records that were begun with are ended as they were begun; rows that were
        made of other records, or by other code, are made anew."""
        job, code = self._job, self._code()
        spans = self._spans(source)
        if done is not None and done.target_id not in ("", self._target.id):
            log.warning("backfill %s: topic %s was made again since, and gets all of it once more", job.id, job.target)
            done = None
        again = job.again or (done.again if done else "")
        fresh = BackfillMarker(
            spans, {}, source.ids, code, self._first(), 0, again=again, job=job.id, target_id=self._target.id
        )
        if done is None or fresh.again != done.again:
            return fresh
        same = job.replays or (done.code == code and dict(done.source_spans) == dict(spans))
        if not same:
            return fresh
        if not done.verified:
            # Those that are made once more may be others in the last digits of a sum.
            if done.written and not job.replays and not self._has(done):
                log.warning("backfill %s: the rows that it was writing are gone, and all are written anew", job.id)
                return replace(fresh, generation=done.generation + 1)
            return done
        if dict(done.source_spans) == dict(spans):
            return None
        if changed := {topic for topic, given in done.topic_ids.items() if source.ids.get(topic, given) != given}:
            raise BackfillError(
                f"backfill {job.name}: the archived topic was deleted and made again since this interval was written",
                got=", ".join(sorted(changed)),
                hint="nothing tells old records from new ones any more; to write all of them once more: --again",
            )
        return replace(fresh, after_offsets={place: span.last + 1 for place, span in done.source_spans.items()})

    def _spans(self, source: BackfillSource) -> Mapping[str, Span]:
        """What is read; of documents this is known only once they are."""
        if self._job.archive is None and not self._fetched:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._fetched = self._fetch(source)
        return source.spans

    def _code(self) -> str:
        """What makes the rows: a change of it makes others."""
        backfill = self._job.backfill
        if isinstance(backfill.target, Stream):
            return spec_hash()
        output = backfill.target
        made = [repr(backfill.rows), repr((output.key, output.value)) if isinstance(output, TopicOutput) else ""]
        return sha256(json.dumps(made).encode()).hexdigest()

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

    def _has(self, plan: BackfillMarker) -> bool:
        """Whether the rows of a plan lie here, as they were made."""
        folder = self._folder.with_name(self._job.short_hash)
        return (folder / "rows.parquet").exists() and (folder / "plan").read_text() == plan.run

    def _made(self, source: BackfillSource, plan: BackfillMarker) -> Path:
        """The rows of a plan; what an earlier run of the same plan has fetched and made is taken."""
        said, rows = self._folder / "plan", self._folder / "rows.parquet"
        if not (said.exists() and said.read_text() == plan.run):
            rows.unlink(missing_ok=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        said.write_text(plan.run)
        if not rows.exists():
            self._fetched = self._fetched or self._fetch(source)
            with self._progress.keepalive("the rows are made"):
                making.make_rows(self._job, self._fetched, plan, self._folder, self._recompute)
        return rows

    def _left_out(self, source: BackfillSource) -> SkippedRecords:
        """What of the source gives no row, once the rows are made."""
        return source.left_out + SkippedRecords.load(self._folder / making.SKIPPED_FILE)

    def _fetch(self, source: BackfillSource) -> list[Path]:
        count = rows = 0

        def told(of: int) -> None:
            nonlocal count, rows
            count, rows = count + 1, rows + of
            self._progress.update(
                state="running", files=source.files, files_done=count, rows_done=rows, why="files are read"
            )

        folder = self._folder / "files"
        folder.mkdir(parents=True, exist_ok=True)
        return source.fetch(folder, told)

    def _counted(self, plan: BackfillMarker, path: Path) -> BackfillMarker:
        """BackfillError if the rows are others than those that are partly written."""
        count = making.count_rows(path)
        # Rows that were made all have a key.
        if self._target.compacted and self._job.replays and (nameless := making.count_null_keys(path)):
            raise BackfillError(
                f"backfill {self._job.id}: the topic is compacted, and takes no record without a key",
                got=f"{nameless:,} of {count:,} have none",
                hint="take another topic: --target",
            )
        if plan.written and count != plan.rows:
            raise BackfillError(
                f"backfill {self._job.id}: its records give other rows than when it began",
                got=f"{count:,} rows, and {plan.written:,} of {plan.rows:,} are written",
                hint="verify the archive: penstock archives verify; then do it once more: --again",
            )
        return replace(plan, rows=count)

    def _keeps(self, plan: BackfillMarker, path: Path) -> None:
        job = self._job
        stamped = job.replays and job.timestamps == "original"
        check_retention(job, self._target, row_extent(path, plan.written, stamped=stamped))

    def _waited(self, written: int) -> None:
        """Note what is written; return when no reader is further behind than it may be."""
        self._progress.update(state="running", rows_done=written)
        bound = self._job.backfill.max_lag.total_seconds()
        began = time.monotonic()
        while time.monotonic() >= self._looked + LAG_INTERVAL:
            self._looked = time.monotonic()
            late = {name: s for name, s in self._behind().items() if s > bound}
            if not late:
                return
            said = ", ".join(f"{name} is {s:,.0f} s behind" for name, s in sorted(late.items()))
            said = f"{said}; at most {bound:,.0f} s are declared"
            if time.monotonic() >= began + MAX_LAG_WAIT:
                raise InputNotReady(
                    f"backfill {self._job.id}: for {MAX_LAG_WAIT:,.0f} s its readers had too much lag",
                    got=f"{said}; {written:,} rows are written",
                    hint="see what holds them up: penstock streams show; then run it again: it goes on where it was",
                )
            self._progress.update(state="waiting", why=said)
            time.sleep(LAG_INTERVAL)

    def _dry(self, source: BackfillSource) -> BackfillResult:
        """As the run itself would go on from here; the mark is read beside whoever writes it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            done = BackfillMarker.read(read_marker_value(self._job.marker_key, self._bootstrap))
            if (plan := self._planned(source, done)) is None:
                assert done is not None
                count, said = done.rows, unchanged_text(source, done)
            else:
                path = self._made(source, plan)
                count = making.count_rows(path)
                self._keeps(plan, path)
                said = f"{count - plan.written:,} rows would be written to {self._job.target}; nothing was"
                said = f"{said}; {plan.written:,} of {count:,} are there already" if plan.written else said
                said = f"{said}: {no_rows_text(source)}" if not count else said
                said += self._left_out(source).summary
                self._show(path, plan.written)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._progress.update(state="done", rows=count, rows_done=0, verified=said)
        return BackfillResult(0, said)

    def _show(self, path: Path, skip: int) -> None:
        for row in next(making.read_rows(path, skip, DRY_RUN_ROWS), parquet.SCHEMA.empty_table()).to_pylist():
            log.info("%s: would write %s", self._job.id, row_text(row))
