"""`penstock backfill`: an interval of an archive, or a collection, brought into a topic."""

from __future__ import annotations

import getpass
import logging
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

from penstock.catalog import Catalog, partial_catalog
from penstock.cli.archives import TIMES
from penstock.cli.output import clear_errors, console, echo, emit, table, unknown
from penstock.errors import BackfillError, BrokerError, InputNotReady, Wait
from penstock.logs import setup
from penstock.model.archive import Archive
from penstock.model.backfill import Backfill
from penstock.model.stream import Stream
from penstock.settings import settings

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.backfill.job import BackfillJob

app = typer.Typer(no_args_is_help=True, help="Write intervals of archives, and collections, to topics.")


# As sysexits.h has it.
LATER = 75


class Timestamps(StrEnum):
    original = "original"
    now = "now"


def complete(incomplete: str) -> list[str]:
    return [name for name in sorted(partial_catalog()[0].backfills) if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="A declared backfill.", autocompletion=complete)]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Every declared backfill: what it reads and fills, and its DAG."""
    found: list[dict[str, Any]] = [
        {
            "name": one.name, "source": one.reads[0].name, "target": one.target_topic,
            "dag": f"backfill_{one.name}" if one.runnable else None, "scheduled": one.runnable and one.scheduled,
            "description": one.description,
        }
        for one in sorted(partial_catalog()[0].backfills.values(), key=lambda one: one.name)
    ]  # fmt: skip
    if as_json:
        emit(found)
        return
    rows = table(["backfill", "source", "target", "DAG", "scheduled", "for"])
    for one in found:
        cells = (one["name"], one["source"], one["target"], one["dag"] or "none: its source is outside")
        rows.add_row(*cells, "yes" if one["scheduled"] else "no", one["description"])
    console().print(rows if found else "No backfills are declared: see docs/backfills.md.")


@app.command()
def run(
    name: Name,
    begin: Annotated[datetime | None, typer.Option("--from", formats=TIMES, help="Event time, UTC.")] = None,
    end: Annotated[
        datetime | None,
        typer.Option("--to", formats=TIMES, help="Event time, UTC, not part of it; by default the last full hour."),
    ] = None,
    target: Annotated[str, typer.Option(help="Another topic of the same kind.")] = "",
    source: Annotated[str, typer.Option(help="Another archive, for records that are written as they are.")] = "",
    rate: Annotated[int | None, typer.Option(min=0, help="Records a second at most; 0 for no bound.")] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")] = False,
    timestamps: Annotated[
        Timestamps, typer.Option(help="Of records that are written as they are: their own, or now.")
    ] = Timestamps.original,
    unclosed: Annotated[bool, typer.Option("--unclosed", help="Take what is there, though more may come.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Write once more what was written before.")] = False,
    request: Annotated[
        str, typer.Option(help="Names the request of --again, so that the same one goes on and is not begun anew.")
    ] = "",
    owner: Annotated[str, typer.Option(help="Who runs it, for the page.")] = "",
) -> None:
    """Do it, or go on where an earlier run of the same interval was; what was done is not done twice.

    The exit code is 1 where it is refused, or where the target does not hold what the source gives, and 75 where the
    same may do later.
    """
    from penstock.backfill.reporter import control_reporter
    from penstock.backfill.run import run as run_job
    from penstock.backfill.stream_lag import reader_lag, stream_watermarks
    from penstock.control import connect

    setup("backfill")
    with clear_errors(), _later():
        catalog = partial_catalog()[0]
        once_more = (request or uuid4().hex) if again else ""
        job = _job(catalog, name, begin, end, target, source, rate, dry, timestamps, unclosed, once_more)
        control = connect()
        report = control_reporter(control, job, owner or f"{getpass.getuser()}@{socket.gethostname()}")
        with _asked_to_end() as asked:
            done = run_job(
                job, settings().bootstrap, report=report, behind=reader_lag(catalog, job.target, control),
                watermarks=stream_watermarks(control), recompute=partial(_recompute, asked),
            )  # fmt: skip
    # One line, however long: it is what Airflow keeps of a task.
    echo(f"{job.id}: {done.rows:,} rows written; {done.summary}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Of this backfill only.", autocompletion=complete)] = "",
    as_json: AsJson = False,
) -> None:
    """The latest runs: how far each is, or how it ended."""
    from penstock.control import connect

    with clear_errors():
        found = [row for row in connect().backfill_runs() if not name or row.name == name]
    if as_json:
        emit([vars(row) for row in found])
        return
    rows = table(["run", "state", "files", "rows", "rows/s", "said"], ["files", "rows", "rows/s"])
    for row in found:
        rows.add_row(
            row.run, row.state, f"{row.files_done}/{row.files}",
            f"{row.rows_done:,}/{row.rows:,}", f"{row.rate:,.0f}", row.why or row.verified,
        )  # fmt: skip
    console().print(rows if found else "No backfill has run yet: penstock backfill run NAME.")


def _job(
    catalog: Catalog, name: str, begin: datetime | None, end: datetime | None, target: str, source: str,
    rate: int | None, dry: bool, timestamps: str, unclosed: bool, again: str,
) -> BackfillJob:  # fmt: skip
    from penstock.backfill.job import BackfillJob

    backfill = _named(catalog, name)
    archive = _archive(catalog, backfill, source)
    if begin is None and not backfill.full_history and isinstance(backfill.source, Archive):
        raise BackfillError(f"backfill {name} needs an interval", hint="say where it begins: --from 2026-01-31T00")
    if begin is not None and backfill.full_history:
        raise BackfillError(
            f"backfill {name} reads all there is before its end", got=f"--from {begin}", hint="leave out --from"
        )
    if end is None:
        wait = backfill.source.close_delay if isinstance(backfill.source, Archive) else timedelta(0)
        end = (datetime.now(UTC) - wait).replace(minute=0, second=0, microsecond=0)
    return BackfillJob(
        backfill, _utc(begin), _utc(end) or end, target or backfill.target_topic, archive,
        backfill.max_rate if rate is None else rate, dry, "now" if timestamps == "now" else "original", unclosed, again,
    )  # fmt: skip


def _named(catalog: Catalog, name: str) -> Backfill:
    if name not in catalog.backfills:
        raise unknown("backfill", name, catalog.backfills)
    found = catalog.backfills[name]
    if not found.runnable:
        raise BackfillError(
            f"backfill {name} has a source outside the project, which Penstock does not read", got=found.reads[0].name
        )
    return found


def _archive(catalog: Catalog, backfill: Backfill, source: str) -> Archive | None:
    """The archive that is read instead of the declared one."""
    if source in ("", backfill.reads[0].name):
        return None
    if backfill.rows is not None or isinstance(backfill.target, Stream):
        raise BackfillError(
            f"backfill {backfill.name} makes rows of its own source alone", got=f"--source {source}",
            hint="leave out --source",
        )  # fmt: skip
    if source not in catalog.archives:
        raise unknown("archive", source, catalog.archives)
    return catalog.archives[source]


def _utc(given: datetime | None) -> datetime | None:
    return given.replace(tzinfo=UTC) if given is not None and given.tzinfo is None else given


def _recompute(
    asked: Event, streams: Sequence[Stream], files: Sequence[str], begin: datetime, end: datetime
) -> Generator[pa.Table, None, tuple[int, str]]:
    """asked: whether the run was asked to end, and Java with it: what then fails is that."""
    # Spark is more than most backfills need.
    from penstock.backfill.run import SIGTERM_STATUS
    from penstock.engine.operations.recompute import RecomputeCounts, recompute_rows
    from penstock.engine.session import open_session

    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        spark = open_session("backfill")
        try:
            counts = RecomputeCounts()
            yield from recompute_rows(spark, streams, files, start=begin, end=end, counts=counts, by_hours=True)
            return sum(counts.bad.values()), counts.reason
        finally:
            spark.stop()
    except Exception as e:
        if asked.is_set():
            raise SystemExit(SIGTERM_STATUS) from e
        raise


@contextmanager
def _later() -> Iterator[None]:
    """Exit code 75 (EX_TEMPFAIL) for what mends itself."""
    try:
        yield
    except (InputNotReady, Wait, BrokerError) as e:
        echo(f"error: {e}", err=True)
        raise typer.Exit(LATER) from e


@contextmanager
def _asked_to_end() -> Iterator[Event]:
    """Let SIGTERM end the run as Ctrl-C does: with a word of how far it is. It gives whether one has come."""
    from penstock.backfill.run import SIGTERM_STATUS

    asked = Event()

    def end(*_: object) -> None:
        asked.set()
        sys.exit(SIGTERM_STATUS)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
