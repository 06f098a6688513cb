"""`python -m jobs.presence.simulator`: sends the probes of a simulated crowd, and checks the output of the streams."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from penstock.cli.demo import demo
from penstock.cli.output import clear_errors, console, table
from penstock.settings import settings

if TYPE_CHECKING:
    from jobs.presence.simulator.crowd import Business, Plan

# With --fast: number of probes that are sent together, and the most simulated time that they may span, ms.
FAST_PROBES, FAST_STEP_MS = 20_000, 10_000

app = typer.Typer(add_completion=False)


@app.command()
def simulate(
    devices: Annotated[int, typer.Option(min=1, max=2**24, help="Number of devices.")] = 1000,
    businesses: Annotated[
        int, typer.Option(min=1, help="Number of businesses. Missing ones are added to the demo database.")
    ] = 10,
    rate: Annotated[float, typer.Option(min=0.001, help="Probes per second of all devices.")] = 100.0,
    late: Annotated[str, typer.Option(metavar="DURATION", help="How late a probe may be sent.")] = "5s",
    dwell: Annotated[str, typer.Option(metavar="DURATION", help="PENSTOCK_PRESENCE_DWELL of the streams.")] = "2m",
    within: Annotated[str, typer.Option(metavar="DURATION", help="PENSTOCK_PRESENCE_WITHIN of the streams.")] = "10m",
    away: Annotated[str, typer.Option(metavar="DURATION", help="PENSTOCK_PRESENCE_AWAY of the streams.")] = "4h",
    length: Annotated[str, length_option("10m", fast="12h")] = "",
    fast: FastOption = False,
    seed: SeedOption = None,
    truth: TruthOption = None,
    check: CheckOption = None,
) -> None:
    """Send probes and CRM events of a crowd of devices whose walk-ins are known.

    --check compares the topic walk-ins with what was sent. Ctrl-C ends the run early; the truth file then describes
    what was sent until then.
    """
    # Imported here because it needs numpy, which no other command does.
    from jobs.presence.simulator.crowd import Crowd, plan
    from jobs.presence.simulator.scripts import Rules

    with clear_errors():
        if check is not None:
            _check(check)
            return
        rules = Rules(milliseconds(dwell), milliseconds(within), milliseconds(away))
        rules.check()
        max_delay = milliseconds(late)
        time = SimulatedTime.of_options(length or ("12h" if fast else "10m"), seed, fast=fast)
        crowd = Crowd(
            devices=devices,
            businesses=_businesses(businesses),
            rate=rate,
            start=time.start,
            length=time.length,
            seed=time.seed,
            late=max_delay,
            step=int(min(FAST_STEP_MS, max(100, FAST_PROBES * 1000 / rate))) if fast else 100,
            rules=rules,
        )
        _send(plan(crowd), truth or settings().home / "crowds" / f"{crowd.name}.jsonl", fast=fast)


def _send(plan: Plan, truth: Path, *, fast: bool) -> None:
    from jobs.presence.simulator.topics import PlanSender, write

    crowd, out = plan.crowd, console()
    with show_progress(f"crowd {crowd.name}", "probes", crowd.start, crowd.length) as (progress, stop):
        sender = PlanSender(plan, settings().bootstrap, stop)
        visits = sender.run(fast=fast, report=progress.update)
    sent = sender.sent
    write(truth, plan, visits)
    out.print(f"crowd {crowd.name}, seed {crowd.seed}: {progress.summary(sent)}, {sent.others:,} CRM events")
    if sent.behind > max(1000, crowd.late):
        out.print(f"{sent.behind / 1000:.1f} s behind the clock at the end, so probes are late: use a lower --rate")
    out.print(f"{len(visits):,} visits to be found; truth: {truth}")


def _check(file: Path) -> None:
    from jobs.presence.simulator.topics import compare

    result = compare(file, settings().bootstrap)
    out = console()
    out.print(f"{result.found:,} found, {len(result.missed):,} missed, {len(result.invented):,} invented")
    if result.missed or result.invented:
        listed = table(["", "device", "business", "since", "timestamp"], right=["since", "timestamp"])
        for kind, visits in [("missed", result.missed), ("invented", result.invented)]:
            for visit in visits:
                listed.add_row(kind, *map(str, visit))
        out.print(listed)
        raise typer.Exit(1)


def _businesses(number: int) -> list[Business]:
    """Businesses of the demo database; adds missing ones, and waits until their capture has written them."""
    from jobs.presence.simulator.crowd import Business
    from jobs.presence.simulator.topics import wait_for_businesses

    database = demo()
    while True:
        names, rows = database.rows("businesses", 2**31 - 1)
        existing = [row for values in rows if not (row := dict(zip(names, values, strict=True)))["deleted"]]
        if len(existing) >= number:
            businesses = [Business(str(row["id"]), row["threshold"]) for row in existing[:number]]
            wait_for_businesses(businesses, settings().bootstrap)
            return businesses
        for n in range(len(existing), number):
            database.add("businesses", {"name": f"Business {n + 1}", "threshold": str(-60 - 5 * (n % 5))})


if __name__ == "__main__":
    app()
