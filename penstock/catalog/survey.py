"""A project as far as it can be read: a mistake in one file leaves out that file and no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.catalog.check import Found, build
from penstock.catalog.find import found_in, modules
from penstock.catalog.model import Catalog
from penstock.errors import DeclarationError
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.declare.capture import Capture


@dataclass
class Part:
    """What one file declares."""

    found: list[Found] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)


def survey(project: Path | None = None, *, combiners: bool = True) -> tuple[Catalog, list[DeclarationError]]:
    """The catalog of all files that are right by themselves and together, and what is wrong with the others.

    combiners: whether those are tried as well, by DuckDB. It is for who looks: who ends or forgets what is not declared
    needs `load`, for a mistake is no wish.
    """
    place = project or settings().project
    wrong: list[DeclarationError] = []
    waiting: list[Part] = []
    for path in [*modules(place), *sorted((place / "sql" / "captures").glob("*.sql"))]:
        try:
            waiting.append(_part(path, place))
        except DeclarationError as e:
            wrong.append(e)
    made, taken = build([]), Part()
    while waiting:
        left, mistakes = [], []
        for part in waiting:
            both = Part(_once([*taken.found, *part.found]), [*taken.captures, *part.captures])
            try:
                made, taken = build(both.found, both.captures), both
            except DeclarationError as e:
                left.append(part)
                mistakes.append(e)
        if len(left) == len(waiting):
            wrong += mistakes
            break
        # One may need what a later file declares.
        waiting = left
    return made, [*wrong, *(_failing(made) if combiners else ())]


def _part(path: Path, project: Path) -> Part:
    if path.suffix != ".sql":
        return Part(list(found_in(path, project)))
    # A SQL parser is more than most projects need to load.
    from penstock.declare import capture

    return Part(captures=[capture.read(path)])


def _once(found: list[Found]) -> list[Found]:
    return list({id(one): one for one in found}.values())


def _failing(catalog: Catalog) -> Iterator[DeclarationError]:
    """What is wrong with the combiners of a catalog."""
    for stream in catalog.streams.values():
        for given in stream.sources.values():
            if given.combine:
                # DuckDB and Arrow are more than most projects need to load.
                from penstock.records.trial import tried

                try:
                    tried(given)
                except DeclarationError as e:
                    yield DeclarationError(f"{stream.where}: stream {stream.name}: {e.what}", got=e.got, fix=e.fix)
