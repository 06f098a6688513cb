"""`penstock streams replace` and `penstock replacements`: a new version of a stream beside the running one."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
import typer
from rich.text import Text

from penstock.cli.arguments import AsJson, DryRun, Note, as_utc, time_option
from penstock.cli.output import actor, checking_code, clear_errors, console, count, echo, emit, state, table
from penstock.cli.stream_names import complete, find, view_of
from penstock.cli.stream_tables import Facts, facts_table
from penstock.control import Control, DriverRow, ReplacementRow, connect
from penstock.errors import PenstockError, ReplacementRefused
from penstock.model.declaration import replacement_app
from penstock.monitoring.dashboard.replacements import REPLACEMENT_REMEDIES, REPLACEMENT_STATES
from penstock.monitoring.humanize import duration, first_line
from penstock.supervision import release as releases
from penstock.supervision.replacement_changes import ReplacementVerb, change_replacement
from penstock.supervision.replacement_options import CutMode, WriteAtCut, expectation_text, replacement_options

app = typer.Typer(no_args_is_help=True, help="Show replacements of running streams; cut, cancel and confirm them.")

WAIT_EVERY = 1.0
"""Seconds between two looks at a replacement that is waited for."""

Replaced = Annotated[str, typer.Argument(help="A stream.", autocompletion=complete)]


def replace(
    name: Replaced,
    begin: Annotated[
        datetime | None,
        time_option("--from", "Time of the first record that the new version reads; default: what its state needs"),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(min=1, help="Records per second that it reads at most; default: what leaves the others in time."),
    ] = None,
    write: Annotated[
        WriteAtCut, typer.Option(help="Which rows that the running version wrote otherwise are written at the cut.")
    ] = WriteAtCut.differing,
    expect: Annotated[
        str,
        typer.Option(
            metavar="equal|equal-except:COLUMN,...",
            help="What the comparison must show; a replacement that breaks it stops.",
        ),
    ] = "",
    cut: Annotated[
        CutMode, typer.Option(help="Cut as soon as it has caught up, or by `penstock replacements cut`.")
    ] = CutMode.auto,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Stop the running version first, on a machine without room for both.")
    ] = False,
    no_archive: Annotated[
        bool, typer.Option("--no-archive", help="Build the state of its topics alone, though its input is archived.")
    ] = False,
    dry_run: DryRun = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the cut; exit code 1 if it is cancelled or fails.")
    ] = False,
    note: Note = "",
) -> None:
    """Build a new version of a stream by the code on the disk, with state of its own, while the running version goes
    on; then let it take the place of that.

    Refused if the code does not load, or cannot read the state of another stream of the app.
    """
    with clear_errors():
        options = replacement_options(
            begin=as_utc(begin),
            rate=rate,
            write=write,
            expect=expect,
            cut=cut,
            in_place=in_place,
            archive=not no_archive,
        )
        control = connect()
        app_view, stream = find(view_of(control), name)
        if stream is None:
            streams = ", ".join(one.name for one in app_view.streams)
            raise ReplacementRefused(
                f"{name} is an app, and a replacement is of one stream", got=f"streams {streams}", hint="name one"
            )
        with checking_code(app_view.name):
            row = releases.start_replacement(control, app_view.name, name, actor(), options, note, dry_run=dry_run)
        if row is None:
            echo(f"{name} can be replaced by the code on the disk; nothing was changed")
            return
        echo(f"the replacement of {name} is requested: `penstock replacements show {name}`")
        if wait and (ended := _wait(control, row)).state != "cut":
            raise PenstockError(f"{name} is not replaced: it is {ended.state}" + _because(ended))


@app.command()
def back(
    name: Replaced,
    cut: Annotated[
        CutMode, typer.Option(help="Cut as soon as it has caught up, or by `penstock replacements cut`.")
    ] = CutMode.auto,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the cut; exit code 1 if it is cancelled or fails.")
    ] = False,
    note: Note = "",
) -> None:
    """Go back to the version before a replacement that is cut and not confirmed.

    It goes on with the state that was kept of it, reads what came since, and takes the place of the running version as
    a new version does.
    """
    with clear_errors():
        control = connect()
        row = _newest(control, name)
        options = replacement_options(cut=cut)
        with checking_code(row.app):
            row = releases.start_going_back(control, row.app, name, actor(), options, note)
        echo(f"to go back is requested: `penstock replacements show {name}`")
        echo("put the earlier code on the disk, too: the next `penstock up` releases what is there")
        if wait and (ended := _wait(control, row)).state != "cut":
            raise PenstockError(f"{name} does not go back: it is {ended.state}" + _because(ended))


@app.command("list")
def list_replacements(as_json: AsJson = False) -> None:
    """List replacements, newest first."""
    with clear_errors():
        control = connect()
        rows, now = control.replacements(), control.now()
    if as_json:
        emit([asdict(row) for row in rows])
        return
    listed = table(["stream", "app", "state", "requested", "by", "progress", "reason"])
    for row in rows:
        since = f"{duration(max(0, now - row.requested_at))} ago"
        listed.add_row(row.name, row.app, state(row.state), since, row.actor, _read(row), first_line(row.why, 80))
    console().print(listed if rows else "No stream was replaced yet: `penstock streams replace NAME`.")


@app.command()
def show(name: Replaced, as_json: AsJson = False) -> None:
    """Show the newest replacement of a stream: progress, comparison with the running version, and its driver."""
    with clear_errors():
        control = connect()
        row = _newest(control, name)
        own = control.app(replacement_app(name))
        driver = control.driver(own.incarnation) if own and own.incarnation else None
        now = control.now()
    if as_json:
        emit({**asdict(row), "driver": driver and asdict(driver)})
        return
    out = console()
    out.print(facts_table([*_request_facts(row, now), *_progress_facts(row), *_driver_facts(driver)]))
    examples = [one for one in row.figures.get("examples") or () if isinstance(one, dict)]
    if examples:
        columns = list(dict.fromkeys(column for one in examples for column in one))
        rows = table(columns)
        for one in examples:
            rows.add_row(*(_cell(one.get(column)) for column in columns))
        out.print()
        out.print(rows)


@app.command()
def cut(name: Replaced, note: Note = "") -> None:
    """Let the new version take the place of the running one as soon as it has caught up."""
    _change(name, "cut", note)
    echo(f"{name} is cut over as soon as its new version has caught up")


@app.command()
def cancel(name: Replaced, note: Note = "") -> None:
    """End a replacement before its cut; the running version goes on."""
    _change(name, "cancel", note)
    echo(f"the replacement of {name} is cancelled; the running version goes on")


@app.command()
def confirm(name: Replaced, note: Note = "") -> None:
    """Record that the new version is right; the code of the version before it need not be kept any longer."""
    _change(name, "confirm", note)
    echo(f"the replacement of {name} is confirmed")


def _change(name: str, verb: ReplacementVerb, note: str) -> None:
    with clear_errors():
        control = connect()
        row = _newest(control, name)
        if verb == "confirm" and row.state in ("cancelled", "failed"):
            # What followed the cut has changed nothing.
            row = control.last_cut(name) or row
        change_replacement(control, row, verb, actor(), note)


def _newest(control: Control, name: str) -> ReplacementRow:
    row = control.replacement_of(name)
    if row is None:
        find(view_of(control), name)
        raise PenstockError(
            f"{name} has no replacement", hint=f"`penstock streams replace {name}`; `penstock replacements list`"
        )
    return row


def _wait(control: Control, row: ReplacementRow) -> ReplacementRow:
    """The row once it is not open any more; each change is printed."""
    printed = ""
    while True:
        now = control.replacement(row.id) or row
        if (line := f"{now.state}: {now.why or REPLACEMENT_STATES[now.state]}") != printed:
            echo(line)
            printed = line
        if not now.is_open:
            return now
        time.sleep(WAIT_EVERY)


def _because(row: ReplacementRow) -> str:
    return f": {row.why}" if row.why else ""


def _read(row: ReplacementRow) -> str:
    """How many records were read of how many."""
    records, total = row.figures.get("records"), row.figures.get("total")
    if records is None:
        return "-"
    return f"{records:,} of {total:,} records ({records / total:.0%})" if total else f"{records:,} records"


def _number(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:,}"


def _span(ms: float | None) -> str:
    return "-" if ms is None else duration(int(ms))


def _request_facts(row: ReplacementRow, now: int) -> Facts:
    options = row.options
    begin = options.get("from")
    meaning = REPLACEMENT_STATES[row.state]
    facts: Facts = [("stream", row.name), ("app", row.app), ("state", state(row.state)), ("", meaning)]
    if row.why:
        facts.append(("why", row.why))
    if remedy := REPLACEMENT_REMEDIES[row.state].replace("NAME", row.name):
        facts.append(("what to do", remedy))
    return [
        *facts,
        ("requested", f"{duration(max(0, now - row.requested_at))} ago by {row.actor}"),
        ("last report", f"{duration(max(0, now - row.reported_at))} ago"),
        (
            "way",
            "back to the version before" if options.get("back") else "in place" if options.get("in_place") else "-",
        ),
        ("code", f"{row.digest[:12]} in place of {row.previous[:12]}"),
        (
            "reads from",
            "what its state needs" if begin is None else f"{datetime.fromtimestamp(begin / 1000, UTC):%FT%T}",
        ),
        ("rate at most", "-" if options.get("rate") is None else f"{options['rate']:,} records/s"),
        ("writes at the cut", str(options.get("write"))),
        ("expects", expectation_text(options.get("expect"))),
        ("cut", "asked for" if row.cut_requested_at else str(options.get("cut"))),
    ]


def _progress_facts(row: ReplacementRow) -> Facts:
    f = row.figures
    facts: Facts = [
        ("read", _read(row)),
        ("records/s", count(f.get("rate"))),
        ("time left", _span(f.get("remaining_ms") or None)),
        ("lag", _number(f.get("lag"))),
        ("rows compared", _number(f.get("compared"))),
        ("equal, different", f"{_number(f.get('equal'))}, {_number(f.get('different'))}"),
        ("only new, only running", f"{_number(f.get('only_new'))}, {_number(f.get('only_running'))}"),
    ]
    if f.get("refused"):
        facts.append(("refused by the store", _number(f["refused"])))
    if f.get("pause_ms") is not None:
        facts.append(("pause of the output", _span(f["pause_ms"])))
    elif f.get("pause_over_ms") is not None:
        facts.append(("pause of the output", f"more than {_span(f['pause_over_ms'])}"))
    return facts


def _driver_facts(driver: DriverRow | None) -> Facts:
    if driver is None:
        return [("driver", "none was launched yet")]
    facts: Facts = [("driver", f"{driver.incarnation}, {driver.state}, {driver.label} on {driver.host}")]
    return [*facts, ("log", driver.log), *([("driver ended", first_line(driver.reason))] if driver.reason else [])]


def _cell(value: Any) -> Text:
    return Text(value if isinstance(value, str) else orjson.dumps(value).decode())
