"""`penstock sinks`: check, explain and preview sinks, show their state, and replay their dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.text import Text

from penstock.catalog import BrokenFile, partial_catalog
from penstock.cli.arguments import AsJson, DryRun, Note, Place, Recorded, completion, look_up
from penstock.cli.dead_letters import check_places, record_choice
from penstock.cli.output import clear_errors, console, count, echo, emit, print_check, state, table
from penstock.cli.spark import session, short_session
from penstock.control import connect
from penstock.errors import PenstockError
from penstock.kafka.dead_letters import DeadLetter, printable, read_dead_letters
from penstock.kafka.record_lookup import newest_records
from penstock.model.sink import Sink
from penstock.model.topic import DEAD_LETTERS
from penstock.monitoring.dashboard.platform_status import read_status
from penstock.monitoring.dashboard.states import StateLimits
from penstock.settings import settings
from penstock.sinks.core.document import DocumentOutput
from penstock.sinks.core.preview import SinkExplanation, explain_sink
from penstock.sinks.core.stream import is_configured

if TYPE_CHECKING:
    from penstock.model.stream import Stream
    from penstock.monitoring.dashboard.model import StreamView

app = typer.Typer(no_args_is_help=True, help="Write topics into Elasticsearch, MongoDB and InfluxDB by SQL statements.")

# Characters of a document or a reason.
WIDTH = 400
Name = Annotated[
    str, typer.Argument(help="A sink: a file of sql/sinks/ without `.sql`.", autocompletion=completion("sinks"))
]
Names = Annotated[
    list[str] | None, typer.Argument(help="Sinks; all if none is named.", autocompletion=completion("sinks"))
]


@app.command()
def check(names: Names = None) -> None:
    """Check the statements with Spark, without connecting to a store.

    Exit code 1 if one is invalid.
    """
    with clear_errors():
        catalog, broken = partial_catalog()[0], _broken()
        chosen = [
            name
            for name in names or sorted({*catalog.sinks, *broken})
            if name in broken or look_up("sink", name, catalog.sinks)
        ]
    for name in chosen:
        if name in broken:
            print_check(name, f"{broken[name]}", "red")
    sinks = [catalog.sinks[name] for name in chosen if name not in broken]
    if not chosen:
        console().print("No sinks are declared: see sql/sinks/.")
    failed = len(sinks) < len(chosen)
    if sinks:
        with short_session("sinks") as spark:
            for sink in sinks:
                style = "green"
                try:
                    fields = explain_sink(sink, catalog.topics, spark).fields
                    result = f"{_target(sink)}, fields {', '.join(name for name, _ in fields)}"
                    if not is_configured(sink):
                        result, style = f"{result}; it does not run: set PENSTOCK_{sink.store.upper()}_URL", "yellow"
                except PenstockError as e:
                    failed, result, style = True, f"{e}", "red"
                print_check(sink.name, result, style)
    raise typer.Exit(1 if failed else 0)


@app.command()
def explain(name: Name, as_json: AsJson = False) -> None:
    """Show the documents of a sink: fields, id, version, what is created in the store, and Spark's plan."""
    with clear_errors():
        broken, catalog = _broken(), partial_catalog()[0]
        if name in broken:
            raise broken[name]
        sink = look_up("sink", name, catalog.sinks)
        with short_session("sinks") as spark:
            explanation = explain_sink(sink, catalog.topics, spark)
    if as_json:
        emit({"name": name, "target": _target(sink), **vars(explanation)})
        return
    _print_explanation(sink, explanation)


