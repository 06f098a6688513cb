"""What a project declares, for its cases: a file that cannot be read fails only those that need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from penstock.catalog import BrokenFile, Catalog, load_partial
from penstock.errors import DeclarationError

T = TypeVar("T")


@cache
def read_project(project: Path) -> tuple[Catalog, list[BrokenFile]]:
    """The catalog of a project without its broken files, read once; and those."""
    return load_partial(project)


def pick(
    names: Sequence[str], declared: Mapping[str, T], what: str, broken: Sequence[BrokenFile], label: str
) -> list[T]:
    """The declarations that a case names.

    Args:
        names: Their names.
        declared: All of their kind.
        what: The kind, such as `stream`.
        broken: The files that cannot be read.
        label: What a message calls the case.

    Raises:
        DeclarationError: One of them is not declared, or its file is broken.
    """
    if unknown := [name for name in names if name not in declared]:
        others = ", ".join(sorted(declared)) or "none is declared"
        # A file in SQL has the name of what it declares.
        wrong = [file for file in broken if file.path.stem in unknown] or broken
        raise DeclarationError(
            f"{label}: the project has no such {what}",
            got=", ".join(unknown),
            hint=f"first correct {'; '.join(map(str, wrong))}" if wrong else others,
        )
    return [declared[name] for name in names]
