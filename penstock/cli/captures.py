"""`penstock capture`: check, explain, run and control captures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from penstock.capture import explain as plans
from penstock.capture import factory
from penstock.capture.checks.diagnostics import with_source_location
from penstock.capture.polling.poller import HIDDEN_TRANSACTIONS, Poller
from penstock.capture.reconcile.drift import REQUESTED
from penstock.catalog import BrokenFile, partial_catalog
from penstock.cli.arguments import AsJson, completion, look_up
from penstock.cli.output import actor, clear_errors, console, count, emit, print_check, table
from penstock.cli.output import state as coloured
from penstock.control import connect
from penstock.control.repositories.captures import CaptureRequest, Captures
from penstock.errors import LeaseHeld, PenstockError
from penstock.model.capture import APP, Capture
from penstock.monitoring.dashboard.model import StreamView
from penstock.monitoring.dashboard.platform_status import read_status
from penstock.monitoring.dashboard.states import StateLimits
from penstock.monitoring.humanize import duration
from penstock.settings import settings

app = typer.Typer(no_args_is_help=True, help="Capture rows of SQL statements into compacted topics.")

# Seconds for which a command waits for the driver to answer a request.
TIMEOUT_S = 600.0

Name = Annotated[
    str,
    typer.Argument(help="A capture: a file of sql/captures/ without `.sql`.", autocompletion=completion("captures")),
]
Names = Annotated[
    list[str] | None, typer.Argument(help="Captures; all if none is named.", autocompletion=completion("captures"))
]
Wait = Annotated[bool, typer.Option(help="Wait for the result.")]


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
    """Check the declarations, and that each database returns rows that can be captured."""
    with clear_errors():
        chosen = captures(names)
        broken = [] if names else _broken()
    for mistake in broken:
        print_check(mistake.path.stem, f"{mistake}", "red")
    failed = bool(broken)
    for capture in chosen:
        style = "green"
        try:
            if connected is False:
                result = "the declaration is valid"
            elif connected is None and (reason := plans.unreachable_reason(capture)):
                result, style = f"the declaration is valid; its database is not reachable: {reason}", "yellow"
            else:
                result = plans.first_row(capture)
        except PenstockError as e:
            failed, result, style = True, f"{e}", "red"
        print_check(capture.name, result, style)
    if not chosen and not broken:
        console().print("No captures are declared: see sql/captures/.")
    raise typer.Exit(1 if failed else 0)


@app.command()
def explain(name: Name) -> None:
    """Show the queries, the index that each uses, and the limits of what the database guarantees."""
    with clear_errors():
        [capture] = captures([name])
        explanation = plans.explain(capture)
    out = console()
    route = f": {capture.dialect} {capture.connection} -> topic {capture.topic.name}"
    out.print(Text.assemble((capture.name, "bold"), route))
    for line in explanation.facts:
        out.print(f"  {line}", highlight=False)
    for query in explanation.queries:
        out.print(Text(f"\n{query.what}", style="bold"))
        out.print(Text(f"  {query.sql}"))
        for source, index in query.plan:
            access = f"by index {index}" if index else "by a full scan"
            out.print(Text(f"  {source or 'rows'} {access}", style="" if index else "yellow"))
    for warning in explanation.warnings:
        out.print(Text(f"\nwarning: {warning}", style="yellow"))


@app.command("state")
def show_state(names: Names = None, as_json: AsJson = False) -> None:
    """Show the state, lag and last reconcile of each capture."""
    with clear_errors():
        chosen = captures(names)
        for mistake in [] if names or as_json else _broken():
            console().print(Text(f"{mistake.path.stem} cannot be read: {mistake}", style="red"))
        status = read_status(connect(), StateLimits.of(settings()))
    rows = status.snap.captures
    streams = {s.name: s for s in status.streams if s.app == APP}
    if as_json:
        emit([_data(c.name, streams.get(c.name), rows) for c in chosen])
        return
    lines = table(
        ["capture", "state", "phase", "lag", "rows read", "written", "last poll", "open since", "drift", "why"],
        right=["rows read", "written"],
    )
    for capture in chosen:
        lines.add_row(*_cells(capture.name, streams.get(capture.name), rows, status.view.now))
    console().print(lines)


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
    differing = "-"
    if drift:
        age = duration(max(0, now - int(drift["ended"] * 1000)))
        differing = f"{drift['missing'] + drift['differing'] + drift['extra']} of {count(drift['rows'])}, {age} ago"
    oldest = "-" if not row or row.oldest_at is None else duration(max(0, now - row.oldest_at))
    notes = []
    if row and row.dead_letter_rows:
        notes.append(
            f"{count(row.dead_letter_rows['rows'])} rows are dead letters, e.g. {row.dead_letter_rows['first']}"
        )
    if row and row.reconcile:
        notes.append(f"reconcile: {row.reconcile}")
    if row and row.skipped_until:
        notes.append("ignores transactions that are open too long")
    why = "; ".join(filter(None, [*notes, (row and row.why) or s.why]))
    return [
        name, coloured(s.state), phase,
        "-" if s.watermark_age_ms is None else duration(s.watermark_age_ms),
        count(s.rows_in), count(s.rows_out),
        "-" if s.batch_age_ms is None else f"{duration(s.batch_age_ms)} ago",
        oldest, differing, why,
    ]  # fmt: skip


@app.command()
def run(
    name: Name,
    once: Annotated[bool, typer.Option("--once", help="Exit when all rows are in the topic.")] = False,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Take a new snapshot.")] = False,
    continue_: Annotated[
        bool,
        typer.Option("--continue", help="Confirm what the capture waits for."),
    ] = False,
    compare: Annotated[
        bool, typer.Option("--reconcile", help="Compare table and topic first, and repair what differs.")
    ] = False,
) -> None:
    """Run a capture in the foreground. Stop it in the platform first; the others go on."""
    decision: factory.Decision = "snapshot" if snapshot else "continue" if continue_ else ""
    holder = f"cli-{time.time_ns()}"
    with clear_errors():
        [capture] = captures([name])
        control = connect()
        control.migrate()
        try:
            control.take_lease(name, holder, settings().lease_ttl)
        except LeaseHeld as e:
            hint = f"`penstock streams stop {name}`, and wait until `penstock streams show {name}` says stopped"
            raise LeaseHeld(f"capture {name} runs already", holder=e.holder, got=e.got, hint=hint) from e
        try:
            with with_source_location(capture):
                poller = factory.open_poller(capture, settings().bootstrap, decision)
                try:
                    if compare:
                        poller.compare(REQUESTED)
                    _run(poller, holder, once=once, confirm=continue_)
                finally:
                    poller.close()
        except KeyboardInterrupt:
            pass
        finally:
            control.drop_leases([name], holder)


@app.command()
def reconcile(name: Name, wait: Wait = True) -> None:
    """Compare table and topic in the running capture, and repair what differs."""
    _request(name, "reconcile", wait=wait)
    if wait and (row := Captures(connect()).rows().get(name)) and row.drift:
        console().print(_compared(row.drift))


@app.command()
def ask(
    name: Name,
    request: Annotated[
        CaptureRequest,
        typer.Argument(help="`continue` confirms what the capture waits for."),
    ],
    wait: Wait = True,
) -> None:
    """Send a request to the running capture."""
    _request(name, request, wait=wait)


def _request(name: str, what: CaptureRequest, *, wait: bool) -> None:
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
                    raise PenstockError(
                        f"capture {name}: whether this request was done is not known",
                        got=f"a later request: {row.requested}",
                        hint="see `penstock capture state`, and ask again",
                    )
                if time.monotonic() > end:
                    raise PenstockError(
                        f"capture {name} has not answered within {TIMEOUT_S:.0f} s",
                        got=f"phase {row.phase or 'unknown'}",
                        hint="see `penstock capture state`; the request stays open",
                    )
                time.sleep(0.2)
        if row.answer:
            raise PenstockError(f"capture {name} refused the request", got=row.answer)


def _run(poller: Poller, holder: str, *, once: bool, confirm: bool) -> None:
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
    )  # fmt: skip
    renewed = 0.0
    # `--continue` confirms only what the capture waited for before this process started.
    index = poller.session.index
    confirmed = {HIDDEN_TRANSACTIONS, *([f"scan {index.scan}"] if index.scanned else [])} if confirm else set[str]()
    with Progress(*columns, console=console(), transient=True) as bar:
        task = bar.add_task(poller.capture.name, total=None, rate="")
        while True:
            if time.monotonic() - renewed > settings().lease_ttl / 4:
                connect().renew_leases([poller.capture.name], holder, settings().lease_ttl)
                renewed = time.monotonic()
            wait = poller.step()
            if poller.pending_id in confirmed:
                poller.continue_pending()
            elif poller.pending_decision and once:
                hint = "e.g. use `--continue` instead"
                raise PenstockError(
                    f"capture {poller.capture.name} waits for a decision", got=poller.pending_decision, hint=hint
                )
            if poller.metrics.polls:
                confirmed.discard(HIDDEN_TRANSACTIONS)
            f = poller.metrics
            total = f.total if f.state == "snapshot" else None
            text = f"{poller.capture.name} {f.state}: {count(f.read)} read, {count(f.written)} written {f.waits_for}"
            rate = f"{count(bar.tasks[task].speed)} rows/s"
            bar.update(task, description=text, total=total, completed=f.rows if total else f.read, rate=rate)
            if once and f.polls and not poller.position.reconcile:
                break
            time.sleep(wait)
    f, drift = poller.metrics, poller.position.last_reconcile
    console().print(f"{poller.capture.name}: {f.read:,} rows read, {f.written:,} records written")
    if drift.ended:
        when = datetime.fromtimestamp(drift.ended, UTC)
        console().print(f"{when:%Y-%m-%d %H:%M:%S} UTC: {_compared(asdict(drift))}")


def _compared(d: Mapping[str, Any]) -> str:
    """The result of a reconcile, in a sentence."""
    return (
        f"{d['rows']:,} rows compared: missing {d['missing']}, differing {d['differing']}, extra {d['extra']}; "
        "all repaired"
    )


def captures(names: list[str] | None) -> list[Capture]:
    """The captures of these names, or all.

    Raises:
        BrokenFile: the file of one of them is invalid.
    """
    catalog, broken = partial_catalog()
    for mistake in broken:
        if mistake.path.stem in (names or ()):
            raise mistake
    return [look_up("capture", name, catalog.captures) for name in names or sorted(catalog.captures)]


def _broken() -> list[BrokenFile]:
    """The files of captures that are invalid, alone or with others."""
    return [e for e in partial_catalog()[1] if e.path.parent.name == "captures" and e.path.suffix == ".sql"]
