"""Finds declarations in files that are not read, as they lie in the wrong folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.catalog.catalog import Catalog
from penstock.errors import DeclarationError

SQL_FOLDERS = {"STREAM": "streams", "CAPTURE": "captures", "UPSERT": "sinks"}
# The first words of a file, behind blanks and comments.
STATEMENT = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(STREAM|CAPTURE|UPSERT)\s+INTO\b", re.IGNORECASE | re.DOTALL)
DECLARING = {"Stream", "View", "Panel", "Archive", "Backfill"}


def misplaced(project: Path, catalog: Catalog, modules: Iterable[Path]) -> Iterator[tuple[Path, DeclarationError]]:
    """Files that declare something and are not read. No module is imported.

    Args:
        project: The folder of the project.
        modules: The files of jobs/ that are read.
        catalog: What is declared: a module's declaration may have been taken over by another one.
    """
    jobs, sql = project / "jobs", project / "sql"
    read = set(modules)
    declared = [one.location for one in catalog.declared.values()]
    for path in _files(jobs, ".py"):
        is_private = path.name.startswith("_") and path.name != "__init__.py"
        if path in read or is_private or any(location.startswith(f"{path}:") for location in declared):
            continue
        if (name := _declaring_variable(path)) is not None:
            what = f"{path}: a stream or another declaration here is not declared, and would not run"
            hint = "move the file into the folder of an app, as jobs/shop/orders.py, and name it without `_`"
            yield path, DeclarationError(what, got=name, hint=hint)
    for path in _files(sql, ".sql"):
        if path.parent.parent == sql and path.parent.name in SQL_FOLDERS.values():
            continue
        if match := STATEMENT.match(path.read_text("utf-8", errors="replace")):
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


def _declaring_variable(path: Path) -> str | None:
    """A variable of a module that holds a declaration, as far as its text shows; None if there is none."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None
    for node in tree.body:
        assigned = getattr(node, "targets", None) or [getattr(node, "target", None)]
        for name in (target.id for target in assigned if isinstance(target, ast.Name)):
            if name in ("STREAM", "STREAMS") or (not name.startswith("_") and _makes_declaration(node)):
                return name
    return None


def _makes_declaration(assignment: ast.stmt) -> bool:
    value = getattr(assignment, "value", None)
    values = value.elts if isinstance(value, ast.List | ast.Tuple | ast.Set) else [value]
    return any(isinstance(one, ast.Call) and _called(one) in DECLARING for one in values)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
