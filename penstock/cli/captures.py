"""`penstock capture`: check, explain and control captures."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.capture import explain as plans
from penstock.cli.capture_names import AsJson, Name, Names, broken, captures
from penstock.cli.capture_run import compared, run
from penstock.cli.output import actor, clear_errors, console, count, emit, table
from penstock.cli.output import state as coloured
from penstock.control import connect
from penstock.control.repositories.captures import CaptureRequest, Captures
from penstock.errors import PenstockError
from penstock.model.capture import APP
from penstock.monitoring.dashboard.model import StreamView
from penstock.monitoring.dashboard.platform_status import read_status
from penstock.monitoring.dashboard.states import StateLimits
from penstock.monitoring.humanize import duration
from penstock.settings import settings

app = typer.Typer(no_args_is_help=True, help="Capture rows of SQL statements into compacted topics.")

# Seconds for which a command waits for the driver to answer a request.
TIMEOUT_S = 600.0


@app.command()
def check(
    names: Names = None,
    connected: Annotated[
        bool | None,
        typer.Option(
            "--connected/--no-connected",
            help="Also query each database for its tables, functions and one row; default: if it is reachable.",
        ),
    ] = None,
) -> None:
    """Check the declarations, and that each database gives rows that can be captured."""
    failed = False
    with clear_errors():
        wanted = captures(names)
        wrong = [] if names else broken()
    for mistake in wrong:
        failed = True
        console().print(Text(f"✗ {mistake.path.stem}: {mistake}", style="red"))
    for capture in wanted:
        style = "green"
        try:
            if connected is False:
                said = "the declaration is valid"
            elif connected is None and (why := plans.unreachable_reason(capture)):
                said, style = f"the declaration is valid; its database is not reachable: {why}", "yellow"
            else:
                said = plans.first_row(capture)
        except PenstockError as e:
            failed = True
            console().print(Text(f"✗ {capture.name}: {e}", style="red"))
        else:
            console().print(Text(f"✓ {capture.name}: {said}", style=style))
    if not wanted and not wrong:
        console().print("No captures are declared: see sql/captures/.")
    raise typer.Exit(1 if failed else 0)


@app.command()
def explain(name: Name) -> None:
    """Show the queries of the pages, the index that serves each, and what the engine does not guarantee."""
    with clear_errors():
        [capture] = captures([name])
        found = plans.explain(capture)
    out = console()
    place = f": {capture.dialect} {capture.connection} -> topic {capture.topic.name}"
    out.print(Text.assemble((capture.name, "bold"), place))
    for line in found.facts:
        out.print(f"  {line}", highlight=False)
    for query in found.queries:
        out.print(Text(f"\n{query.what}", style="bold"))
        out.print(Text(f"  {query.sql}"))
        for source, index in query.plan:
            served = f"by index {index}" if index else "by a full scan"
            out.print(Text(f"  {source or 'rows'} {served}", style="" if index else "yellow"))
    for warning in found.warnings:
        out.print(Text(f"\nwarning: {warning}", style="yellow"))


@app.command("state")
def show_state(names: Names = None, as_json: AsJson = False) -> None:
    """Show the state, lag and last reconcile of each capture."""
    with clear_errors():
        wanted = captures(names)
        for mistake in [] if names or as_json else broken():
            console().print(Text(f"{mistake.path.stem} cannot be read: {mistake}", style="red"))
        now = read_status(connect(), StateLimits.of(settings()))
    rows = now.snap.captures
    streams = {s.name: s for s in now.streams if s.app == APP}
    if as_json:
        emit([_data(c.name, streams.get(c.name), rows) for c in wanted])
        return
    made = table(
        ["capture", "state", "phase", "lag", "rows read", "written", "last poll", "open since", "drift", "why"],
        right=["rows read", "written"],
    )
    for capture in wanted:
        made.add_row(*_cells(capture.name, streams.get(capture.name), rows, now.view.now))
    console().print(made)


def _data(name: str, stream: StreamView | None, rows: dict[str, Any]) -> dict[str, Any]:
    row = rows.get(name)
    return {"name": name, "progress": stream and asdict(stream), "capture": row and asdict(row)}


def _cells(name: str, s: StreamView | None, rows: dict[str, Any], now: int) -> list[str | Text]:
    row = rows.get(name)
    if s is None:
        return [name, Text("unknown", style="yellow"), *["-"] * 7, "not in the control database yet"]
    phase = row.phase if row else "-"
    if row and phase == "snapshot" and row.snapshot_total:
        phase = f"snapshot {100 * row.snapshot_rows // row.snapshot_total} %"
    drift = row.drift if row else None
    found = "-"
    if drift:
        age = duration(max(0, now - int(drift["ended"] * 1000)))
        found = f"{drift['missing'] + drift['differing'] + drift['extra']} of {count(drift['rows'])}, {age} ago"
    oldest = "-" if not row or row.oldest_at is None else duration(max(0, now - row.oldest_at))
    said = []
    if row and row.dead_letter_rows:
        said.append(
            f"{count(row.dead_letter_rows['rows'])} rows are dead letters, e.g. {row.dead_letter_rows['first']}"
        )
    if row and row.reconcile:
        said.append(f"reconcile: {row.reconcile}")
    if row and row.skipped_until:
        said.append("ignores transactions that are open too long")
    why = "; ".join(filter(None, [*said, (row and row.why) or s.why]))
    return [
        name, coloured(s.state), phase,
        "-" if s.watermark_age_ms is None else duration(s.watermark_age_ms),
        count(s.rows_in), count(s.rows_out),
        "-" if s.batch_age_ms is None else f"{duration(s.batch_age_ms)} ago",
        oldest, found, why,
    ]  # fmt: skip


app.command()(run)


@app.command()
def reconcile(name: Name, wait: Annotated[bool, typer.Option(help="Wait until it is done.")] = True) -> None:
    """Compare table and topic in the running capture, and repair what differs."""
    _asked(name, "reconcile", wait=wait)
    if wait and (row := Captures(connect()).rows().get(name)) and row.drift:
        console().print(compared(row.drift))


@app.command()
def ask(
    name: Name,
    what: Annotated[
        CaptureRequest, typer.Argument(help="poll; snapshot; reconcile; continue, if it waits for a decision.")
    ],
    wait: Annotated[bool, typer.Option(help="Wait until it is done.")] = True,
) -> None:
    """Send a request to the running capture."""
    _asked(name, what, wait=wait)


def _asked(name: str, what: CaptureRequest, *, wait: bool) -> None:
    with clear_errors():
        captures([name])
        control = Captures(connect())
        request = control.ask(name, what, actor())
        if not wait:
            return
        end = time.monotonic() + TIMEOUT_S
        with console().status(f"{name}: {what}"):
            while True:
                row = control.rows()[name]
                if row.answered_request_id == request:
                    break
                if row.request_id != request:
                    raise PenstockError(f"capture {name}: a later request replaced this one: {row.requested}")
                if time.monotonic() > end:
                    raise PenstockError(
                        f"capture {name} has not answered within {TIMEOUT_S:.0f} s",
                        got=f"phase {row.phase or 'unknown'}",
                        hint="see `penstock capture state`; the request stays open",
                    )
                time.sleep(0.2)
        if row.answer:
            raise PenstockError(f"capture {name} refused the request", got=row.answer)
