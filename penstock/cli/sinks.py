"""`penstock sinks`: check and explain sinks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from penstock.catalog import BrokenFile, partial_catalog
from penstock.cli.output import clear_errors, console, emit, unknown
from penstock.errors import PenstockError
from penstock.model.sink import Sink
from penstock.model.topic import Topic
from penstock.sinks.core.preview import SinkExplanation, explain_sink
from penstock.sinks.core.stream import is_configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(no_args_is_help=True, help="Write topics into Elasticsearch, MongoDB and InfluxDB by SQL statements.")


def complete(incomplete: str) -> list[str]:
    return [name for name in sorted(partial_catalog()[0].sinks) if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="A sink: a file of sql/sinks/ without `.sql`.", autocompletion=complete)]
Names = Annotated[list[str] | None, typer.Argument(help="Sinks; all if none is named.", autocompletion=complete)]


def sinks(names: list[str] | None) -> tuple[list[Sink], dict[str, BrokenFile]]:
    """The named sinks, or all, and by name the errors of files that cannot be read."""
    declared, wrong = partial_catalog()
    broken = {e.path.stem: e for e in wrong if e.folder == "sinks" and (not names or e.path.stem in names)}
    for name in names or ():
        if name not in declared.sinks and name not in broken:
            raise unknown("sink", name, declared.sinks)
    return [declared.sinks[name] for name in names or sorted(declared.sinks) if name in declared.sinks], broken


def require_valid(found: list[Sink], broken: dict[str, BrokenFile]) -> list[Sink]:
    """What `sinks` gives; BrokenFile if one of the files is wrong."""
    for mistake in broken.values():
        raise mistake
    return found


@contextmanager
def session() -> Iterator[SparkSession]:
    # Spark is more than most commands need to load.
    from penstock.engine.session import open_session

    # Spark would log each error again, with a page of Java.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    spark = open_session("sinks")
    try:
        yield spark
    finally:
        spark.stop()


@app.command()
def check(names: Names = None) -> None:
    """Check the statements with Spark, without connecting to a store.

    Exit code 1 if one is invalid.
    """
    with clear_errors():
        (wanted, broken), topics = sinks(names), partial_catalog()[0].topics
    for name, mistake in broken.items():
        console().print(Text(f"✗ {name}: {mistake}", style="red"))
    if not wanted and not broken:
        console().print("No sinks are declared: see sql/sinks/.")
    right = _checked(wanted, topics) if wanted else True
    raise typer.Exit(0 if right and not broken else 1)


def _checked(wanted: list[Sink], topics: Mapping[str, Topic]) -> bool:
    """Print the result of each check; True if all are valid."""
    right = True
    with session() as spark:
        for sink in wanted:
            try:
                found = explain_sink(sink, topics, spark)
            except PenstockError as e:
                right = False
                console().print(Text(f"✗ {sink.name}: {e}", style="red"))
                continue
            said, style = f"{_target(sink)}, fields {', '.join(name for name, _ in found.fields)}", "green"
            if not is_configured(sink):
                said += f"; it does not run: set PENSTOCK_{sink.store.upper()}_URL"
                style = "yellow"
            console().print(Text(f"✓ {sink.name}: {said}", style=style))
    return right


@app.command()
def explain(name: Name, as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON.")] = False) -> None:
    """Show the documents of a sink: fields, id, version, what is created in the store, and Spark's plan."""
    with clear_errors():
        [sink] = require_valid(*sinks([name]))
        with session() as spark:
            found = explain_sink(sink, partial_catalog()[0].topics, spark)
    if as_json:
        emit({"name": name, "target": _target(sink), **vars(found)})
        return
    _print(sink, found)


def _target(sink: Sink) -> str:
    return f"{sink.verb} into {'.'.join((sink.store, *sink.target))}"


def _print(sink: Sink, found: SinkExplanation) -> None:
    out = console()
    topics = ", ".join(read.topic for read in sink.reads)
    out.print(Text.assemble((sink.name, "bold"), f": {topics} -> {_target(sink)}"))
    for line in found.facts:
        out.print(f"  {line}")
    out.print(Text("\nfields", style="bold"))
    for field, kind in found.fields:
        out.print(f"  {field} {kind}")
    if found.store_schema:
        out.print(Text("\nwhat is created in the store", style="bold"))
        emit(found.store_schema)
    out.print(Text("\nSELECT for Spark", style="bold"))
    out.print(sink.rewritten.sql)
    out.print(Text("\nSpark's plan", style="bold"))
    out.print(found.plan)
