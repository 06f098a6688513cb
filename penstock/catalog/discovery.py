"""Finds the declarations of a project: in the modules under jobs/<system>/, and in the folders of sql/."""

from __future__ import annotations

import ast
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import cache
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.catalog.catalog import Catalog
from penstock.catalog.misplaced import misplaced
from penstock.catalog.validation import Declaration, build, incomplete_shares
from penstock.errors import DeclarationError, line_within
from penstock.model.archive import Archive
from penstock.model.backfill import Backfill
from penstock.model.declaration import list_files
from penstock.model.panel import Panel
from penstock.model.stream import Stream
from penstock.model.topic import Topic
from penstock.model.view import View
from penstock.settings import settings

if TYPE_CHECKING:
    from importlib.abc import PathEntryFinder

    from penstock.model.capture import Capture
    from penstock.model.sink import Sink
    from penstock.model.sql_stream import SqlStream

STREAMS_HINT = "STREAM is one Stream, STREAMS a list of them; give other things names of their own"
UNDECLARED_HINT = (
    "name one stream STREAM, or put several into the list STREAMS; put other declarations into a list or a variable of "
    "their own; let the name begin with _ if it must not run"
)


def discover(project: Path) -> Iterator[Declaration]:
    """Declarations of the modules under jobs/<system>/, each once though other modules import it.

    A module declares its STREAM or STREAMS, and each view, panel, archive and backfill that is a variable or in a
    list. One in another place is a mistake, unless it is another module's or the variable's name begins with `_`.
    """
    declared: list[Declaration] = []
    for path in modules(project):
        for declaration in declarations_of(path, project):
            if not any(declaration is other for other in declared):
                declared.append(declaration)
                yield declaration


def check_project(project: Path) -> None:
    """DeclarationError if a folder is no project."""
    if not any((project / folder).is_dir() for folder in ("jobs", "sql")):
        raise DeclarationError(
            "there is no project: neither jobs/ nor sql/ is a folder that can be read there",
            got=project,
            hint="see that its disk is there, and let PENSTOCK_PROJECT name the folder that holds them",
        )


def modules(project: Path) -> list[Path]:
    """The files that may declare something, sorted.

    Raises:
        DeclarationError: there is no project. An empty list would be taken for the wish to run nothing, and everything
            would be ended and forgotten.
    """
    check_project(project)
    return [path for path in python_files(project) if not path.name.startswith("_")]


def python_files(project: Path) -> list[Path]:
    """The Python files in the folders of jobs/."""
    return [path for system in list_files(project / "jobs") for path in list_files(system, ".py")]


def declarations_of(path: Path, project: Path) -> list[Declaration]:
    """Declarations of a module, also those that it only imports.

    Raises:
        DeclarationError: it cannot be imported, or declares what is none.
    """
    _import_first_from(project)
    # What it prints must not mix with the data that a command prints.
    with _daemon_threads(), redirect_stdout(sys.stderr):
        try:
            return list(_declarations(importlib.import_module(_module_name(path, project)), path))
        except DeclarationError as e:
            location = line_within(project / "jobs", e) or str(path)
            raise DeclarationError(
                e.what if str(path) in e.what else f"{location}: {e.what}", got=e.got, hint=e.hint
            ) from e
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            # Airflow ends a task, or the reading of a DAG file, by such an exception.
            if type(e).__module__.partition(".")[0] == "airflow" and not isinstance(e, Exception):
                raise
            raise DeclarationError(f"{path} cannot be imported", got=f"{type(e).__name__}: {_text(str, e)}") from e


def topics_of(path: Path, project: Path) -> list[Topic]:
    """The topics in variables of a module that `declarations_of` has imported; what is in SQL knows them by name."""
    module = sys.modules[_module_name(path, project)]
    values = [value for name, value in vars(module).items() if not name.startswith("_")]
    held = [one for value in values for one in (value if isinstance(value, list | tuple) else (value,))]
    return [one for one in held if isinstance(one, Topic)]


def _module_name(path: Path, project: Path) -> str:
    return ".".join(path.relative_to(project).with_suffix("").parts)


