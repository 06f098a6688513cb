"""The command line `penstock`.

The module of a command is imported when the command runs: importing all of them takes seconds of CPU.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from penstock import __version__
from penstock.cli.output import clear_errors, echo, escape_unencodable
from penstock.errors import optional_packages


class _Command(NamedTuple):
    """A command: the Typer `app` of a module of `penstock.cli`, or its function `function`.

    context: settings of the function's context.
    """

    module: str
    help: str
    function: str = ""
    context: dict[str, Any] | None = None


COMMANDS = {
    "init": _Command(
        "project", "Lay out a project with one stream, one capture, one sink and their tests.", "init"
    ),
    "test": _Command(
        "project", "Run the tests of the project by pytest.", "test",
        # Arguments of pytest are passed on.
        {"allow_extra_args": True, "ignore_unknown_options": True},
    ),
    "up": _Command(
        "platform",
        "Start the platform on this machine, or adopt the servers that run; show what runs where.",
        "up",
    ),
    "status": _Command(
        "platform",
        "Show servers with pid, port, age, CPU and memory, and apps and streams. Exit code 1 unless all are healthy.",
        "status",
    ),
    "logs": _Command("platform", "Show the logs of the servers and of the drivers.", "logs"),
    "down": _Command("platform", "Stop the platform, drivers included; its data stays.", "down"),
    "clean": _Command("platform", "Stop the platform and remove all its data. Downloads stay in the cache.", "clean"),
    "doctor": _Command(
        "platform",
        "Check Java, ports, versions, jars, broker, database, disk and memory, with a hint for each failure.",
        "doctor",
    ),
    "migrate": _Command(
        "platform", "Migrate the control database, and register the declarations.", "migrate"
    ),
    "catalog": _Command(
        "catalog",
        "List all declarations: inputs, outputs, output mode, and whether each runs.",
        "catalog",
    ),
    "topics": _Command(
        "topics", "Compare declared topics with the broker's; send and read records.",
    ),
    "meter": _Command(
        "meter",
        "Sample the platform, send the samples to Kafka and serve Prometheus, until SIGTERM.",
        "meter",
    ),
    "streams": _Command(
        "streams", "Show, start, stop, release and replace streams; reset, rebuild and remove them.",
    ),
    "replacements": _Command(
        "replacements", "Show replacements of running streams; cut, cancel and confirm them.",
    ),
    "capture": _Command("captures", "Capture rows of SQL statements into compacted topics."),
    "sinks": _Command(
        "sinks", "Write topics into Elasticsearch, MongoDB and InfluxDB by SQL statements.",
    ),
    "views": _Command("views", "Query views: compacted topics that are served by REST."),
    "archives": _Command("archives", "Show, verify and maintain topics that are archived as Iceberg tables."),
    "backfill": _Command("backfills", "Write archives, Iceberg tables and MongoDB collections to topics."),
    "dead-letters": _Command(
        "dead_letters", "List, show, replay and discard dead letters."
    ),
    "demo": _Command("demo", "Change rows of the demo database, which captures follow."),
}  # fmt: skip


@cache
def load(name: str) -> Any:
    """A command, imported."""
    command = COMMANDS[name]
    with clear_errors(), optional_packages():
        module = import_module(f"penstock.cli.{command.module}")
    if command.function:
        single = typer.Typer()
        # Typer makes no group of a single command without this.
        single.callback()(lambda: None)
        single.command(name, context_settings=command.context)(getattr(module, command.function))
        return get_group(single).commands[name]
    group = get_group(module.app)
    group.name = name
    return group


class _Commands(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # `penstock --help` needs no more of a command.
        self.commands.update((name, TyperCommand(name, help=command.help)) for name, command in COMMANDS.items())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest

    def main(self, *args: Any, **options: Any) -> Any:
        escape_unencodable()
        # A setting may be invalid before a command starts, and help may go to a full disk.
        try:
            with clear_errors():
                return super().main(*args, **options)
        except typer.Exit as e:
            sys.exit(e.exit_code)

    def invoke(self, ctx: Any) -> Any:
        from penstock.settings import misspelled_variables

        for name, meant in misspelled_variables().items():
            echo(f"warning: {name} is not a setting and has no effect; did you mean {meant}?", err=True)
        return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Streams on Spark and Kafka, supervised by Airflow.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _penstock(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Streams on Spark and Kafka, supervised by Airflow."""
