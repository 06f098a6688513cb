"""`penstock capture run`: a capture in the foreground."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from penstock.capture import factory
from penstock.capture.checks.diagnostics import with_source_location
from penstock.capture.polling.poller import Poller
from penstock.capture.reconcile.digest_index import REQUESTED
from penstock.cli.capture_names import Name, captures
from penstock.cli.output import clear_errors, console, count
from penstock.control import connect
from penstock.errors import LeaseHeld, PenstockError
from penstock.settings import settings


def run(
    name: Name,
    once: Annotated[bool, typer.Option("--once", help="End when all present rows are in the topic.")] = False,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Take a new snapshot.")] = False,
    go_on: Annotated[
        bool,
        typer.Option(
            "--continue", help="Keep the cursor of a changed statement, or confirm what waits for a decision."
        ),
    ] = False,
    compare: Annotated[bool, typer.Option("--reconcile", help="Reconcile table and topic first.")] = False,
) -> None:
    """Run a capture in the foreground. Stop it in the platform first."""
    decision: factory.Decision = "snapshot" if snapshot else "continue" if go_on else ""
    holder = f"cli-{time.time_ns()}"
    with clear_errors():
        [capture] = captures([name])
        control = connect()
        control.migrate()
        try:
            control.take_lease(name, holder, settings().lease_ttl)
        except LeaseHeld as e:
            hint = f"stop it first: `penstock streams stop {name}`"
            raise LeaseHeld(f"capture {name} runs already", holder=e.holder, got=e.got, hint=hint) from e
        try:
            with with_source_location(capture):
                poller = factory.open_poller(capture, settings().bootstrap, decision)
                try:
                    if compare:
                        poller.compare(REQUESTED)
                    _run(poller, holder, once=once, go_on=go_on)
                finally:
                    poller.close()
        except KeyboardInterrupt:
            pass
        finally:
            control.drop_leases([name], holder)


def _run(poller: Poller, holder: str, *, once: bool, go_on: bool) -> None:
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
    )  # fmt: skip
    renewed = 0.0
    # `--continue` decides only what was asked before this process started.
    asked = poller.session.index.scanned
    with Progress(*columns, console=console(), transient=True) as bar:
        shown = bar.add_task(poller.capture.name, total=None, rate="")
        while True:
            if time.monotonic() - renewed > settings().lease_ttl / 4:
                connect().renew_leases([poller.capture.name], holder, settings().lease_ttl)
                renewed = time.monotonic()
            wait = poller.step()
            if poller.pending_decision and go_on and (asked or not poller.pending_since):
                poller.continue_pending()
            elif poller.pending_decision and once:
                hint = "decide, e.g. by `--continue` in its place"
                raise PenstockError(
                    f"capture {poller.capture.name} waits for a decision", got=poller.pending_decision, hint=hint
                )
            f = poller.metrics
            total = f.total if f.state == "snapshot" else None
            text = f"{poller.capture.name} {f.state}: {count(f.read)} read, {count(f.written)} written {f.waits_for}"
            rate = f"{count(bar.tasks[shown].speed)} rows/s"
            bar.update(shown, description=text, total=total, completed=f.rows if total else f.read, rate=rate)
            if once and f.polls and not poller.position.reconcile:
                break
            time.sleep(wait)
    f, drift = poller.metrics, poller.session.index.last
    console().print(f"{poller.capture.name}: {f.read:,} rows read, {f.written:,} records written")
    if drift.ended:
        when = datetime.fromtimestamp(drift.ended, UTC)
        console().print(f"{when:%Y-%m-%d %H:%M:%S} UTC: {compared(asdict(drift))}")


def compared(d: Mapping[str, Any]) -> str:
    """The result of a reconcile, in a sentence."""
    return (
        f"{d['rows']:,} rows compared: missing {d['missing']}, differing {d['differing']}, extra {d['extra']}; "
        "all repaired"
    )
