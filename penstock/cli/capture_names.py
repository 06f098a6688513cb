"""Names of captures on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.catalog import BrokenFile, partial_catalog
from penstock.cli.output import unknown
from penstock.model.capture import Capture


def complete(incomplete: str) -> list[str]:
    return [name for name in sorted(partial_catalog()[0].captures) if name.startswith(incomplete)]


Name = Annotated[
    str, typer.Argument(help="A capture: a file of sql/captures/ without `.sql`.", autocompletion=complete)
]
Names = Annotated[list[str] | None, typer.Argument(help="Captures; all if none is named.", autocompletion=complete)]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]


def captures(names: list[str] | None) -> list[Capture]:
    declared, wrong = partial_catalog()
    found = declared.captures
    for name in names or ():
        for mistake in wrong:
            if mistake.path.stem == name:
                raise mistake
        if name not in found:
            raise unknown("capture", name, found)
    return [found[name] for name in names or sorted(found)]


def broken() -> list[BrokenFile]:
    """The files of captures that cannot be read, or do not go with the others."""
    return [e for e in partial_catalog()[1] if e.folder == "captures" and e.path.suffix == ".sql"]