@app.command("dry-run")
def dry_run(
    name: Name,
    records: Annotated[
        int, typer.Option("--records", "-n", min=1, max=10_000, help="Number of records of each topic.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the documents that the newest records become. Nothing is written."""
    with clear_errors():
        stream = _sink(name)
        newest = newest_records([one.source for one in stream.sources.values()], records, settings().bootstrap)
        with short_session(f"sinks-{name}") as spark:
            from penstock.engine.operations.sink_preview import render_documents

            preview = render_documents(spark, stream, newest)
    documents = [_document(row) for row in preview.rows.to_pylist()]
    dead = [{"place": str(place), "reason": why} for place, why in sorted(preview.errors.items())]
    if as_json:
        emit({"records": len(newest), "documents": documents, "dead": dead})
        return
    out = console()
    out.print(f"{len(newest)} records become {len(documents)} documents and {len(dead)} dead letters.")
    for one in documents:
        what = f"refused: {one['refused']}" if one["refused"] else "deleted" if one["deleted"] else one["document"]
        text = what if isinstance(what, str) else orjson.dumps(what).decode()
        out.print(
            Text(f"{one['place']}  id {printable(one['id'], 100)}  version {one['version']}  {printable(text, WIDTH)}")
        )
    for letter in dead:
        out.print(Text(f"{letter['place']}  dead: {printable(letter['reason'], WIDTH)}", style="yellow"))


@app.command("replay")
def replay(
    name: Name,
    every: Annotated[bool, typer.Option("--all", help="Replay all dead letters of the sink.")] = False,
    place: Place = None,
    again: Annotated[
        bool, typer.Option("--again", help="Include dead letters that were replayed before, if the store lost them.")
    ] = False,
    note: Note = "",
    recorded: Recorded = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write the dead letters of a sink to its store, each once. No other stream reads them.

    A newer version in the store is kept. A dry run does not ask the store. Exit code 1 if the store refuses a record
    again, or a record no longer exists.
    """
    with clear_errors():
        if every == bool(place):
            raise PenstockError("no records are chosen", hint="use either --all, or --place once or more")
        stream = _sink(name)
        chosen = [one for one in _letters(stream) if not place or not one.places.isdisjoint(place)]
        check_places(chosen, place or (), f"sink {name}", stream.output.dead_letter_topic.name)  # type: ignore[union-attr]
        if chosen and not (dry_run or recorded):
            record_choice("replay", name, note, len(chosen), "again" if again else "", places=place)
        with session(f"sinks-{name}") as spark:
            from penstock.engine.operations.sink_replay import ALREADY_REPLAYED
            from penstock.engine.operations.sink_replay import replay as run_replay

            results = run_replay(spark, stream, chosen, settings().bootstrap, include_replayed=again, dry=dry_run)
    if as_json:
        emit([{"place": one.letter.location, "said": one.said, "ended": one.ended} for one in results])
    else:
        counts = Counter(one.said.partition(": ")[0] for one in results)
        out = console()
        out.print(", ".join(f"{n} {what}" for what, n in counts.items()) or f"Sink {name} has no dead letters.")
        if any(one.said == ALREADY_REPLAYED for one in results):
            out.print(Text(ALREADY_REPLAYED, style="yellow"))
        for one in results:
            if not one.ended:
                out.print(Text(f"{one.letter.location}  {printable(one.said, WIDTH)}", style="yellow"))
    if not all(one.ended for one in results):
        raise typer.Exit(1)


@app.command("state")
def show_state(
    name: Annotated[str, typer.Argument(help="A sink; all if none is named.", autocompletion=completion("sinks"))] = "",
    as_json: AsJson = False,
) -> None:
    """Show state, lag, written rows, conflicts and dead letters of each sink, with the reason of the state.

    Exit code 1 if the file of a sink is invalid.
    """
    with clear_errors():
        names, broken = {_sink(name).name} if name else set(_streams()), _broken()
        streams = [one for one in read_status(connect(), StateLimits.of(settings())).streams if one.name in names]
    if as_json:
        emit([asdict(one) for one in streams])
    else:
        _print_state(streams, declared=bool(names or broken))
    if not name and broken:
        for mistake in broken.values():
            echo(f"error: {mistake}", err=True)
        raise typer.Exit(1)


def _print_state(streams: Sequence[StreamView], *, declared: bool) -> None:
    out = console()
    if not streams:
        out.print("No sink is in the control database yet." if declared else "No sinks are declared.")
        return
    columns = ["sink", "app", "state", "lag", "rows/s", "rows", "older", "dead", "why"]
    rows = table(columns, right=columns[3:8])
    for one in streams:
        older = (one.store or {}).get("conflicts", 0)
        numbers = (count(n) for n in (one.lag, one.rows_per_s, one.rows_out, older, one.dead))
        rows.add_row(one.name, one.app, state(one.state), *numbers, Text(printable(one.why, WIDTH)))
    out.print(rows)


def _target(sink: Sink) -> str:
    return f"{sink.verb} into {'.'.join((sink.store, *sink.target))}"


def _print_explanation(sink: Sink, explanation: SinkExplanation) -> None:
    out = console()
    topics = ", ".join(read.topic for read in sink.reads)
    out.print(Text.assemble((sink.name, "bold"), f": {topics} -> {_target(sink)}"))
    for line in explanation.facts:
        out.print(f"  {line}")
    out.print(Text("\nfields", style="bold"))
    for field, kind in explanation.fields:
        out.print(f"  {field} {kind}")
    if explanation.store_schema:
        out.print(Text("\nwhat is created in the store", style="bold"))
        emit(explanation.store_schema)
    out.print(Text("\nSELECT for Spark", style="bold"))
    out.print(sink.rewritten.sql)
    out.print(Text("\nSpark's plan", style="bold"))
    out.print(explanation.plan)


def _broken() -> dict[str, BrokenFile]:
    """The errors of invalid files, by the name of the sink."""
    return {e.path.stem: e for e in partial_catalog()[1] if e.path.parent.name == "sinks" and e.path.suffix == ".sql"}


def _streams() -> dict[str, Stream]:
    """The streams that write documents: sinks of files, and streams whose output is a store."""
    streams = partial_catalog()[0].streams
    return {name: stream for name, stream in streams.items() if isinstance(stream.output, DocumentOutput)}


def _sink(name: str) -> Stream:
    broken = _broken()
    if name in broken:
        raise broken[name]
    return look_up("sink", name, _streams())


def _letters(stream: Stream) -> Iterator[DeadLetter]:
    """Dead letters of a sink whose records are known."""
    topics = [topic for topic in stream.side_outputs if topic != stream.late_topic]
    for one in read_dead_letters([*topics, DEAD_LETTERS.name], settings().bootstrap):
        if one.stream == stream.name and one.origin:
            yield one


def _document(row: dict[str, Any]) -> dict[str, Any]:
    from penstock.engine.operations.sink_preview import DOCUMENT_COLUMN

    return {
        **{name: None if row[name] is None else row[name].decode(errors="replace") for name in ("id", "refused")},
        "place": f"{row['topic']}[{row['partition']}]@{row['offset']}",
        "version": row["version"],
        "deleted": row["deleted"],
        "at": row["at"],
        "document": None if row[DOCUMENT_COLUMN] is None else orjson.loads(row[DOCUMENT_COLUMN]),
    }
