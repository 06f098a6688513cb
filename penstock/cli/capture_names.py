"""Names of captures on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.catalog import load
from penstock.cli.output import unknown
from penstock.declare.capture import Capture
from penstock.errors import PenstockError


def complete(incomplete: str) -> list[str]:
    try:
        return [name for name in sorted(load().captures) if name.startswith(incomplete)]
    except PenstockError:
        return []  # a shell's completion has nowhere to show an error


Name = Annotated[
    str, typer.Argument(help="A capture: a file of sql/captures/ without `.sql`.", autocompletion=complete)
]
Names = Annotated[list[str] | None, typer.Argument(help="Captures; all if none is named.", autocompletion=complete)]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]


def captures(names: list[str] | None) -> list[Capture]:
    found = load().captures
    for name in names or ():
        if name not in found:
            raise unknown("capture", name, found)
    return [found[name] for name in names or sorted(found)]
