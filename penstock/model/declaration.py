"""What all kinds of declarations have in common."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from penstock.errors import DeclarationError

Kind = Literal[
    "topic", "pattern", "table", "store", "source",
    "stream", "sink", "capture", "view", "panel", "archive", "backfill",
]  # fmt: skip
# The app of all captures. Who needs only its name need not import the SQL parser of captures.
CAPTURES_APP = "captures"
REPLACEMENT_PREFIX = "replacement:"
"""What the app of a replacement begins with. No declared name has a colon."""
# Width of the control database's columns.
MAX_NAME_LENGTH = 120
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def list_files(folder: Path, suffix: str = "") -> list[Path]:
    """Entries of a folder whose names end in `suffix`, sorted, without hidden ones, such as the locks of editors; none
    if the folder does not exist.

    Raises:
        DeclarationError: the folder cannot be read, or is a link that leads nowhere. An empty list would be taken for
            the wish to run nothing.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(suffix) and path.name[0] != ".")
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_symlink():
            return []
        hint = "see that the disk to which it leads is there, or remove the link"
        raise DeclarationError(
            f"{folder} is a link that leads to no folder", got=folder.readlink(), hint=hint
        ) from None
    except OSError as e:
        hint = "see that its disk is there, and let the user that Penstock runs as read it"
        raise DeclarationError(f"folder {folder} cannot be read", got=e.strerror, hint=hint) from e


class CatalogNode(NamedTuple):
    """What is read or written: a topic, the topics of a pattern, a table of a database, a store outside Kafka, a named
    source, or another declaration."""

    kind: Kind
    name: str


class Declared(Protocol):
    """A stream, sink, capture, view, panel, archive or backfill. Names are unique over all kinds."""

    @property
    def kind(self) -> Kind: ...

    @property
    def name(self) -> str: ...

    @property
    def app(self) -> str | None:
        """The app whose driver runs it; None if it has none."""

    @property
    def reads(self) -> Sequence[CatalogNode]: ...

    @property
    def writes(self) -> Sequence[CatalogNode]: ...

    @property
    def location(self) -> str:
        """Where it is declared: `file:line:column`, `file:line` or `file`."""


def check_name(what: str, name: str, argument: str = "") -> None:
    """Raises DeclarationError if topics, folders and ids cannot be named so."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise DeclarationError(
            f"the name of {what} {name!r} is not usable",
            hint=f"use small letters, digits and single '-', {MAX_NAME_LENGTH} at most",
            argument=argument,
        )


def replacement_app(stream: str) -> str:
    """The app whose driver builds a new version of a stream."""
    return f"{REPLACEMENT_PREFIX}{stream}"


def replaced_stream(app: str) -> str | None:
    """The stream of which an app builds a new version; None for all other apps."""
    return app.removeprefix(REPLACEMENT_PREFIX) if app.startswith(REPLACEMENT_PREFIX) else None


def moved_location(begins: str, text: str, at: int) -> str:
    """Where a character of a text stands in its file.

    Args:
        begins: `file:line:column` of the text.
        text: The text.
        at: Offset of the character.
    """
    file, line, column = begins.rsplit(":", 2)
    before = text[:at]
    down = before.count("\n")
    return f"{file}:{int(line) + down}:{len(before) - before.rfind(chr(10)) if down else int(column) + len(before)}"


def caller_location() -> str:
    """File and line of the code outside this package that is declaring something."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("penstock", "dataclasses"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
