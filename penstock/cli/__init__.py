"""The command line `penstock`.

The module of a command is imported when the command runs: importing all of them takes seconds of CPU.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from penstock.cli.output import clear_errors, echo


class _Command(NamedTuple):
    """Where a command is defined, in `penstock.cli`: the Typer `app` of a module, or its function `function`.

    also: modules whose `register(app)` adds commands to that app. help: what `penstock --help` says of the command.
    """

    module: str
    help: str
    function: str = ""
    also: tuple[str, ...] = ()


COMMANDS = {
    "up": _Command(
        "devstack",
        "Start the platform on this machine, or adopt the servers that run; show what runs where.",
        "up",
    ),
    "status": _Command(
        "devstack",
        "Show servers with pid, port, age, CPU and memory, and apps and streams. Exit code 1 unless all are healthy.",
        "status",
    ),
    "logs": _Command("devstack", "Show the logs of the servers and of the drivers.", "logs"),
    "down": _Command("devstack", "Stop the platform, drivers included; its data stays.", "down"),
    "clean": _Command("devstack", "Stop the platform and remove all its data. Downloads stay in the cache.", "clean"),
    "doctor": _Command(
        "devstack",
        "Check Java, ports, versions, jars, broker, database, disk and memory, with a hint for each failure.",
        "doctor",
    ),
    "migrate": _Command(
        "devstack", "Migrate the control database, and register what is declared.", "migrate"
    ),
    "catalog": _Command(
        "catalog",
        "List streams, sinks, captures, views, archives and backfills: inputs, outputs, output mode, state.",
        "catalog",
    ),
    "topics": _Command(
        "topics", "Compare declared topics with the broker's; send and read records.", also=("records",)
    ),
    "meter": _Command(
        "metrics_collector",
        "Sample the platform, send the samples to Kafka and serve Prometheus, until SIGTERM.",
        "meter",
    ),
    "streams": _Command(
        "streams", "Show, start, stop and release streams.", also=("recovery",)
    ),
    "capture": _Command("captures", "Capture rows of SQL statements into compacted topics."),
    "sinks": _Command(
        "sinks", "Write topics into Elasticsearch, MongoDB and InfluxDB by SQL statements.", also=("sink_records",)
    ),
    "views": _Command("views", "Query compacted topics, as REST serves them."),
    "archives": _Command("archives", "Show and verify topics archived in an object store by hour."),
    "backfill": _Command("backfills", "Write intervals of archives, and collections, to topics."),
    "dead-letters": _Command(
        "dead_letters", "List, show and replay dead letters."
    ),
    "demo": _Command("demo", "Change rows of the demo database, for its captures."),
}  # fmt: skip


@cache
def load(name: str, subcommand: str = "") -> Any:
    """Import the modules of a command; those in `also` only if the first does not have the subcommand."""
    known = COMMANDS[name]
    module = import_module(f"penstock.cli.{known.module}")
    if known.function:
        made = typer.Typer()
        # Typer makes no group of a single command without this.
        made.callback()(lambda: None)
        made.command(name)(getattr(module, known.function))
        return get_group(made).commands[name]
    found = get_group(module.app)
    if subcommand not in found.commands:
        for other in known.also:
            import_module(f"penstock.cli.{other}").register(module.app)
        found = get_group(module.app)
    found.name = name
    return found


class _Commands(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # All that `penstock --help` needs.
        self.commands.update((name, TyperCommand(name, help=known.help)) for name, known in COMMANDS.items())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name, *rest[:1]), rest

    def invoke(self, ctx: Any) -> Any:
        from penstock.settings import misspelled_variables

        # A setting may be invalid before a command starts.
        with clear_errors():
            for name, meant in misspelled_variables().items():
                echo(f"warning: {name} is not a setting and has no effect; did you mean {meant}?", err=True)
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Streams on Spark and Kafka, supervised by Airflow.",
)


@app.callback()
def _penstock() -> None:
    """Streams on Spark and Kafka, supervised by Airflow."""
