"""`penstock topics`: the declared topics beside the broker's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.catalog import partial_catalog
from penstock.cli.output import clear_errors, console, count, echo, emit, table
from penstock.control import connect
from penstock.errors import ControlError
from penstock.kafka.admin import TopicState, describe_topics, ensure_topics
from penstock.model.topic import Topic
from penstock.monitoring.humanize import duration
from penstock.settings import settings

Beats = dict[str, Mapping[str, Any]]

# Seconds until every broker knows what was just changed; before that a new topic would be called missing.
SETTLE = 10.0


app = typer.Typer(help="The declared topics beside the broker's; sending records and reading them.")


@app.callback(invoke_without_command=True)
def topics(
    ctx: typer.Context,
    apply: Annotated[
        bool, typer.Option("--apply", help="Create, widen and configure topics as declared; removes nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON.")] = False,
) -> None:
    """Every declared topic: partitions, differences from its declaration, records, last heartbeat."""
    if ctx.invoked_subcommand:
        return
    with clear_errors():
        catalog, wrong = partial_catalog()
        declared = list(catalog.topics.values())
        done = ensure_topics(declared, settings().bootstrap) if apply else []
        states = _described(declared, SETTLE if done else 0)
    beats, holds, now, away = _beats()
    if as_json:
        told = [(s, beats.get(s.declared.name), holds.get(s.declared.name)) for s in states]
        emit({"done": done, "topics": [_data(*one, now) for one in told]})
    else:
        out = console()
        for line in done:
            out.print(line)
        made = table(
            ["topic", "partitions", "end offsets", "last beat", "as declared"], right=["partitions", "end offsets"]
        )
        for s in states:
            beat = beats.get(s.declared.name)
            age = "-" if beat is None else f"{duration(max(0, now - beat['at']))} ago"
            made.add_row(s.declared.name, str(s.partitions), count(sum(s.end_offsets.values())), age, _verdict(s))
        out.print(made)
        for name in sorted(holds.keys() & {s.declared.name for s in states}):
            out.print(Text(f"heartbeats of {name} are {_held(holds[name])}", style="yellow"))
        if any(not s.as_declared for s in states):
            out.print(Text("`penstock topics --apply` makes them as declared.", style="yellow"))
    if away:
        echo(f"heartbeats are not known: {away}", err=True)
    for mistake in wrong:
        echo(f"error: {mistake}", err=True)
    if wrong:
        echo("the topics of these files are not among those above", err=True)
        raise typer.Exit(1)


def _described(declared: list[Topic], patience: float) -> list[TopicState]:
    """The topics beside the broker's, looked at again until they are as declared or patience is at its end."""
    end = time.monotonic() + patience
    while True:
        states = describe_topics(declared, settings().bootstrap)
        if all(s.as_declared for s in states) or time.monotonic() >= end:
            return states
        time.sleep(0.2)


def _beats() -> tuple[Beats, Beats, int, str]:
    """Beats and holds by topic, the database's clock, and why there are none."""
    try:
        control = connect()
        return control.heartbeats(), control.heartbeat_holds(), control.now(), ""
    except ControlError as e:  # topics are the broker's: they are shown without the database too
        return {}, {}, 0, str(e)


def _held(hold: Mapping[str, Any]) -> str:
    at = "" if hold["at"] is None else f" at {datetime.fromtimestamp(hold['at'] / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return f"held{at}: {hold['why']}"


def _verdict(state: TopicState) -> Text:
    if not state.partitions:
        return Text("missing", style="red")
    wrong = []
    if state.partitions < state.declared.partitions:
        wrong.append(f"{state.declared.partitions} partitions declared")
    wrong += [f"{key} is {real or 'unset'}, declared {declared}" for key, (declared, real) in state.drift.items()]
    return Text("; ".join(wrong), style="yellow") if wrong else Text("yes", style="green")


def _data(
    state: TopicState, beat: Mapping[str, Any] | None, hold: Mapping[str, Any] | None, now: int
) -> dict[str, Any]:
    return {
        "name": state.declared.name,
        "exists": state.partitions > 0,
        "as_declared": state.as_declared,
        "partitions": state.partitions,
        "declared_partitions": state.declared.partitions,
        "differences": {key: {"declared": want, "real": real} for key, (want, real) in state.drift.items()},
        "end_offsets": {str(partition): offset for partition, offset in state.end_offsets.items()},
        "alive_at": None if beat is None else beat["at"],
        "beat_age_ms": None if beat is None else max(0, now - beat["at"]),
        "held": "" if hold is None else hold["why"],
        "held_at": None if hold is None else hold["at"],
    }
