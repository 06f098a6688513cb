"""`python -m jobs.agents.simulator`: sends the check-ins of a simulated fleet, and checks the output of the streams."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.simulator_options import (
    CheckOption,
    FastOption,
    SeedOption,
    SimulatedTime,
    TruthOption,
    length_option,
    show_progress,
)
from penstock.cli.arguments import milliseconds
from penstock.cli.output import clear_errors, console, table
from penstock.settings import settings

MAX_LISTED = 20

app = typer.Typer(add_completion=False)


@app.command()
def simulate(
    agents: Annotated[int, typer.Option(min=1, max=2**24, help="Number of agents.")] = 1000,
    rate: Annotated[
        float,
        typer.Option(
            min=0,
            show_default=False,
            help="Check-ins per second of all agents. Default: one per agent every 10 minutes.",
        ),
    ] = 0.0,
    sessions: Annotated[float, typer.Option(min=0, help="Browser sessions per second.")] = 10.0,
    accounts: Annotated[
        int, typer.Option(min=1, help="Number of accounts, with ids from 1. Half of the agents belong to account 1.")
    ] = 3,
    offline_after: Annotated[
        str, typer.Option(metavar="DURATION", help="PENSTOCK_AGENTS_OFFLINE_AFTER of the streams.")
    ] = "25m",
    length: Annotated[str, length_option("1h", fast="3h")] = "",
    fast: FastOption = False,
    seed: SeedOption = None,
    truth: TruthOption = None,
    check: CheckOption = None,
) -> None:
    """Send check-ins and browser sessions of a fleet of agents whose absences are known.

    --check compares the topics agent-offline and assignments with what was sent. Ctrl-C ends the run early; the truth
    file then describes what was sent until then.
    """
    # Imported here because it needs numpy, which no other command does.
    from jobs.agents.simulator.fleet import Fleet, Plan
    from jobs.agents.simulator.topics import send, write

    with clear_errors():
        if check is not None:
            _check(check)
            return
        time = SimulatedTime.of_options(length or ("3h" if fast else "1h"), seed, fast=fast)
        fleet = Fleet(
            agents=agents,
            rate=rate or agents / 600,
            sessions=sessions,
            accounts=accounts,
            start=time.start,
            length=time.length,
            seed=time.seed,
            offline_after=milliseconds(offline_after),
            step=1000 if fast else 100,
        )
        with show_progress(f"fleet {fleet.name}", "check-ins", fleet.start, fleet.length) as (progress, stop):
            sent = send(Plan(fleet), settings().bootstrap, stop, fast=fast, report=progress.update)
        file = truth or settings().home / "fleets" / f"{fleet.name}.json"
        write(file, fleet, sent.until)
        out = console()
        out.print(f"fleet {fleet.name}, seed {fleet.seed}: {progress.summary(sent)}, {sent.others:,} sessions")
        if sent.behind > 1000:
            out.print(f"{sent.behind / 1000:.1f} s behind the clock at the end: use a lower --rate")
        out.print(f"truth: {file}")


def _check(file: Path) -> None:
    from jobs.agents.simulator.topics import compare

    result = compare(file, settings().bootstrap)
    out = console()
    out.print(f"absences: {result.found:,} found, {len(result.missed):,} missed, {len(result.invented):,} invented")
    out.print(f"assignments: {result.right:,} right, {len(result.wrong):,} wrong")
    if not (result.missed or result.invented or result.wrong):
        return
    listed = table(["", "agent", "last seen or assigned", "expected"])
    for kind, absences in [("missed", result.missed), ("invented", result.invented)]:
        for agent, last_seen in absences[:MAX_LISTED]:
            listed.add_row(kind, agent, str(last_seen), "")
    for agent, assigned, expected in result.wrong[:MAX_LISTED]:
        listed.add_row("wrong", agent, "nothing" if assigned is None else str(assigned), str(expected))
    out.print(listed)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
