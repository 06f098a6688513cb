"""The command line `penstock`: a thin face on the library."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from penstock.cli import (
    archives,
    backfills,
    captures,
    catalog,
    crowd,
    dead_letters,
    demo,
    fleet,
    local,
    meter,
    sink_records,
    sinks,
    streams,
    topics,
    views,
    ways_out,
)
from penstock.cli.output import clear_errors, echo
from penstock.settings import misspelt


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        # A setting may be wrong before a command has begun.
        with clear_errors():
            for name, meant in misspelt().items():
                echo(f"warning: {name} is no setting and changes nothing; did you mean {meant}?", err=True)
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Streams on Spark and Kafka, supervised by Airflow.",
)
local.register(app)
ways_out.register(streams.app)
sink_records.register(sinks.app)
app.add_typer(streams.app, name="streams")
app.add_typer(captures.app, name="capture")
app.add_typer(sinks.app, name="sinks")
app.add_typer(views.app, name="views")
app.add_typer(archives.app, name="archives")
app.add_typer(backfills.app, name="backfill")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(demo.app, name="demo")
demo.app.command("crowd")(crowd.crowd)
demo.app.command("fleet")(fleet.fleet)
app.command("catalog")(catalog.catalog)
app.command("topics")(topics.topics)
app.command("meter")(meter.meter)
