"""The command line `penstock`: a thin face on the library.

A command's module is imported when the command is run: importing all of them takes seconds of CPU.
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
        "Start the platform on this machine, or adopt what runs of it; ends with what runs where and the first "
        "figures.",
        "up",
    ),
    "status": _Command(
        "devstack",
        "What runs: parts with pid, port, age, CPU and memory; apps and streams. Exit code 1 unless all is well.",
        "status",
    ),
    "logs": _Command("devstack", "The logs of the parts and of the drivers.", "logs"),
    "down": _Command("devstack", "Stop the platform, drivers included; its data stays.", "down"),
    "clean": _Command("devstack", "Stop the platform and remove all its data. Downloads stay in the cache.", "clean"),
    "doctor": _Command(
        "devstack",
        "Check Java, ports, versions, jars, broker, database, disk and memory; says how to mend what fails.",
        "doctor",
    ),
    "migrate": _Command(
        "devstack", "Create what is missing in the control database, and enter what is declared.", "migrate"
    ),
    "catalog": _Command(
        "catalog",
        "Every stream, sink, capture, view, archive and backfill: what it reads and writes, its output mode, and "
        "what runs it.",
        "catalog",
    ),
    "topics": _Command(
        "topics", "The declared topics beside the broker's; sending records and reading them.", also=("records",)
    ),
    "meter": _Command(
        "metrics_collector",
        "Sample the platform, send the figures as receipts to Kafka and serve them to Prometheus, until SIGTERM.",
        "meter",
    ),
    "streams": _Command(
        "streams", "What the streams do, and starting, stopping and releasing them.", also=("recovery",)
    ),
    "capture": _Command("captures", "SQL statements captured into compacted topics."),
    "sinks": _Command(
        "sinks", "SQL statements that write topics into Elasticsearch, MongoDB, InfluxDB.", also=("sink_records",)
    ),
    "views": _Command("views", "Compacted topics that are served by REST."),
    "archives": _Command("archives", "Topics kept in an object store, hour by hour."),
    "backfill": _Command("backfills", "Intervals of archives, and collections, brought into topics."),
    "dead-letters": _Command(
        "dead_letters", "Records that streams put aside: which, why, and sending them again."
    ),
    "demo": _Command("demo", "Change rows of the demo database; its captures follow."),
}  # fmt: skip


@cache
def load(name: str, subcommand: str = "") -> Any:
    """Imports a command's modules and returns the command, whole unless its first module knows the subcommand."""
    known = COMMANDS[name]
    module = import_module(f"penstock.cli.{known.module}")
    if known.function:
        made = typer.Typer()
        # Of one command alone Typer makes no group without this.
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
        # What `penstock --help` needs to know of each.
        self.commands.update((name, TyperCommand(name, help=known.help)) for name, known in COMMANDS.items())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name, *rest[:1]), rest

    def invoke(self, ctx: Any) -> Any:
        from penstock.settings import misspelled_variables

        # A setting may be wrong before a command has begun.
        with clear_errors():
            for name, meant in misspelled_variables().items():
                echo(f"warning: {name} is no setting and changes nothing; did you mean {meant}?", err=True)
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
