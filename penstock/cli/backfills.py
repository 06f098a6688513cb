"""`penstock backfill`: write an interval of an archive or an Iceberg table, or a MongoDB collection, to a topic."""

from __future__ import annotations

import getpass
import signal
import socket
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from penstock.catalog import Catalog
from penstock.cli.arguments import AsJson, DryRun, as_utc, completion, look_up, time_option, valid_catalog
from penstock.cli.output import actor, clear_errors, console, echo, emit, table
from penstock.cli.spark import session
from penstock.errors import BackfillError, BrokerError, ControlError, InputNotReady, RecordTooLarge, Wait
from penstock.logs import setup
from penstock.model.archive import Archive
from penstock.model.backfill import Backfill, IcebergTable
from penstock.model.stream import Stream
from penstock.settings import settings

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.backfill.job import BackfillJob

app = typer.Typer(no_args_is_help=True, help="Write archives, Iceberg tables and MongoDB collections to topics.")


# EX_TEMPFAIL of sysexits.h.
TEMPORARY_FAILURE = 75


class Timestamps(StrEnum):
    original = "original"
    now = "now"


Name = Annotated[str, typer.Argument(help="A declared backfill.", autocompletion=completion("backfills"))]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List declared backfills: source, target and DAG."""
    backfills: list[dict[str, Any]] = [
        {
            "name": one.name, "source": one.reads[0].name, "target": one.target_topic,
            "dag": f"backfill_{one.name}" if one.runnable else None, "scheduled": one.runnable and one.scheduled,
            "description": one.description,
        }
        for one in sorted(valid_catalog().backfills.values(), key=lambda one: one.name)
    ]  # fmt: skip
    if as_json:
        emit(backfills)
        return
    rows = table(["backfill", "source", "target", "DAG", "scheduled", "for"])
    for one in backfills:
        cells = (one["name"], one["source"], one["target"], one["dag"] or "none: its source is outside")
        rows.add_row(*cells, "yes" if one["scheduled"] else "no", one["description"])
    console().print(rows if backfills else "No backfills are declared: see docs/backfills.md.")


@app.command()
def run(
    name: Name,
    begin: Annotated[datetime | None, time_option("--from", "Begin of the interval in event time")] = None,
    end: Annotated[
        datetime | None,
        time_option("--to", "End of the interval, exclusive; default: the end of the last full hour"),
    ] = None,
    target: Annotated[str, typer.Option(help="Another topic with the same schema, instead of the declared one.")] = "",
    source: Annotated[
        str, typer.Option(help="Another archive, instead of the declared one; only if records are written unchanged.")
    ] = "",
    rate: Annotated[int | None, typer.Option(min=0, help="Records per second at most; 0 for no limit.")] = None,
    dry: DryRun = False,
    timestamps: Annotated[
        Timestamps,
        typer.Option(help="Timestamps of records that are written unchanged: their own, or the present time."),
    ] = Timestamps.original,
    unclosed: Annotated[
        bool, typer.Option("--unclosed", help="Read hours that are not closed yet, although more records may arrive.")
    ] = False,
    as_of: Annotated[
        datetime | None,
        time_option("--as-of", "Read the archive or table as it was at this time, with hours that were open"),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Write an interval that was written before.")] = False,
    request: Annotated[
        str, typer.Option(help="An id of the run with --again: a run with the same id continues the earlier one.")
    ] = "",
    owner: Annotated[str, typer.Option(help="The name shown on the operator page; default: user and host.")] = "",
) -> None:
    """Write an interval of the source to the target. A run that was interrupted continues where it was.

    Exit code 1 if the run is refused, or if the target differs from the source afterwards; 75 if the same command may
    succeed later.
    """
    from penstock.backfill.changed_partitions import emit_changed_partitions
    from penstock.backfill.reporter import control_reporter
    from penstock.backfill.run import run as run_job
    from penstock.backfill.stream_lag import reader_lag, stream_watermarks
    from penstock.control import connect

    setup("backfill")
    with clear_errors(), _temporary_failures():
        catalog = valid_catalog()
        run_id = (request or uuid4().hex) if again else ""
        job = _job(catalog, name, begin, end, target, source, rate, dry, timestamps, unclosed, run_id, as_utc(as_of))
        control = connect()
        if not (dry or owner):
            control.record(actor(), "backfill", name, job.id)
        report = control_reporter(control, job, owner or f"{getpass.getuser()}@{socket.gethostname()}")
        with _sigterm() as terminated:
            result = run_job(
                job, settings().bootstrap, report=report, reader_lag=reader_lag(catalog, job.target, control),
                watermarks=stream_watermarks(control), recompute=partial(_recompute, terminated),
            )  # fmt: skip
        if not dry:
            emit_changed_partitions(catalog, control, job.target, job.begin, job.end)
    # One line, which Airflow stores as the result of the task.
    echo(f"{job.id}: {result.rows:,} rows written; {result.summary}")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="Only runs of this backfill.", autocompletion=completion("backfills"))
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show the latest runs: progress, or how each ended."""
    from penstock.control import connect

    with clear_errors():
        runs = [row for row in connect().backfill_runs() if not name or row.name == name]
        if name and not runs:
            look_up("backfill", name, valid_catalog().backfills)
    if as_json:
        emit([vars(row) for row in runs])
        return
    rows = table(["run", "state", "files", "rows", "rows/s", "result"], ["files", "rows", "rows/s"])
    for row in runs:
        rows.add_row(
            row.run, row.state, f"{row.files_done}/{row.files}",
            f"{row.rows_done:,}/{row.rows:,}", f"{row.rate:,.0f}", row.why or row.verified,
        )  # fmt: skip
    console().print(rows if runs else "No backfill has run yet: penstock backfill run NAME.")


