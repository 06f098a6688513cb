"""`python -m jobs.presence.simulator`: devices whose visits are known, and whether the streams have found them."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from penstock.cli.demo import demo
from penstock.cli.output import clear_errors, console, count, table
from penstock.settings import settings
from penstock.testing.load import interruptible, milliseconds

if TYPE_CHECKING:
    from jobs.presence.simulator.crowd import Business, Plan
    from jobs.presence.simulator.topics import Sent

# Probes that are sent together where nobody waits for the clock, and ms that they span at most.
TOGETHER, LONGEST = 20_000, 10_000

app = typer.Typer()


@app.command()
def simulate(
    devices: Annotated[int, typer.Option(min=1, max=2**24, help="How many devices there are.")] = 1000,
    businesses: Annotated[int, typer.Option(min=1, help="At how many businesses; the demo database gets more.")] = 10,
    rate: Annotated[float, typer.Option(min=0.001, help="Probes a second.")] = 100.0,
    seed: Annotated[int | None, typer.Option(min=0, help="The same crowd at the same time; else any.")] = None,
    length: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long, e.g. 90s, 10m, 12h; 10m, with --fast 12h.")
    ] = "",
    fast: Annotated[
        bool, typer.Option("--fast", help="As fast as it goes, with times of the past that end now.")
    ] = False,
    truth: Annotated[
        Path | None,
        typer.Option(help="Where the visits are written that are to be found; else a new file in the home."),
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Send nothing: compare topic walk-ins with this truth.", metavar="FILE")
    ] = None,
    late: Annotated[str, typer.Option(metavar="DURATION", help="How late a probe may be.")] = "5s",
    dwell: Annotated[str, typer.Option(metavar="DURATION", help="The stream's own.")] = "2m",
    within: Annotated[str, typer.Option(metavar="DURATION", help="The stream's own.")] = "10m",
    away: Annotated[str, typer.Option(metavar="DURATION", help="The stream's own.")] = "4h",
) -> None:
    """Send probes and CRM events of a crowd whose visits are known; --check says whether they were found.

    Ctrl-C ends it early, with the truth of what was sent.
    """
    # numpy, which no other command needs.
    from jobs.presence.simulator.crowd import Crowd, plan
    from jobs.presence.simulator.scripts import Rules

    if check is not None:
        _compare(check)
        return
    with clear_errors():
        rules = Rules(milliseconds(dwell), milliseconds(within), milliseconds(away))
        rules.check()
        span, delay = milliseconds(length or ("12h" if fast else "10m")), milliseconds(late)
        known = _businesses(businesses)
        step = int(min(LONGEST, max(100, TOGETHER * 1000 / rate))) if fast else 100
        now = int(time.time() * 1000)
        number = random.randrange(10**6) if seed is None else seed
        made = plan(Crowd(devices, known, rate, now - span if fast else now, span, number, delay, step, rules))
        _send(made, fast=fast, truth=truth or settings().home / "crowds" / f"{made.crowd.name}.jsonl")


def _send(plan: Plan, *, fast: bool, truth: Path) -> None:
    from jobs.presence.simulator.topics import Sending, write

    crowd, out, begun = plan.crowd, console(), time.monotonic()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with interruptible() as stop, Progress(*columns, console=out, transient=True) as bar:
        shown = bar.add_task(f"crowd {crowd.name}", total=crowd.length)

        def told(sent: Sent) -> None:
            rate = sent.probes / max(0.001, time.monotonic() - begun)
            behind = f", {sent.behind / 1000:.1f} s behind the clock" if sent.behind > 1000 else ""
            text = f"{count(sent.probes)} probes, {count(rate)}/s{behind}"
            bar.update(shown, description=text, completed=sent.until - crowd.start)

        sending = Sending(plan, settings().bootstrap, stop)
        visits = sending.run(fast=fast, told=told)
    sent, took = sending.sent, time.monotonic() - begun
    write(truth, plan, visits)
    speed = f"{sent.probes:,} probes in {took:.1f} s ({count(sent.probes / took)}/s)"
    out.print(f"crowd {crowd.name}, seed {crowd.seed}: {speed}, {sent.events:,} CRM events")
    if sent.behind > max(1000, crowd.late):
        out.print(f"at the end {sent.behind / 1000:.1f} s behind the clock: take a lower rate, or probes are late")
    out.print(f"{len(visits):,} visits to be found: {truth}")


def _compare(path: Path) -> None:
    from jobs.presence.simulator.topics import compare

    with clear_errors():
        made = compare(path, settings().bootstrap)
    out = console()
    out.print(f"{made.found:,} found, {len(made.missed):,} missed, {len(made.invented):,} invented")
    if made.missed or made.invented:
        listed = table(["", "device", "business", "since", "timestamp"], right=["since", "timestamp"])
        for what, visits in [("missed", made.missed), ("invented", made.invented)]:
            for visit in visits:
                listed.add_row(what, *map(str, visit))
        out.print(listed)
        raise typer.Exit(1)


def _businesses(wanted: int) -> list[Business]:
    """So many businesses of the demo database, made where there are too few, once their capture has them."""
    from jobs.presence.simulator.crowd import Business
    from jobs.presence.simulator.topics import wait_for

    database = demo()
    while True:
        names, rows = database.rows("businesses", 2**31 - 1)
        found = [row for values in rows if not (row := dict(zip(names, values, strict=True)))["deleted"]]
        if len(found) >= wanted:
            known = [Business(str(row["id"]), row["threshold"]) for row in found[:wanted]]
            wait_for(known, settings().bootstrap)
            return known
        for number in range(len(found), wanted):
            database.add("businesses", {"name": f"Business {number + 1}", "threshold": str(-60 - 5 * (number % 5))})


if __name__ == "__main__":
    app()
