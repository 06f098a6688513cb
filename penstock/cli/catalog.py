"""`penstock catalog`: everything declared, and what feeds what."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from penstock.catalog import load_partial
from penstock.catalog.diagram import mermaid, text
from penstock.catalog.graph import Graph, graph
from penstock.catalog.listing import NOT_RUN, CatalogRow, catalog_rows, json_rows
from penstock.cli.output import clear_errors, console, echo, emit, table, unknown
from penstock.errors import PenstockError
from penstock.model.declaration import CatalogNode


class Drawing(StrEnum):
    text = "text"
    mermaid = "mermaid"


def complete(incomplete: str) -> list[str]:
    try:
        names = {node.name for node in graph(load_partial(combiners=False)[0]).nodes}
    except PenstockError:
        return []  # a shell's completion has nowhere to show an error
    return sorted(name for name in names if name.startswith(incomplete))


def catalog(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A declared thing, topic, pattern, table or store: with what feeds it and what it feeds, and no more.",
            autocompletion=complete,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON.")] = False,
    drawing: Annotated[
        Drawing | None, typer.Option("--graph", help="Draw what feeds what, as a tree or for Mermaid.")
    ] = None,
) -> None:
    """List streams, sinks, captures, views, archives and backfills: inputs, outputs, output mode, state.

    What is wrong in a file is told behind the others, and the exit code is then 1.
    """
    if as_json and drawing:
        raise typer.BadParameter("take --json, which has the graph too, or --graph", param_hint="--graph")
    with clear_errors():
        found, wrong = load_partial()
    drawn, listed = graph(found), catalog_rows(found)
    if name is not None:
        known = {node.name for node in drawn.nodes}
        if name not in known:
            _tell(wrong)
            raise unknown("declared thing or place", name, known)
        drawn = drawn.around(name)
        listed = [row for row in listed if CatalogNode(row.kind, row.name) in drawn.nodes]
    if drawing:
        typer.echo({Drawing.text: text, Drawing.mermaid: mermaid}[drawing](drawn))
    elif as_json:
        emit({"declared": json_rows(listed), "graph": _data(drawn), "wrong": [str(e) for e in wrong]})
    else:
        _print(listed)
    if wrong:
        _tell(wrong)
        raise typer.Exit(1)


def _tell(wrong: Sequence[PenstockError]) -> None:
    for e in wrong:
        echo(f"error: {e}", err=True)


def _data(drawn: Graph) -> dict[str, object]:
    return {
        "nodes": [node._asdict() for node in drawn.nodes],
        "edges": [
            {"source": e.source._asdict(), "target": e.target._asdict(), "matches": e.matches} for e in drawn.edges
        ],
    }


def _print(listed: list[CatalogRow]) -> None:
    out = console()
    if not listed:
        out.print("Nothing is declared: see docs/catalog.md.")
        return
    made = table(["kind", "name", "app", "reads", "writes", "output mode", "runs"])
    for row in listed:
        made.add_row(
            row.kind, Text(row.name), row.app or "-", _names(row.reads), _names(row.writes), row.output_mode or "-",
            "yes" if row.runs else Text("declared only", style="yellow"),
        )  # fmt: skip
    out.print(made)
    if not all(row.runs for row in listed):
        out.print(Text(NOT_RUN, style="yellow"))


def _names(places: Sequence[CatalogNode]) -> Text:
    shown = (place.name if place.kind == "topic" else f"{place.name} ({place.kind})" for place in places)
    return Text("\n".join(shown) or "-")
