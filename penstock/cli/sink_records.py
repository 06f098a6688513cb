"""`penstock sinks dry-run`, `replay` and `state`: what a sink would write, what it put aside, and how it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.text import Text

from penstock.catalog import BrokenFile, partial_catalog
from penstock.cli.dead_letters import places_of, unambiguous
from penstock.cli.output import clear_errors, console, count, echo, emit, state, table, unknown
from penstock.control import connect
from penstock.errors import PenstockError
from penstock.kafka.dead_letters import DeadLetter, printable, read_dead_letters
from penstock.kafka.record_lookup import newest_records
from penstock.model.topic import DEAD_LETTERS
from penstock.monitoring.dashboard.platform_status import read_status
from penstock.monitoring.dashboard.states import StateLimits
from penstock.settings import settings
from penstock.sinks.core.document import DocumentOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.model.stream import Stream
    from penstock.monitoring.dashboard.model import StreamView

WIDTH = 400
Name = Annotated[str, typer.Argument(help="A sink, by its file's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]


def register(app: typer.Typer) -> None:
    """Put the commands of this module among those of `penstock sinks`."""
    app.command("dry-run")(dry_run)
    app.command("replay")(replay)
    app.command("state")(state_of)


def dry_run(
    name: Name,
    records: Annotated[int, typer.Option("--records", "-n", min=1, max=10_000, help="Of each topic.")] = 10,
    as_json: AsJson = False,
) -> None:
    """The documents that the newest records would make. Nothing is written."""
    with clear_errors():
        stream = _sink(name)
        given = newest_records([one.source for one in stream.sources.values()], records, settings().bootstrap)
        with _session(name) as spark:
            from penstock.engine.operations.sink_preview import render_documents

            found = render_documents(spark, stream, given)
    documents = [_document(row) for row in found.rows.to_pylist()]
    wrong = [{"place": str(place), "reason": why} for place, why in sorted(found.wrong.items())]
    if as_json:
        emit({"records": len(given), "documents": documents, "dead": wrong})
        return
    out = console()
    out.print(f"{len(given)} records make {len(documents)} documents; {len(wrong)} are none.")
    for one in documents:
        what = f"refused: {one['refused']}" if one["refused"] else "deleted" if one["deleted"] else one["document"]
        text = what if isinstance(what, str) else orjson.dumps(what).decode()
        out.print(
            Text(f"{one['place']}  id {printable(one['id'], 100)}  version {one['version']}  {printable(text, WIDTH)}")
        )
    for no in wrong:
        out.print(Text(f"{no['place']}  dead: {printable(no['reason'], WIDTH)}", style="yellow"))


def replay(
    name: Name,
    every: Annotated[bool, typer.Option("--all", help="All that it put aside.")] = False,
    place: Annotated[
        list[str] | None,
        typer.Option("--place", help="Only the record of this PLACE, as 'TOPIC[P]@O' or P:O; may be repeated."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also what was replayed before, as the store may have lost it since.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Give the store what the sink put aside once more, behind a fix: nobody else reads it, and each record once.

    What the store has a newer version of stays as it is. Exit code 1 if anything is refused again, or gone.
    """
    with clear_errors():
        if every == bool(place):
            raise PenstockError("which records?", hint="--all, or --place once or more")
        stream = _sink(name)
        chosen = [one for one in _letters(stream) if not place or not places_of(one).isdisjoint(place)]
        unambiguous(chosen, place or ())
        if missing := sorted(set(place or ()).difference(*map(places_of, chosen))):
            hint = f"penstock dead-letters show {stream.output.dead_letter_topic.name}"  # type: ignore[union-attr]
            raise PenstockError(f"{name} put nothing aside of that place", got=", ".join(missing), hint=hint)
        with _session(name) as spark:
            from penstock.engine.operations.sink_replay import ALREADY_REPLAYED
            from penstock.engine.operations.sink_replay import replay as given_again

            found = given_again(spark, stream, chosen, settings().bootstrap, again=again)
    said = [{"place": one.letter.location, "said": one.said, "ended": one.ended} for one in found]
    if as_json:
        emit(said)
    else:
        counted = Counter(one.said.partition(": ")[0] for one in found)
        out = console()
        out.print(", ".join(f"{n} {what}" for what, n in counted.items()) or f"{name} put nothing aside.")
        if any(one.said == ALREADY_REPLAYED for one in found):
            out.print(Text(ALREADY_REPLAYED, style="yellow"))
        for one in found:
            if not one.ended:
                out.print(Text(f"{one.letter.location}  {printable(one.said, WIDTH)}", style="yellow"))
    if not all(one.ended for one in found):
        raise typer.Exit(1)


def state_of(
    name: Annotated[str, typer.Argument(help="A sink; all of them if left out.")] = "", as_json: AsJson = False
) -> None:
    """How each sink is: its state and why, how far behind; rows written, older than what the store had, put aside.

    Exit code 1 if the file of one is wrong.
    """
    with clear_errors():
        sinks, broken = _sinks()
        wanted = {_sink(name).name} if name else sinks.keys()
        found = [one for one in read_status(connect(), StateLimits.of(settings())).streams if one.name in wanted]
    if as_json:
        emit([asdict(one) for one in found])
    else:
        _print(found, some=bool(wanted or broken))
    if not name and broken:
        for mistake in broken.values():
            echo(f"error: {mistake}", err=True)
        raise typer.Exit(1)


def _print(found: Sequence[StreamView], *, some: bool) -> None:
    out = console()
    if not found:
        out.print("No sink is known to the control database yet." if some else "No sink is declared.")
        return
    columns = ["sink", "app", "state", "lag", "rows/s", "rows", "older", "dead", "why"]
    made = table(columns, right=columns[3:8])
    for one in found:
        older = (one.store or {}).get("conflicts", 0)
        figures = (count(n) for n in (one.lag, one.rows_per_s, one.rows_out, older, one.dead))
        made.add_row(one.name, one.app, state(one.state), *figures, Text(printable(one.why, WIDTH)))
    out.print(made)


def _is_sink(stream: Stream) -> bool:
    return isinstance(stream.output, DocumentOutput)


def _sinks() -> tuple[dict[str, Stream], dict[str, BrokenFile]]:
    """The sinks by name, and what is wrong with the files of others."""
    declared, wrong = partial_catalog()
    sinks = {one: stream for one, stream in declared.streams.items() if _is_sink(stream)}
    return sinks, {mistake.path.stem: mistake for mistake in wrong if mistake.folder == "sinks"}


def _sink(name: str) -> Stream:
    sinks, broken = _sinks()
    if name in broken:
        raise broken[name]
    if name not in sinks:
        raise unknown("sink", name, sinks)
    return sinks[name]


def _letters(stream: Stream) -> Iterator[DeadLetter]:
    """What a sink put aside, where its records can be told."""
    topics = [topic for topic in stream.side_outputs if topic != stream.late_topic]
    for one in read_dead_letters([*topics, DEAD_LETTERS.name], settings().bootstrap):
        if one.stream == stream.name and one.origin:
            yield one


@contextmanager
def _session(name: str) -> Iterator[SparkSession]:
    from penstock.engine.session import open_session

    spark = open_session(f"sinks-{name}")
    try:
        yield spark
    finally:
        spark.stop()


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
