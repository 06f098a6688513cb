"""`penstock capture`: what is captured, how, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from penstock.capture import explain as plans
from penstock.capture import start
from penstock.capture.poller import Poller
from penstock.catalog import load
from penstock.cli.output import actor, clear_errors, console, count, emit, table, unknown
from penstock.cli.output import state as coloured
from penstock.control import connect
from penstock.control.captures import Asked, Captures
from penstock.declare.capture import APP, Capture
from penstock.errors import LeaseHeld, PenstockError
from penstock.kafka.admin import admin, partitions
from penstock.observe.moments import take
from penstock.observe.states import Limits
from penstock.observe.views import StreamView
from penstock.observe.words import duration
from penstock.settings import settings

app = typer.Typer(no_args_is_help=True, help="SQL statements captured into compacted topics.")

# How long a command waits for the driver to do what was asked.
PATIENCE = 600.0


def complete(incomplete: str) -> list[str]:
    try:
        return [name for name in sorted(load().captures) if name.startswith(incomplete)]
    except PenstockError:
        return []  # a shell's completion has nowhere to show an error


Name = Annotated[
    str, typer.Argument(help="A capture: a file of sql/captures/ without `.sql`.", autocompletion=complete)
]
Names = Annotated[list[str] | None, typer.Argument(help="Captures; all if none is named.", autocompletion=complete)]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]


def _captures(names: list[str] | None) -> list[Capture]:
    found = load().captures
    for name in names or ():
        if name not in found:
            raise unknown("capture", name, found)
    return [found[name] for name in names or sorted(found)]


@app.command()
def check(
    names: Names = None,
    database: Annotated[bool, typer.Option(help="Ask the database too, for one row of each.")] = True,
) -> None:
    """Read the declarations, and see that each database answers with rows that can be captured."""
    failed = False
    with clear_errors():
        wanted = _captures(names)
    for capture in wanted:
        try:
            said = plans.first_row(capture) if database else "declared as it should be"
        except PenstockError as e:
            failed, said = True, str(e)
            console().print(Text(f"✗ {capture.name}: {said}", style="red"))
        else:
            console().print(Text(f"✓ {capture.name}: {said}", style="green"))
    if not wanted:
        console().print("No captures are declared: see sql/captures/.")
    raise typer.Exit(1 if failed else 0)


@app.command()
def explain(name: Name) -> None:
    """The queries that will be sent, page by page, which index serves each, and what the engine cannot promise."""
    with clear_errors():
        [capture] = _captures([name])
        found = plans.explain(capture)
    out = console()
    out.print(f"[bold]{capture.name}[/]: {capture.dialect} {capture.connection} -> topic {capture.topic.name}")
    for line in found.facts:
        out.print(f"  {line}", highlight=False)
    for query in found.queries:
        out.print(f"\n[bold]{query.what}[/]")
        out.print(Text(f"  {query.sql}"))
        for source, index in query.plan:
            served = f"by index {index}" if index else "by a full scan"
            out.print(Text(f"  {source or 'rows'} {served}", style="" if index else "yellow"))
    for warning in found.warnings:
        out.print(Text(f"\nwarning: {warning}", style="yellow"))


@app.command("state")
def show_state(names: Names = None, as_json: AsJson = False) -> None:
    """How far each capture is, how far behind its database, and what the last comparison found."""
    with clear_errors():
        wanted = _captures(names)
        now = take(connect(), Limits.of(settings()))
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
        return [name, Text("unknown", style="yellow"), *["-"] * 7, "the control database does not know it yet"]
    phase = row.phase if row else "-"
    if row and phase == "snapshot" and row.snapshot_total:
        phase = f"snapshot {100 * row.snapshot_rows // row.snapshot_total} %"
    drift = row.drift if row else None
    found = "-" if not drift else f"{drift['missing'] + drift['differing'] + drift['extra']} of {count(drift['rows'])}"
    oldest = "-" if not row or row.oldest_at is None else duration(max(0, now - row.oldest_at))
    why = (row.why if row and row.why else "") or s.why
    if row and row.debt_until:
        why = f"transactions open too long are not waited for; {why}".removesuffix("; ")
    return [
        name, coloured(s.state), phase,
        "-" if s.watermark_age_ms is None else duration(s.watermark_age_ms),
        count(s.rows_in), count(s.rows_out),
        "-" if s.batch_age_ms is None else f"{duration(s.batch_age_ms)} ago",
        oldest, found, why,
    ]  # fmt: skip


@app.command()
def run(
    name: Name,
    once: Annotated[bool, typer.Option("--once", help="End when all that is there now is in the topic.")] = False,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Read all rows again, whatever was read before.")
    ] = False,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Take over the cursor of a statement that was changed since.")
    ] = False,
    compare: Annotated[bool, typer.Option("--reconcile", help="Compare all of table and topic first.")] = False,
) -> None:
    """Run a capture here, in the foreground. A capture that the platform runs must be stopped first."""
    decision: start.Decision = "snapshot" if snapshot else "continue" if go_on else ""
    holder = f"cli-{time.time_ns()}"
    with clear_errors():
        [capture] = _captures([name])
        control = connect()
        control.migrate()
        try:
            control.lease_take(name, holder, settings().lease_ttl)
        except LeaseHeld as e:
            fix = f"stop it first: `penstock streams stop {name}`"
            raise LeaseHeld(f"capture {name} runs already", holder=e.holder, got=e.got, fix=fix) from e
        try:
            poller = start.open_poller(capture, settings().bootstrap, decision)
            try:
                if compare:
                    poller.compare("asked for")
                _run(poller, holder, once=once)
            finally:
                poller.close()
        except KeyboardInterrupt:
            pass
        finally:
            control.lease_drop([name], holder)


def _run(poller: Poller, holder: str, *, once: bool) -> None:
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
    )  # fmt: skip
    renewed = 0.0
    with Progress(*columns, console=console(), transient=True) as bar:
        shown = bar.add_task(poller.capture.name, total=None, rate="")
        while True:
            if time.monotonic() - renewed > settings().lease_ttl / 4:
                connect().lease_renew([poller.capture.name], holder, settings().lease_ttl)
                renewed = time.monotonic()
            wait = poller.step()
            f = poller.figures
            total = f.total if f.state == "snapshot" else None
            text = f"{poller.capture.name} {f.state}: {count(f.read)} read, {count(f.written)} written {f.waits_for}"
            rate = f"{count(bar.tasks[shown].speed)} rows/s"
            bar.update(shown, description=text, total=total, completed=f.rows if total else f.read, rate=rate)
            if once and f.polls and not poller.position.reconcile:
                break
            time.sleep(wait)
    f, drift = poller.figures, poller.reconcile.drift
    console().print(f"{poller.capture.name}: {f.read:,} rows read, {f.written:,} records written")
    if drift.ended:
        when = datetime.fromtimestamp(drift.ended, UTC)
        console().print(f"{when:%Y-%m-%d %H:%M:%S} UTC: {_compared(asdict(drift))}")


def _compared(d: Mapping[str, Any]) -> str:
    """What a comparison found, in a sentence."""
    return (
        f"{d['rows']:,} rows compared: missing {d['missing']}, differing {d['differing']}, extra {d['extra']}; "
        "all repaired"
    )


@app.command()
def watch(
    name: Name,
    beginning: Annotated[bool, typer.Option("--beginning", help="From the first record the topic still has.")] = False,
) -> None:
    """The records of a capture's topic as they are committed, until Ctrl-C."""
    with clear_errors():
        [capture] = _captures([name])
        bootstrap = settings().bootstrap
        count_of = partitions(admin(bootstrap), bootstrap)
        if capture.topic.name not in count_of:
            fix = "the capture makes it when it first runs; `penstock topics --apply` does too"
            raise PenstockError(f"topic {capture.topic.name} is not there yet", fix=fix)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "penstock-watch", "isolation.level": "read_committed"}
    )
    start_at = OFFSET_BEGINNING if beginning else OFFSET_END
    consumer.assign([TopicPartition(capture.topic.name, p, start_at) for p in range(count_of[capture.topic.name])])
    try:
        while True:
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            key, value = message.key() or b"", message.value()
            at = datetime.fromtimestamp(message.timestamp()[1] / 1000).astimezone()
            shown = Text("tombstone", style="red") if value is None else Text(value.decode(errors="replace"))
            console().print(Text(f"{at:%H:%M:%S} "), Text(key.decode(errors="replace"), style="cyan"), shown)
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()


