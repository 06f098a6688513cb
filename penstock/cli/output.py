"""Output of commands: tables, JSON, and errors as one line."""

from __future__ import annotations

import codecs
import difflib
import errno
import getpass
import io
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from penstock.errors import PenstockError
from penstock.logs import printable, printable_json

if TYPE_CHECKING:
    from penstock.control import Actor

COLOURS = {
    "running": "green", "idle": "green", "starting": "blue", "loading": "blue", "replacing": "blue", "draining": "blue",
    "unknown": "yellow", "waiting": "yellow", "queued": "yellow", "failing": "red", "blocked": "red", "hung": "red",
    "down": "red", "stopped": "bright_black", "building": "blue", "following": "green", "cutting": "blue",
    "cut": "green", "confirmed": "green", "cancelled": "bright_black", "failed": "red",
}  # fmt: skip


ESCAPE = "penstock-escape"

REMIND_EVERY = 15.0
"""Seconds between two lines about a check that still runs."""


class Safe(Console):
    """A console that interprets neither markup nor control codes in what it prints."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable_text(text), style, control)


def escape_unencodable() -> None:
    """Let the standard streams write characters that their encoding does not have as `\\u00fc`, instead of failing."""
    codecs.register_error(ESCAPE, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPE)


def _escaped(e: UnicodeError) -> tuple[str, int]:
    if not isinstance(e, UnicodeEncodeError):
        raise e
    # JSON stays valid.
    return json.dumps(e.object[e.start : e.end])[1:-1], e.end


def console() -> Console:
    """Standard output; wide where it is no terminal, so that a pipe gets whole cells."""
    return Safe(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False, emoji=False)


def printable_text(text: str) -> str:
    """Returns a text with its line breaks and without control codes of a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def echo(text: str, *, err: bool = False) -> None:
    """Print a text without control codes, which data from outside may have."""
    typer.echo(printable_text(text), err=err)


def emit(data: Any) -> None:
    """Data as indented JSON on standard output."""
    text = orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    sys.stdout.write("\n".join(map(printable_json, text.split("\n"))) + "\n")


def table(columns: Iterable[str], right: Iterable[str] = ()) -> Table:
    numbers = set(right)
    rows = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        rows.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return rows


def print_check(name: str, result: str, style: str = "green") -> None:
    """Print the result of a check in the colour `style`; red is a failure."""
    console().print(Text(f"{'✗' if style == 'red' else '✓'} {name}: {result}", style=style))


def state(name: str) -> Text:
    return Text(name, style=COLOURS[name])


FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn an error of Penstock into one line on standard error and exit code 1."""
    try:
        yield
    except PenstockError as e:
        echo(f"error: {e}", err=True)
        raise typer.Exit(1) from e
    except OSError as e:
        if e.errno not in FULL:
            raise
        # The rest of the buffer does not fit either, and Python would write it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        echo(f"error: the disk is full; got: {e}; hint: free space, and run the command again", err=True)
        raise typer.Exit(1) from e


def unknown(kind: str, name: str, declared: Iterable[str]) -> typer.Exit:
    """Print the error for a name that is not declared, with similar names. The caller raises the result."""
    names = sorted(declared)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"take one of: {', '.join(names) or 'none'}"
    echo(f"error: there is no {kind} named {name!r}; {hint}", err=True)
    return typer.Exit(2)


@contextmanager
def checking_code(app: str) -> Iterator[None]:
    """Say that the code of an app is being checked, and how long that lasts already."""
    began, is_over = time.monotonic(), threading.Event()

    def remind() -> None:
        while not is_over.wait(REMIND_EVERY):
            load = f"{os.getloadavg()[0]:.0f} processes want the {os.cpu_count()} CPUs"
            typer.echo(f"still checking after {time.monotonic() - began:.0f} s; {load}", err=True)

    typer.echo(f"checking the code of {app} first; this takes some seconds, on a busy machine minutes", err=True)
    reminder = threading.Thread(target=remind, name="reminder", daemon=True)
    reminder.start()
    try:
        yield
    finally:
        is_over.set()
        reminder.join()


def actor() -> Actor:
    """The user of the operating system, as the actor of a command."""
    from penstock.control import Actor

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = f"uid {os.getuid()}"
    return Actor(name, "cli")


def count(value: float | None) -> str:
    """A number of constant width: 840, 12.9k, 1.20M."""
    if value is None:
        return "-"
    size = float(value)
    for unit in ("", "k", "M", "G"):
        if abs(size) < 999.5:
            digits = 0 if not unit else 2 if abs(size) < 9.995 else 1 if abs(size) < 99.95 else 0
            return f"{size:.{digits}f}{unit}"
        size /= 1000
    return f"{size:.1f}T"
