"""What every declared thing says of itself, whatever its kind."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from penstock.errors import DeclarationError

Kind = Literal[
    "topic", "pattern", "table", "store", "source",
    "stream", "sink", "capture", "view", "archive", "backfill",
]  # fmt: skip
# The app that all captures run in. Whoever only needs its name need not import the SQL parser of captures.
CAPTURES = "captures"
# What the control database keeps of one.
LONGEST = 120
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def files_of(folder: Path, ending: str = "") -> list[Path]:
    """What a folder holds whose name ends so, in order; nothing if there is no such folder.

    DeclarationError if it cannot be read: nothing would be taken for the wish to run nothing.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(ending))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        hint = "see that its disk is there, and let the user that Penstock runs as read it"
        raise DeclarationError(f"folder {folder} cannot be read", got=e.strerror, hint=hint) from e


class Place(NamedTuple):
    """What is read or written: a topic, every topic of a pattern, a table of a database, a store outside Kafka, a named
    source, or another declared thing."""

    kind: Kind
    name: str


class Declared(Protocol):
    """A stream, sink, capture, view, archive or backfill. Its name is unique over all kinds."""

    @property
    def kind(self) -> Kind: ...

    @property
    def name(self) -> str: ...

    @property
    def app(self) -> str | None:
        """Whose driver runs it; None if it has none."""

    @property
    def reads(self) -> Sequence[Place]: ...

    @property
    def writes(self) -> Sequence[Place]: ...

    @property
    def where(self) -> str:
        """The file, and the line and column if they are known, as `file:line:column`."""


def check_name(what: str, name: str) -> None:
    """DeclarationError if a name is not one that topics, folders and ids can be called by."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > LONGEST:
        raise DeclarationError(
            f"the name of {what} {name!r} is not usable",
            hint=f"use small letters, digits and single '-', {LONGEST} at most",
        )


def here() -> str:
    """File and line of the code outside this package that is declaring something."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("penstock", "dataclasses"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
