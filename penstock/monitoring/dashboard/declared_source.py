"""The text that declares a stream: the file of its statement, or the lines of a Python file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Bytes of a text that is shown, and of a file that is read.
MAX_SHOWN, MAX_READ = 64 * 1024, 1024 * 1024
LOCATION = re.compile(r"(?P<file>.+?)(?::(?P<line>\d+))?(?::\d+)?")


@dataclass(frozen=True)
class DeclaredSource:
    """The text of a declaration, as it is on the disk.

    Attributes:
        location: File and line, relative to the project.
        text: At most MAX_SHOWN bytes of it.
        first_line: Of the text, in its file, counted from 1.
    """

    location: str
    language: Literal["sql", "python"]
    text: str
    first_line: int


def read_source(project: Path, location: str) -> DeclaredSource | None:
    """The text at the place of a declaration.

    Args:
        project: Folder of the project.
        location: `file`, `file:line` or `file:line:column`, relative to the project.

    Returns:
        Of SQL the whole file. Of Python the statement that declares, and the functions and classes of its file that it
        names, directly or through others, with what lies between them. None if the file is not in the project, or not
        readable.
    """
    match = LOCATION.fullmatch(location)
    path = (project / match["file"]).resolve() if match else project
    if match is None or path.suffix not in (".sql", ".py") or not path.is_relative_to(project.resolve()):
        return None
    try:
        with path.open("rb") as file:
            text = file.read(MAX_READ).decode(errors="replace")
    except OSError:
        return None
    if path.suffix == ".sql":
        return DeclaredSource(location, "sql", _cut(text), 1)
    first, last = _declaring_lines(text, int(match["line"] or 1))
    lines = text.splitlines(keepends=True)[first - 1 : last]
    return DeclaredSource(location, "python", _cut("".join(lines)), first)


def _cut(text: str) -> str:
    return text.encode()[:MAX_SHOWN].decode(errors="ignore")


def _declaring_lines(text: str, line: int) -> tuple[int, int]:
    """The first and the last line of what declares; of all lines if the text is no Python."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return 1, text.count("\n") + 1
    defined = {one.name: one for one in statements if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    needed = [_declaring_part(one, line) for one in statements if _first_line(one) <= line <= _last_line(one)]
    for part in needed:
        named = (defined[name] for name in dict.fromkeys(_names(part)) if name in defined)
        needed += [one for one in named if one not in needed]
    if not needed:
        return line, line
    return min(map(_first_line, needed)), max(map(_last_line, needed))


def _declaring_part(statement: ast.stmt, line: int) -> ast.stmt | ast.expr:
    """A function or class as a whole; of a list of declarations the one that begins in a line."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return statement
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call) and node.lineno == line)
    return next(calls, statement)


def _first_line(part: ast.stmt | ast.expr) -> int:
    decorators: list[ast.expr] = getattr(part, "decorator_list", [])
    return min([part.lineno, *(decorator.lineno for decorator in decorators)])


def _last_line(part: ast.stmt | ast.expr) -> int:
    return part.end_lineno or part.lineno


def _names(part: ast.stmt | ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(part) if isinstance(node, ast.Name))
