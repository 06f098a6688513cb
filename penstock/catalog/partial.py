"""A project as far as it can be read: a mistake in one file leaves out that file and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.catalog.catalog import Catalog, Supervised
from penstock.catalog.discovery import declarations_of, modules, python_files, topics_of
from penstock.catalog.misplaced import misplaced
from penstock.catalog.validation import Declaration, build, incomplete_shares
from penstock.errors import DeclarationError
from penstock.model.declaration import list_files
from penstock.model.topic import Topic
from penstock.model.view import VIEWS_APP, views_instance
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.model.capture import Capture
    from penstock.model.sink import Sink
    from penstock.model.sql_stream import SqlStream


COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
APP_CLAUSE = re.compile(
    r"\bAPP\s+[`\"]?(?!(?:AS|FROM|WHERE|GROUP|ORDER|HAVING|IS|IN|OR|AND|THEN|END)\b)([\w.-]+)", re.IGNORECASE
)


class BrokenFile(DeclarationError):
    """A file that cannot be read, or contradicts others, and is left out.

    Args:
        path: The file.
        e: What is wrong.
        app: The app that it should belong to: the folder below jobs/, what the clause APP of a statement says, or
            `captures`, `sinks` or `streams`; empty if its place names none. By default that of a file that is read.
    """

    def __init__(self, path: Path, e: DeclarationError, app: str | None = None) -> None:
        what = e.what if path.name in str(e) else f"{path.parent.name}/{path.name}: {e.what}"
        super().__init__(what, got=e.got, hint=e.hint)
        self.path = path
        self.app = _app_of_text(path) if app is None else app


@dataclass
class FileDeclarations:
    """What one file declares."""

    path: Path
    declarations: list[Declaration] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    sinks: list[Sink] = field(default_factory=list)
    sql_streams: list[SqlStream] = field(default_factory=list)
    topics: list[Topic] = field(default_factory=list)

    @property
    def apps(self) -> set[str | None]:
        return {one.app for one in (*self.declarations, *self.captures, *self.sinks, *self.sql_streams)}


def load_partial(
    project: Path | None = None, *, first: str = "", combiners: bool = True, drafts: Sequence[Path] = ()
) -> tuple[Catalog, list[BrokenFile]]:
    """The catalog of all files that are valid alone and together, and the mistakes of the others.

    Whoever ends or forgets what is not declared may do so only if there is no mistake.

    Args:
        project: the folder; by default the settings' one.
        first: an app whose files win where they contradict those of others.
        combiners: whether DuckDB checks combiners as well.
        drafts: further files of streams in SQL, outside the project; their streams replace those of the same names.
    """
    root = project or settings().project
    broken: list[BrokenFile] = []
    waiting: list[FileDeclarations] = []
    sql = [path for folder in ("captures", "sinks", "streams") for path in list_files(root / "sql" / folder, ".sql")]
    replaced = {path.stem for path in drafts}
    kept = [path for path in sql if path.parent.name != "streams" or path.stem not in replaced]
    read = modules(root)
    for path in [*read, *kept, *drafts]:
        try:
            waiting.append(_read_file(path, root, is_draft=path in drafts))
        except DeclarationError as e:
            broken.append(BrokenFile(path, e))
    waiting.sort(key=lambda file: first not in file.apps)
    try:
        # Most projects have no contradictions.
        catalog = _build(waiting)
    except DeclarationError:
        catalog, contradictions = _build_one_by_one(waiting)
        broken += contradictions
    broken += [BrokenFile(sink.path, e) for sink, e in incomplete_shares(catalog)]
    broken += [BrokenFile(path, e, _app_folder(path, root)) for path, e in misplaced(root, catalog, read)]
    return catalog, [*broken, *(_failing_combiners(catalog) if combiners else ())]


def _build(files: Iterable[FileDeclarations]) -> Catalog:
    chosen = list(files)
    return build(
        _unique(one for file in chosen for one in file.declarations),
        [one for file in chosen for one in file.captures],
        [one for file in chosen for one in file.sinks],
        [one for file in chosen for one in file.sql_streams],
        [(str(file.path), topic) for file in chosen for topic in file.topics],
    )


def _build_one_by_one(waiting: list[FileDeclarations]) -> tuple[Catalog, list[BrokenFile]]:
    """The catalog of the files that do not contradict those before them, and the mistakes of the others."""
    catalog, accepted = build([]), list[FileDeclarations]()
    while waiting:
        rejected, mistakes = [], []
        for file in waiting:
            try:
                catalog = _build([*accepted, file])
                accepted.append(file)
            except DeclarationError as e:
                rejected.append(file)
                mistakes.append(BrokenFile(file.path, e))
        if len(rejected) == len(waiting):
            return catalog, mistakes
        # A file may need what a later one declares.
        waiting = rejected
    return catalog, []


@cache
def partial_catalog() -> tuple[Catalog, list[BrokenFile]]:
    """The partial catalog of the settings' project, loaded once in a process; combiners are not checked."""
    return load_partial(combiners=False)


