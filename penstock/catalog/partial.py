"""A project as far as it can be read: a mistake in one file leaves out that file and no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.catalog.catalog import Catalog, Supervised
from penstock.catalog.discovery import found_in, modules
from penstock.catalog.validation import Found, build, lacking
from penstock.errors import DeclarationError
from penstock.model.declaration import list_files
from penstock.model.view import APP as VIEWS
from penstock.model.view import instance_of
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.model.capture import Capture
    from penstock.model.sink import Sink


class BrokenFile(DeclarationError):
    """A file cannot be read, or does not go with the others, and is left out."""

    def __init__(self, path: Path, e: DeclarationError) -> None:
        what = e.what if path.name in str(e) else f"{path.parent.name}/{path.name}: {e.what}"
        super().__init__(what, got=e.got, hint=e.hint)
        self.path = path

    @property
    def folder(self) -> str:
        """jobs/<folder>/, which should have the name of its app; of a capture's file it has, and of most sinks'."""
        return self.path.parent.name


@dataclass
class Part:
    """What one file declares."""

    path: Path
    found: list[Found] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    sinks: list[Sink] = field(default_factory=list)

    @property
    def apps(self) -> set[str | None]:
        return {one.app for one in (*self.found, *self.captures, *self.sinks)}


def survey(project: Path | None = None, *, first: str = "", combiners: bool = True) -> tuple[Catalog, list[BrokenFile]]:
    """The catalog of all files that are right by themselves and together, and what is wrong with the others.

    first: an app whose files stand where they do not go with others'. combiners: whether those are tried as well, by
    DuckDB. Who ends or forgets what is not declared may do so only if nothing is wrong: a mistake is no wish.
    """
    place = project or settings().project
    wrong: list[BrokenFile] = []
    waiting: list[Part] = []
    sql = [path for folder in ("captures", "sinks") for path in list_files(place / "sql" / folder, ".sql")]
    for path in [*modules(place), *sql]:
        try:
            waiting.append(_part(path, place))
        except DeclarationError as e:
            wrong.append(BrokenFile(path, e))
    waiting.sort(key=lambda part: first not in part.apps)
    made, taken = build([]), Part(place)
    while waiting:
        left, mistakes = [], []
        for part in waiting:
            both = Part(
                place,
                _once([*taken.found, *part.found]),
                [*taken.captures, *part.captures],
                [*taken.sinks, *part.sinks],
            )
            try:
                made, taken = build(both.found, both.captures, both.sinks), both
            except DeclarationError as e:
                left.append(part)
                mistakes.append(BrokenFile(part.path, e))
        if len(left) == len(waiting):
            wrong += mistakes
            break
        # One may need what a later file declares.
        waiting = left
    wrong += [BrokenFile(sink.path, e) for sink, e in lacking(made)]
    return made, [*wrong, *(_failing(made) if combiners else ())]


@cache
def readable() -> tuple[Catalog, list[BrokenFile]]:
    """The survey of the settings' project, made once in a process; combiners are not tried."""
    return survey(combiners=False)


def of_app(app: str, found: Catalog, wrong: Iterable[BrokenFile]) -> list[BrokenFile]:
    """What is wrong in the folders of an app's files."""
    family = app if instance_of(app) is None else VIEWS
    folders = {app} | {Path(_file(one.location)).parent.name for one in found.declared.values() if one.app == family}
    return [e for e in wrong if e.folder in folders]


def apps(found: Catalog, wrong: Iterable[BrokenFile]) -> dict[str, list[Supervised]]:
    """What can be read of each app; nothing of one whose files are all broken."""
    return dict(sorted(({e.folder: [] for e in wrong} | found.apps).items()))


def _file(where: str) -> str:
    """The file of a place as a declaration names it: `file:line:column`, `file:line` or `file`."""
    file, _, number = where.rpartition(":")
    return _file(file) if number.isdigit() else where


def _part(path: Path, project: Path) -> Part:
    if path.suffix != ".sql":
        return Part(path, list(found_in(path, project)))
    # A SQL parser is more than most projects need to load.
    from penstock.model import capture
    from penstock.model.sql import sink_file

    if path.parent.name == "sinks":
        return Part(path, sinks=[sink_file.read(path)])
    return Part(path, captures=[capture.read(path)])


def _once(found: list[Found]) -> list[Found]:
    return list({id(one): one for one in found}.values())


def _failing(catalog: Catalog) -> Iterator[BrokenFile]:
    """What is wrong with the combiners of a catalog."""
    for stream in catalog.streams.values():
        for given in stream.sources.values():
            if given.combine:
                # DuckDB and Arrow are more than most projects need to load.
                from penstock.codec.combiner_check import tried

                try:
                    tried(given)
                except DeclarationError as e:
                    told = DeclarationError(
                        f"{stream.location}: stream {stream.name}: {e.what}", got=e.got, hint=e.hint
                    )
                    yield BrokenFile(Path(_file(stream.location)), told)
