"""Finds what a project declares: in the modules under jobs/<system>/ and the files of sql/captures/ and sql/sinks/."""

from __future__ import annotations

import builtins
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from penstock.catalog.catalog import Catalog
from penstock.catalog.validation import Found, build, lacking
from penstock.errors import DeclarationError
from penstock.model.archive import Archive
from penstock.model.backfill import Backfill
from penstock.model.declaration import list_files
from penstock.model.stream import Stream
from penstock.model.view import View
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.model.capture import Capture
    from penstock.model.sink import Sink

# Seconds in which a module must be read; a loaded machine takes some for the first that imports Spark.
LONGEST = 30.0
STREAMS = "STREAM is one Stream, STREAMS a list of them; give other things names of their own"


def discover(project: Path) -> Iterator[Found]:
    """What the modules under jobs/<system>/ declare: STREAM or STREAMS, and every view, archive and backfill that
    stands in a module by a name of its own or in a list. What a second module imports is not declared again."""
    seen: list[Found] = []
    for path in modules(project):
        for found in found_in(path, project):
            if not any(found is other for other in seen):
                seen.append(found)
                yield found


def modules(project: Path) -> list[Path]:
    """The files that may declare something, in order. DeclarationError if there is no project: nothing would be taken
    for the wish to run nothing, and all would be ended and forgotten."""
    if not any((project / folder).is_dir() for folder in ("jobs", "sql")):
        raise DeclarationError(
            "there is no project: neither jobs/ nor sql/ is a folder that can be read there",
            got=project,
            hint="see that its disk is there, and let PENSTOCK_PROJECT name the folder that holds them",
        )
    files = (path for system in list_files(project / "jobs") for path in list_files(system, ".py"))
    return [path for path in files if not path.name.startswith("_")]


def found_in(path: Path, project: Path) -> list[Found]:
    """What a module declares, also what it only imports. DeclarationError, whatever it does when it is read."""
    # First: where Python was started, or Penstock itself lies, may be a `jobs` with modules of the same names.
    if sys.path[:1] != [str(project)]:
        sys.path.insert(0, str(project))
    # What it prints has no place among the data that a command tells.
    with _staying(), _in_time(), redirect_stdout(sys.stderr):
        # What it raises is its own too: it may do anything when it is asked for its text.
        try:
            return list(_declared(_module(".".join(path.relative_to(project).with_suffix("").parts)), path))
        except DeclarationError as e:
            within = [f for f in traceback.extract_tb(e.__traceback__) if f.filename.startswith(str(project / "jobs"))]
            place = f"{within[-1].filename}:{within[-1].lineno}" if within else str(path)
            raise DeclarationError(
                e.what if str(path) in e.what else f"{place}: {e.what}", got=e.got, hint=e.hint
            ) from e
        except BaseException as e:
            if isinstance(e, _Pressed):
                raise KeyboardInterrupt from None
            if type(e).__module__.partition(".")[0] == "airflow" and not isinstance(e, Exception):
                # It lets a task end by them.
                raise
            raise DeclarationError(f"{path} cannot be imported", got=f"{type(e).__name__}: {_text(str, e)}") from e


def _module(name: str) -> ModuleType:
    """A module; what it does to Python's own functions is undone, for they are everybody's. DeclarationError if it did.

    While they are broken nothing may be called by name here.
    """
    own, before, load = vars(builtins), dict(vars(builtins)), importlib.import_module
    changed: list[str] = []
    try:
        return load(name)
    finally:
        changed = [one for one, value in before.items() if one not in own or own[one] is not value]
        own.update(before)
        if changed:
            sys.modules.pop(name, None)
            raise DeclarationError(
                f"{name} changes Python's own {', '.join(changed[:5])}", hint="leave the module builtins as it is"
            )


def _text(of: Callable[[object], str], what: object) -> str:
    """What a file's own object says of itself, if it can."""
    try:
        return of(what)
    except _Pressed:
        raise
    except BaseException as e:
        return f"(it does not tell: {type(e).__name__})"


class _TooLong(Exception):
    """A file is not read in time."""


@contextmanager
def _in_time() -> Iterator[None]:
    """Let no file keep those that read it, and all other files, waiting. Only the main thread can be called away."""
    waits, ends = signal.getitimer(signal.ITIMER_REAL)[0], time.monotonic()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Airflow gives the reader a time too: it must have some left for the other files.
    limit = min(LONGEST, waits / 2) if waits else LONGEST
    ends += waits

    def late(*_: object) -> NoReturn:
        raise _TooLong(f"it is not read within {limit:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if waits:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, ends - time.monotonic()))


class _Pressed(KeyboardInterrupt):
    """A person wants to leave; what a file raises by itself is no such wish."""


@contextmanager
def _staying() -> Iterator[None]:
    """Let no file end the process that reads it for others too, or keep it from ending by a thread that it starts; a
    fork of it, or another thread, does as it likes."""
    leave, abort, kill, mine = os._exit, os.abort, os.kill, (os.getpid(), threading.get_ident())
    start = threading.Thread.start

    def here() -> bool:
        return (os.getpid(), threading.get_ident()) == mine

    def stay(status: int) -> NoReturn:
        if here():
            raise SystemExit(status)
        leave(status)

    def aborted() -> NoReturn:
        if here():
            raise SystemExit("os.abort()")
        abort()

    def killed(pid: int, number: int) -> None:
        if here() and pid in (0, mine[0]) and number:
            raise SystemExit(f"os.kill() of its own process with signal {int(number)}")
        kill(pid, number)

    def started(thread: threading.Thread) -> None:
        # A process waits for others at its end; what starts twice is told so by `start`.
        if here() and not thread.ident:
            thread.daemon = True
        start(thread)

    def pressed(*_: object) -> NoReturn:
        raise _Pressed

    # Only the main thread is told, and somebody may have a way of his own.
    told = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    os._exit, os.abort, os.kill = stay, aborted, killed
    threading.Thread.start = started  # type: ignore[method-assign, assignment]
    if told:
        signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        os._exit, os.abort, os.kill = leave, abort, kill
        threading.Thread.start = start  # type: ignore[method-assign]
        if told:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _declared(module: ModuleType, path: Path) -> Iterator[Found]:
    streams = getattr(module, "STREAMS", [])
    # Who reads the module again would find an iterator empty, and nothing wrong.
    if isinstance(streams, str | Iterator) or not isinstance(streams, Iterable):
        raise DeclarationError(f"{path}: STREAMS is no list of streams", got=_text(repr, streams), hint=STREAMS)
    for stream in [*streams, module.STREAM] if hasattr(module, "STREAM") else streams:
        if not isinstance(stream, Stream):
            raise DeclarationError(f"{path}: this is no stream", got=_text(repr, stream), hint=STREAMS)
        yield stream
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, View | Archive | Backfill):
                yield one


@cache
def load(project: Path | None = None) -> Catalog:
    """The catalog of a project; by default of the one the settings name."""
    place = project or settings().project
    found = build(discover(place), _captures(place / "sql" / "captures"), _sinks(place / "sql" / "sinks"))
    for _, e in lacking(found):
        raise e
    return found


def _captures(folder: Path) -> list[Capture]:
    if not folder.exists():
        return []
    # A SQL parser is more than most projects need to load.
    from penstock.model import capture

    return list(capture.load(folder).values())


def _sinks(folder: Path) -> list[Sink]:
    if not folder.exists():
        return []
    from penstock.model.sql import sink_file

    return list(sink_file.load(folder).values())
