"""`python -m jobs.agents.simulator`: agents whose absences are known, and whether the streams have found them."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from penstock.cli.output import clear_errors, console, count, table
from penstock.settings import settings
from penstock.testing.load import interruptible, milliseconds

SHOWN = 20

app = typer.Typer()


@app.command()
def simulate(
    agents: Annotated[int, typer.Option(min=1, max=2**24, help="How many agents there are.")] = 1000,
    rate: Annotated[
        float, typer.Option(min=0, help="Check-ins a second of all; else as many as make one every 10 minutes each.")
    ] = 0.0,
    sessions: Annotated[float, typer.Option(min=0, help="Browser sessions a second.")] = 10.0,
    accounts: Annotated[int, typer.Option(min=1, help="Of accounts 1 to so many; half are of the first.")] = 3,
    seed: Annotated[int | None, typer.Option(min=0, help="The same fleet at the same time; else any.")] = None,
    length: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long, e.g. 10m, 2h; 1h, with --fast 3h.")
    ] = "",
    fast: Annotated[
        bool, typer.Option("--fast", help="As fast as it goes, with times of the past that end now.")
    ] = False,
    after: Annotated[
        str, typer.Option(metavar="DURATION", help="The stream's own: when who is silent is offline.")
    ] = "25m",
    truth: Annotated[
        Path | None, typer.Option(help="Where what is to be found is written; else a new file in the home.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Send nothing: compare events and assignments with this.", metavar="FILE")
    ] = None,
) -> None:
    """Send check-ins and browser sessions of a fleet whose absences are known; --check says whether they were found.

    Ctrl-C ends it early, with the truth of what was sent.
    """
    # numpy, which no other command needs.
    from jobs.agents.simulator.fleet import Fleet, Plan
    from jobs.agents.simulator.topics import Sent, send, write

    if check is not None:
        _compare(check)
        return
    with clear_errors():
        span, now = milliseconds(length or ("3h" if fast else "1h")), int(time.time() * 1000)
        number = random.randrange(10**6) if seed is None else seed
        start = now - span if fast else now
        step = 1000 if fast else 100
        made = Fleet(
            agents, rate or agents / 600, sessions, accounts, start, span, number, milliseconds(after), step
        )  # fmt: skip
        place, out, begun = truth or settings().home / "fleets" / f"{made.name}.json", console(), time.monotonic()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with interruptible() as stop, Progress(*columns, console=out, transient=True) as bar:
            shown = bar.add_task(f"fleet {made.name}", total=span)

            def told(sent: Sent) -> None:
                behind = f", {sent.behind / 1000:.1f} s behind the clock" if sent.behind > 1000 else ""
                speed = count(sent.check_ins / max(0.001, time.monotonic() - begun))
                text = f"{count(sent.check_ins)} check-ins, {speed}/s{behind}"
                bar.update(shown, description=text, completed=sent.until - made.start)

            sent = send(Plan(made), settings().bootstrap, stop, fast=fast, told=told)
        write(place, made, sent.until)
        took = time.monotonic() - begun
        speed = f"{sent.check_ins:,} check-ins in {took:.1f} s ({count(sent.check_ins / took)}/s)"
        out.print(f"fleet {made.name}, seed {made.seed}: {speed}, {sent.sessions:,} sessions")
        if sent.behind > 1000:
            out.print(f"at the end {sent.behind / 1000:.1f} s behind the clock: take a lower rate")
        out.print(f"what is to be found: {place}")


def _compare(path: Path) -> None:
    from jobs.agents.simulator.topics import compare

    with clear_errors():
        made = compare(path, settings().bootstrap, int(time.time() * 1000))
    out = console()
    out.print(f"absences: {made.found:,} found, {len(made.missed):,} missed, {len(made.invented):,} invented")
    out.print(f"assignments: {made.right:,} right, {len(made.wrong):,} wrong")
    if not (made.missed or made.invented or made.wrong):
        return
    listed = table(["", "agent", "last seen or assigned", "right"])
    for what, absences in [("missed", made.missed), ("invented", made.invented)]:
        for agent, last_seen in absences[:SHOWN]:
            listed.add_row(what, agent, str(last_seen), "")
    for agent, found, wanted in made.wrong[:SHOWN]:
        listed.add_row("wrong", agent, "nothing" if found is None else str(found), str(wanted))
    out.print(listed)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