def _job(
    catalog: Catalog, name: str, begin: datetime | None, end: datetime | None, target: str, source: str,
    rate: int | None, dry: bool, timestamps: str, unclosed: bool, again: str, as_of: datetime | None,
) -> BackfillJob:  # fmt: skip
    from penstock.backfill.job import BackfillJob

    backfill = _named(catalog, name)
    archive = _archive(catalog, backfill, source)
    has_interval = isinstance(backfill.source, Archive | IcebergTable)
    if as_of and not has_interval:
        what = f"backfill {name} reads no archive and no Iceberg table"
        raise BackfillError(what, got=f"--as-of {as_of}", hint="leave out --as-of")
    if as_of and as_of > datetime.now(UTC):
        what = f"backfill {name} cannot read as of a time to come"
        raise BackfillError(what, got=f"--as-of {as_of:%Y-%m-%dT%H:%M:%S}", hint="leave out --as-of for the present")
    if begin is None and not backfill.full_history and has_interval:
        raise BackfillError(f"backfill {name} needs an interval", hint="give its begin, such as --from 2026-01-31T00")
    if begin is not None and backfill.full_history:
        raise BackfillError(
            f"backfill {name} reads everything before its end", got=f"--from {begin}", hint="leave out --from"
        )
    if end is None:
        wait = backfill.source.close_delay if isinstance(backfill.source, Archive) else timedelta(0)
        end = (datetime.now(UTC) - wait).replace(minute=0, second=0, microsecond=0)
    return BackfillJob(
        backfill, as_utc(begin), as_utc(end) or end, target or backfill.target_topic, archive,
        backfill.max_rate if rate is None else rate, dry, "now" if timestamps == "now" else "original",
        unclosed or as_of is not None, again, as_of,
    )  # fmt: skip


def _named(catalog: Catalog, name: str) -> Backfill:
    backfill = look_up("backfill", name, catalog.backfills)
    if not backfill.runnable:
        raise BackfillError(
            f"backfill {name} has a source outside the project, which Penstock does not read",
            got=backfill.reads[0].name,
        )
    return backfill


def _archive(catalog: Catalog, backfill: Backfill, source: str) -> Archive | None:
    """The archive that is read instead of the declared one, if any."""
    if source in ("", backfill.reads[0].name):
        return None
    if backfill.rows is not None or isinstance(backfill.target, Stream):
        raise BackfillError(
            f"backfill {backfill.name} can read no other source", got=f"--source {source}",
            hint="leave out --source",
        )  # fmt: skip
    return look_up("archive", source, catalog.archives)


def _recompute(
    terminated: Event, streams: Sequence[Stream], files: Sequence[str], begin: datetime, end: datetime
) -> Generator[pa.Table, None, tuple[int, str]]:
    """terminated: whether SIGTERM has come, also to Java, whose errors are then no errors of the run."""
    # Spark is more than most backfills need.
    from penstock.backfill.run import SIGTERM_STATUS
    from penstock.engine.operations.recompute import RecomputeCounts, recompute_rows

    try:
        with session("backfill") as spark:
            counts = RecomputeCounts()
            yield from recompute_rows(spark, streams, files, start=begin, end=end, counts=counts, by_hours=True)
            return sum(counts.bad.values()), counts.reason
    except Exception as e:
        if terminated.is_set():
            raise SystemExit(SIGTERM_STATUS) from e
        raise


@contextmanager
def _temporary_failures() -> Iterator[None]:
    """Exit code 75 (EX_TEMPFAIL) for errors that pass by themselves."""
    try:
        yield
    except RecordTooLarge:
        raise
    except (InputNotReady, Wait, BrokerError, ControlError) as e:
        echo(f"error: {e}", err=True)
        raise typer.Exit(TEMPORARY_FAILURE) from e


@contextmanager
def _sigterm() -> Iterator[Event]:
    """Let SIGTERM end the run as Ctrl-C does, with a report of its progress. Yields whether SIGTERM has come."""
    from penstock.backfill.run import SIGTERM_STATUS

    terminated = Event()

    def end(*_: object) -> None:
        terminated.set()
        sys.exit(SIGTERM_STATUS)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, before)