def mistakes_of_app(app: str, catalog: Catalog, broken: Iterable[BrokenFile]) -> list[BrokenFile]:
    """Mistakes in the folders of an app's modules, and in its statements, which share their folders with others."""
    own = {app} | {
        Path(file).parent.name
        for file, apps in declaring_files(catalog).items()
        if file.endswith(".py") and declaring_app(app) in apps
    }
    return [e for e in broken if e.app in own]


def folders_of_app(app: str, catalog: Catalog) -> set[str]:
    """Names of the folders that an app's files are in; one of its own name may have files that cannot be read."""
    return {app} | {
        Path(file).parent.name for file, apps in declaring_files(catalog).items() if declaring_app(app) in apps
    }


def declaring_app(app: str) -> str:
    """The app that declarations name for an app: instances of the views share theirs."""
    return app if views_instance(app) is None else VIEWS_APP


def declaring_files(catalog: Catalog) -> dict[str, set[str | None]]:
    """The files that declare something, and for which apps."""
    files: dict[str, set[str | None]] = {}
    for one in catalog.declared.values():
        files.setdefault(_file(one.location), set()).add(one.app)
    return files


def apps(catalog: Catalog, broken: Iterable[BrokenFile]) -> dict[str, list[Supervised]]:
    """What can be read of each app; an empty list for one whose files are all broken."""
    return dict(sorted(({e.app: [] for e in broken if e.app} | catalog.apps).items()))


def _app_of_text(path: Path) -> str:
    """The app of a file that cannot be read: what its clause APP says, or else its folder."""
    text = ""
    if path.suffix == ".sql":
        with suppress(OSError):
            text = COMMENT.sub("", path.read_text("utf-8", errors="replace"))
    said = APP_CLAUSE.search(text)
    return said[1] if said else path.parent.name


def _app_folder(path: Path, root: Path) -> str:
    """The folder below jobs/ that a file is in at any depth; empty if there is none."""
    parts = path.relative_to(root).parts
    return parts[1] if parts[0] == "jobs" and len(parts) > 2 else ""


def _file(location: str) -> str:
    """The file of `file:line:column`, `file:line` or `file`."""
    file, _, number = location.rpartition(":")
    return _file(file) if number.isdigit() else location


def _read_file(path: Path, project: Path, *, is_draft: bool = False) -> FileDeclarations:
    if path.suffix != ".sql":
        return FileDeclarations(path, list(declarations_of(path, project)), topics=topics_of(path, project))
    # Most projects need no SQL parser.
    from penstock.model import capture
    from penstock.model.sql import sink_file, stream_file

    if is_draft or path.parent.name == "streams":
        return FileDeclarations(path, sql_streams=[stream_file.read(path)])
    if path.parent.name == "sinks":
        return FileDeclarations(path, sinks=[sink_file.read(path)])
    return FileDeclarations(path, captures=[capture.read(path)])


def capture_connections(project: Path) -> set[str]:
    """The connections that the captures of a project name; files that cannot be read are left out."""
    names: set[str] = set()
    for path in list_files(project / "sql" / "captures", ".sql"):
        with suppress(DeclarationError):
            names |= {one.connection for one in _read_file(path, project).captures}
    return names


def mask_connections(project: Path) -> set[str]:
    """The keys that masks of a project name: in its statements, and as texts in its modules, which are not imported."""
    from penstock.model.sql import sink_file, stream_file

    names: set[str] = set()
    for folder, read in (("sinks", sink_file.read), ("streams", stream_file.read)):
        for path in list_files(project / "sql" / folder, ".sql"):
            with suppress(DeclarationError, OSError):
                if re.search(r"\bMASK\b", path.read_text("utf-8", errors="replace"), re.IGNORECASE):
                    names |= {mask.key for mask in read(path).mask}
    for path in python_files(project):
        with suppress(SyntaxError, ValueError, OSError):
            source = path.read_bytes()
            if b"Mask" in source:
                names |= set(_keys_of_masks(ast.parse(source)))
    return names - {""}


def _keys_of_masks(module: ast.Module) -> Iterator[str]:
    """The keys of calls of `Mask` that are written as texts."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and (node.func.id if isinstance(node.func, ast.Name) else "") == "Mask":
            values = [*node.args[2:3], *(keyword.value for keyword in node.keywords if keyword.arg == "key")]
            yield from (one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _unique(declarations: Iterable[Declaration]) -> list[Declaration]:
    return list({id(one): one for one in declarations}.values())


def _failing_combiners(catalog: Catalog) -> Iterator[BrokenFile]:
    for stream in catalog.streams.values():
        for source in stream.sources.values():
            if source.combine:
                # DuckDB and Arrow are more than most projects need to load.
                from penstock.codec.combiner_check import check_combiner

                try:
                    check_combiner(source)
                except DeclarationError as e:
                    what = f"{stream.location}: stream {stream.name}: {e.what}"
                    yield BrokenFile(Path(_file(stream.location)), DeclarationError(what, got=e.got, hint=e.hint))
