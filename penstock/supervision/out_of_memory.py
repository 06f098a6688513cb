"""Why a driver ended, where its JVM could not say so: it ends at once when memory is full, that of its heap or that
beside it which Arrow takes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from penstock.control import Control, DriverRow

# Lines of the JVM's and of Spark's own: what a record says stands in lines that are indented.
MESSAGES = re.compile(
    rb"^(?:Terminating due to java\.lang\.OutOfMemoryError"
    rb"|\S+ ERROR spark SparkUncaughtExceptionHandler: [^\n]+\n +[\w.$]*OutOf\w*Memory\w*): ([ -~]{1,200})",
    re.MULTILINE,
)
TAIL = 256 * 1024


def out_of_memory(log: str) -> str:
    """What to tell of a driver whose log says that its JVM's memory was full; empty if it does not."""
    try:
        with Path(log).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            match = MESSAGES.search(file.read())
    except OSError:
        return ""
    return f"its JVM ran out of memory: {match[1].decode()}" if match else ""


def find_ended_before(control: Control, app: str, incarnation: str) -> DriverRow | None:
    """The driver of an app before this one, if its memory was full."""
    last = next((d for d in control.drivers(app, live=False) if d.incarnation != incarnation), None)
    return last if last and last.end_code == "memory" else None
