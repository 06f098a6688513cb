"""Finds what a project declares: in the modules under jobs/<system>/ and the files of sql/captures/."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from penstock.catalog.check import Found, build
from penstock.catalog.model import Catalog
from penstock.declare.archive import Archive
from penstock.declare.backfill import Backfill
from penstock.declare.stream import Stream
from penstock.declare.view import View
from penstock.errors import DeclarationError
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.declare.capture import Capture


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
    """The files that may declare something, in order."""
    return [path for path in sorted((project / "jobs").glob("*/*.py")) if not path.name.startswith("_")]


def found_in(path: Path, project: Path) -> Iterator[Found]:
    """What a module declares, also what it only imports."""
    return _declared(_imported(path, project), path)


def _imported(path: Path, project: Path) -> ModuleType:
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))
    try:
        with _staying():
            return importlib.import_module(".".join(path.relative_to(project).with_suffix("").parts))
    except DeclarationError as e:
        within = [f for f in traceback.extract_tb(e.__traceback__) if f.filename.startswith(str(project / "jobs"))]
        place = f"{within[-1].filename}:{within[-1].lineno}" if within else str(path)
        raise DeclarationError(f"{place}: {e.what}", got=e.got, fix=e.fix) from e
    except (Exception, SystemExit) as e:
        raise DeclarationError(f"{path} cannot be imported", got=f"{type(e).__name__}: {e}") from e


@contextmanager
def _staying() -> Iterator[None]:
    """Let no file end the process that reads it for others too; a fork of it, or another thread, ends as it likes."""
    leave, mine = os._exit, (os.getpid(), threading.get_ident())

    def stay(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) == mine:
            raise SystemExit(status)
        leave(status)

    os._exit = stay
    try:
        yield
    finally:
        os._exit = leave


def _declared(module: ModuleType, path: Path) -> Iterator[Found]:
    streams = getattr(module, "STREAMS", [])
    for stream in [*streams, module.STREAM] if hasattr(module, "STREAM") else streams:
        if not isinstance(stream, Stream):
            fix = "STREAM is one Stream, STREAMS a list of them; give other things names of their own"
            raise DeclarationError(f"{path}: this is no stream", got=repr(stream), fix=fix)
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
    return build(discover(place), _captures(place / "sql" / "captures"))


def _captures(folder: Path) -> list[Capture]:
    if not folder.exists():
        return []
    # A SQL parser is more than most projects need to load.
    from penstock.declare import capture

    return list(capture.load(folder).values())
