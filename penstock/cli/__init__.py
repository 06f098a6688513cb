"""The command line `penstock`: a thin face on the library."""

from __future__ import annotations

import typer

from penstock.cli import captures, catalog, dead_letters, demo, local, meter, streams, topics, ways_out

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Streams on Spark and Kafka, supervised by Airflow.",
)
local.register(app)
ways_out.register(streams.app)
app.add_typer(streams.app, name="streams")
app.add_typer(captures.app, name="capture")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(demo.app, name="demo")
app.command("catalog")(catalog.catalog)
app.command("topics")(topics.topics)
app.command("meter")(meter.meter)
