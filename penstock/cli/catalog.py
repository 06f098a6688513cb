"""`penstock catalog`: the declarations, and their graph."""

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
from penstock.cli.arguments import AsJson
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
        return []  # a shell shows no errors of its completion
    return sorted(name for name in names if name.startswith(incomplete))


def catalog(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A declaration, topic, pattern, table or store: only this, with everything upstream and downstream.",
            autocompletion=complete,
        ),
    ] = None,
    as_json: AsJson = False,
    drawing: Annotated[
        Drawing | None, typer.Option("--graph", help="Print the graph, as a tree or for Mermaid.")
    ] = None,
) -> None:
    """List all declarations: inputs, outputs, output mode, and whether each runs.

    Errors of invalid files follow the list; the exit code is then 1.
    """
    if as_json and drawing:
        raise typer.BadParameter("use either --json, which includes the graph, or --graph", param_hint="--graph")
    with clear_errors():
        declared, wrong = load_partial()
    drawn, listed = graph(declared), catalog_rows(declared)
    if name is not None:
        names = {node.name for node in drawn.nodes}
        if name not in names:
            _print_errors(wrong)
            raise unknown("declaration, topic or store", name, names)
        drawn = drawn.around(name)
        listed = [row for row in listed if CatalogNode(row.kind, row.name) in drawn.nodes]
    if drawing:
        typer.echo({Drawing.text: text, Drawing.mermaid: mermaid}[drawing](drawn))
    elif as_json:
        emit({"declared": json_rows(listed), "graph": _data(drawn), "wrong": [str(e) for e in wrong]})
    else:
        _print(listed)
    if wrong:
        _print_errors(wrong)
        raise typer.Exit(1)


def _print_errors(wrong: Sequence[PenstockError]) -> None:
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
    rows = table(["kind", "name", "app", "reads", "writes", "output mode", "runs"])
    for row in listed:
        rows.add_row(
            row.kind, Text(row.name), row.app or "-", _names(row.reads), _written(row), row.output_mode or "-",
            "yes" if row.runs else Text("declared only", style="yellow"),
        )  # fmt: skip
    out.print(rows)
    if not all(row.runs for row in listed):
        out.print(Text(NOT_RUN, style="yellow"))


def _written(row: CatalogRow) -> Text:
    """What it writes, and which columns it masks there."""
    return Text("\n").join([_names(row.writes), *(Text(f"  {mask}", style="cyan") for mask in row.masks)])


def _names(places: Sequence[CatalogNode]) -> Text:
    names = (place.name if place.kind == "topic" else f"{place.name} ({place.kind})" for place in places)
    return Text("\n".join(names) or "-")