@app.command()
def reconcile(name: Name, wait: Annotated[bool, typer.Option(help="Wait until all is compared.")] = True) -> None:
    """Let the running capture compare all of table and topic, and repair what differs."""
    _asked(name, "reconcile", wait=wait)
    if wait and (row := Captures(connect()).rows().get(name)) and row.drift:
        console().print(_compared(row.drift))


@app.command()
def ask(
    name: Name,
    what: Annotated[
        Asked, typer.Argument(help="poll now; take a new snapshot; reconcile; continue a changed statement.")
    ],
    wait: Annotated[bool, typer.Option(help="Wait until it is done.")] = True,
) -> None:
    """Ask something of the running capture."""
    _asked(name, what, wait=wait)


def _asked(name: str, what: Asked, *, wait: bool) -> None:
    with clear_errors():
        _captures([name])
        captures = Captures(connect())
        request = captures.ask(name, what, actor())
        if not wait:
            return
        end = time.monotonic() + PATIENCE
        with console().status(f"{name}: {what}"):
            while True:
                row = captures.rows()[name]
                if row.answered_id == request:
                    break
                if row.asked_id != request:
                    raise PenstockError(f"capture {name}: somebody asked for {row.asked} instead")
                if time.monotonic() > end:
                    raise PenstockError(
                        f"capture {name} has not answered within {PATIENCE:.0f} s",
                        got=f"phase {row.phase or 'unknown'}",
                        fix="see `penstock capture state`; what was asked still stands",
                    )
                time.sleep(0.2)
        if row.answer:
            raise PenstockError(f"capture {name} could not do it", got=row.answer)
