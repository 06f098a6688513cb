"""Finds declarations in files that are not read, as they lie in the wrong folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

from penstock.catalog.catalog import Catalog
from penstock.errors import DeclarationError

SQL_FOLDERS = {"STREAM": "streams", "CAPTURE": "captures", "UPSERT": "sinks"}
# The first words of a file, behind blanks and comments. `*+` tries no other division of the comments, of which there
# are exponentially many.
STATEMENT = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*+(STREAM|CAPTURE|UPSERT)\s+INTO\b", re.IGNORECASE | re.DOTALL)
DECLARING = {"Stream", "View", "Panel", "Archive", "Backfill"}
STREAM_NAMES = {"STREAM", "STREAMS"}
# Files that pytest reads: what they declare is for tests.
TEST_FILES = ("test_*.py", "*_test.py", "conftest.py")


def misplaced(project: Path, catalog: Catalog, modules: Iterable[Path]) -> Iterator[tuple[Path, DeclarationError]]:
    """Files that declare something and are not read. No module is imported.

    Left out are hidden and private files, whose name or folder begins with `_`, and those of pytest.

    Args:
        project: The folder of the project.
        modules: The files of jobs/ that are read.
        catalog: What is declared: a module's declaration may have been taken over by another one.
    """
    jobs, sql = project / "jobs", project / "sql"
    read = set(modules)
    declared = [one.location for one in catalog.declared.values()]
    for path in _files(jobs, ".py"):
        if path in read or _is_private(path.relative_to(jobs)) or _is_of_tests(path):
            continue
        if any(location.startswith(f"{path}:") for location in declared):
            continue
        if (name := _declaring_variable(path)) is not None:
            what = f"{path}: a stream or another declaration here is not declared, and would not run"
            hint = "move it into a file in the folder of an app, as jobs/shop/orders.py; other things get another name"
            yield path, DeclarationError(what, got=name, hint=hint)
    for path in _files(sql, ".sql"):
        if path.parent.parent == sql and path.parent.name in SQL_FOLDERS.values():
            continue
        try:
            text = path.read_text("utf-8", errors="replace")
        except OSError:
            continue
        if match := STATEMENT.match(text):
            word = match[1].upper()
            what = f"{path}: this statement is not declared, and would not run"
            hint = f"move the file to {sql / SQL_FOLDERS[word] / path.name}"
            yield path, DeclarationError(what, got=f"{word} INTO in {path.parent}", hint=hint)


def _files(folder: Path, suffix: str) -> list[Path]:
    """The files below a folder, without hidden ones."""
    return sorted(
        path
        for path in folder.rglob(f"*{suffix}")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _is_private(path: Path) -> bool:
    """Whether a path within jobs/ has a name that begins with `_`; `__init__.py` is read by Python itself."""
    return any(part.startswith("_") and part != "__init__.py" for part in path.parts)


def _is_of_tests(path: Path) -> bool:
    return path.parent.name == "tests" or any(fnmatch(path.name, pattern) for pattern in TEST_FILES)


def _declaring_variable(path: Path) -> str | None:
    """A variable of a module that holds a declaration, as far as its text shows; None if there is none."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in tree.body:
        assigned = getattr(node, "targets", None) or [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        for name in (target.id for target in assigned if isinstance(target, ast.Name)):
            holds = _makes_something(value, imported) if name in STREAM_NAMES else _makes_declaration(value)
            if holds and not name.startswith("_"):
                return name
    return None


def _makes_something(value: ast.expr | None, imported: Collection[str]) -> bool:
    """Whether a value is made here: neither a constant, nor taken over from other modules, whose concern it is."""
    return value is not None and any(
        isinstance(node, ast.Call) or (isinstance(node, ast.Name) and node.id not in imported)
        for node in ast.walk(value)
    )


def _makes_declaration(value: ast.expr | None) -> bool:
    values = value.elts if isinstance(value, ast.List | ast.Tuple | ast.Set) else [value]
    return any(isinstance(one, ast.Call) and _called(one) in DECLARING for one in values)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