class _SourceLoader(SourceFileLoader):
    """Loads a module from its source, and neither reads nor writes a `.pyc` of it.

    Python takes a `.pyc` for current when the source has the same size and the same second of modification, so an edit
    right behind another would not be seen.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"{path!r} is not cached")


def _import_first_from(project: Path) -> None:
    """Put a project first, because the working directory or Penstock's own may contain another `jobs` package."""
    if sys.path[:1] == [str(project)]:
        return
    jobs = project / "jobs"
    finder = FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), (_SourceLoader, SOURCE_SUFFIXES))

    def find_in_jobs(entry: str) -> PathEntryFinder:
        if not Path(entry).is_relative_to(jobs):
            raise ImportError(f"{entry} is not in {jobs}")
        return finder(entry)

    sys.path_hooks.insert(0, find_in_jobs)
    sys.path.insert(0, str(project))


def _text(convert: Callable[[object], str], value: object) -> str:
    """The text of a module's own object, whose methods may fail."""
    try:
        return convert(value)
    except (Exception, SystemExit) as e:
        return f"(no text: {type(e).__name__})"


@contextmanager
def _daemon_threads() -> Iterator[None]:
    """Make daemons of the threads that a module starts: a process does not end before all others have."""
    start, importing = threading.Thread.start, threading.get_ident()

    def start_daemon(thread: threading.Thread) -> None:
        if threading.get_ident() == importing and not thread.ident:
            thread.daemon = True
        start(thread)

    threading.Thread.start = start_daemon  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


def _declarations(module: ModuleType, path: Path) -> Iterator[Declaration]:
    streams = getattr(module, "STREAMS", [])
    # An iterator would be empty when the module is read again, without an error.
    if isinstance(streams, str | Iterator) or not isinstance(streams, Iterable):
        raise DeclarationError(f"{path}: STREAMS is no list of streams", got=_text(repr, streams), hint=STREAMS_HINT)
    declared: list[Declaration] = []
    for stream in [*streams, module.STREAM] if hasattr(module, "STREAM") else streams:
        if not isinstance(stream, Stream):
            raise DeclarationError(f"{path}: this is no stream", got=_text(repr, stream), hint=STREAMS_HINT)
        declared.append(stream)
    variables = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    for value in variables.values():
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, View | Panel | Archive | Backfill):
                declared.append(one)
    for name, value in variables.items():
        for one in _held(value):
            if not _is_among(one, declared) and not _is_of_others(name, one, module, path):
                raise DeclarationError(
                    f"{path}: the {one.kind} in the variable {name} is not declared, and would not run",
                    got=f"{name}, with {one.kind} {one.name}",
                    hint=UNDECLARED_HINT,
                )
    yield from declared


def _held(value: object) -> list[Declaration]:
    """What a variable holds: itself, or in a collection."""
    if isinstance(value, dict):
        value = tuple(value.values())
    values = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    return [one for one in values if isinstance(one, Stream | View | Panel | Archive | Backfill)]


def _is_among(one: Declaration, others: Iterable[object]) -> bool:
    return any(one is other for other in others)


def _is_of_others(name: str, one: Declaration, module: ModuleType, path: Path) -> bool:
    """Whether a module has it from another one, whose concern it is whether it is declared."""
    for key, other in sys.modules.items():
        if key.startswith("jobs.") and other is not module:
            streams = vars(other).get("STREAMS")
            if _is_among(one, [vars(other).get("STREAM"), *(streams if isinstance(streams, list | tuple) else ())]):
                return True
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {alias.asname or alias.name for alias in node.names}
    return name in imported or ("*" in imported and not one.location.startswith(f"{path}:"))


@cache
def load(project: Path | None = None) -> Catalog:
    """The catalog of a project; by default of the settings' one.

    Raises:
        DeclarationError: of the first mistake.
    """
    folder = project or settings().project
    sql = folder / "sql"
    # Behind the declarations, as these import the modules.
    topics = ((str(path), topic) for path in modules(folder) for topic in topics_of(path, folder))
    catalog = build(
        discover(folder), _captures(sql / "captures"), _sinks(sql / "sinks"), _sql_streams(sql / "streams"), topics
    )
    for _, e in (*incomplete_shares(catalog), *misplaced(folder, catalog, modules(folder))):
        raise e
    return catalog


def _captures(folder: Path) -> list[Capture]:
    if not (folder.exists() or folder.is_symlink()):
        return []
    # Most projects need no SQL parser.
    from penstock.model import capture

    return list(capture.load(folder).values())


def _sinks(folder: Path) -> list[Sink]:
    if not (folder.exists() or folder.is_symlink()):
        return []
    from penstock.model.sql import sink_file

    return list(sink_file.load(folder).values())


def _sql_streams(folder: Path) -> list[SqlStream]:
    if not (folder.exists() or folder.is_symlink()):
        return []
    from penstock.model.sql import stream_file

    return stream_file.load(folder)
