"""Log files: the last lines, and lines as they are written."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.errors import PenstockError

BLOCK = 64 * 1024


def tail(path: Path, lines: int, most_bytes: int | None = None) -> list[str]:
    """The last lines of a file, read from its end; with `most_bytes` no more of it than that."""
    if lines == 0:
        return []
    with path.open("rb") as file:
        at = file.seek(0, 2)
        begin = 0 if most_bytes is None else max(0, at - most_bytes)
        content = b""
        while at > begin and content.count(b"\n") <= lines:
            size = min(BLOCK, at - begin)
            at = file.seek(at - size)
            content = file.read(size) + content
    # Not splitlines: a log record may contain other line separators.
    text = content.decode(errors="replace").removesuffix("\n")
    return list(deque(text.split("\n"), maxlen=lines)) if content else []


def tail_text(path: Path, lines: int = 15) -> str:
    """The last lines of a log, at most 64 KiB; empty if it cannot be read."""
    try:
        return "\n".join(tail(path, lines, BLOCK))
    except OSError:
        return ""


def follow(path: Path, latest: Callable[[], Path], every: float = 0.5) -> Iterator[str]:
    """Text as it is written to a file, and to the file that `latest` returns after it. It never ends."""
    at = path.stat().st_size
    while True:
        with path.open("rb") as file:
            file.seek(at)
            if content := file.read():
                at = file.tell()
                yield content.decode(errors="replace")
                continue
        time.sleep(every)
        try:
            newer = latest()
        except PenstockError:
            # E.g. the control database is down: the file at hand is followed.
            newer = path
        if newer != path:
            yield f"--- {newer} ---\n"
            path, at = newer, 0
