"""`penstock topics`: compare declared topics with the broker's."""

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

Heartbeats = dict[str, Mapping[str, Any]]

# Seconds until every broker knows what was just changed; before that a new topic would be called missing.
SETTLE = 10.0


app = typer.Typer(help="Compare declared topics with the broker's; send and read records.")


@app.callback(invoke_without_command=True)
def topics(
    ctx: typer.Context,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Create and extend topics and set configs as declared; deletes nothing."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON.")] = False,
) -> None:
    """List declared topics: partitions, end offsets, last heartbeat, and differences from the declaration."""
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
            ["topic", "partitions", "end offsets", "last heartbeat", "as declared"], right=["partitions", "end offsets"]
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
        echo("the topics of these files are missing above", err=True)
        raise typer.Exit(1)


def _described(declared: list[Topic], timeout: float) -> list[TopicState]:
    """The topics at the broker, described again until they are as declared or the time is over."""
    end = time.monotonic() + timeout
    while True:
        states = describe_topics(declared, settings().bootstrap)
        if all(s.as_declared for s in states) or time.monotonic() >= end:
            return states
        time.sleep(0.2)


def _beats() -> tuple[Heartbeats, Heartbeats, int, str]:
    """Heartbeats and holds by topic, the database's clock, and the error if the database does not answer."""
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
        "heartbeat_age_ms": None if beat is None else max(0, now - beat["at"]),
        "held": "" if hold is None else hold["why"],
        "held_at": None if hold is None else hold["at"],
    }
