"""What the page shows of an app's releases, and of the files that differ between two of them or the disk."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, Literal

import orjson

from penstock.control import Control
from penstock.monitoring.dashboard.declarations import run_on_project
from penstock.settings import settings
from penstock.supervision import code_snapshot, released_code
from penstock.supervision.code_snapshot import CodeFiles, ExecutableFile

DISK = "disk"
"""In place of a release: the code on the disk."""
MAX_FILES, MAX_LINES = 50, 200
"""Files that are shown, and lines of each."""
MAX_COMPARED = 100_000
"""Bytes of a file whose lines are compared."""
MAX_LINE = 500
_lock = Lock()


@dataclass(frozen=True)
class ChangedFile:
    """A file that differs.

    Attributes:
        diff: Lines of a unified diff.
        note: Why lines are left out; empty if none are.
    """

    path: str
    change: Literal["added", "removed", "changed"]
    diff: list[str]
    note: str = ""


def app_releases(control: Control, app: str) -> dict[str, Any]:
    """The releases of an app, newest first; which of them runs, which is next, and which has the code on the disk."""
    running = released_code.running_release(control, app)
    row = control.app(app)
    last = row.release_seq if row else None
    disk = code_snapshot.disk_digest(settings().project)
    return {
        "releases": [
            {
                **asdict(r),
                "running": r.number == running,
                "next": r.number == last != running,
                "on_disk": r.digest == disk,
            }
            for r in control.releases(app)
        ],
        "disk": disk,
    }


def changed_apps(control: Control) -> dict[str, int]:
    """By app, how many of its files differ between its release and the disk; apps without such files are left out.

    Raises:
        DeclarationError: The process that reads the files fails, or takes too long.
    """
    digests = tuple(sorted((app.name, app.digest) for app in control.apps() if app.digest))
    # Requests that arrive during the process wait for its result.
    with _lock:
        return _changed(code_snapshot.disk_digest(settings().project), digests)


@lru_cache(maxsize=1)
def _changed(disk: str, digests: tuple[tuple[str, str], ...]) -> dict[str, int]:
    if all(digest == disk for _, digest in digests):
        return {}
    counts: dict[str, int] = orjson.loads(run_on_project("penstock.supervision.changed_code").splitlines()[-1])
    return counts


def changes(control: Control, app: str, before: str, after: str) -> dict[str, Any]:
    """The files that differ between two releases of an app, named by number or digest, or `disk`.

    Raises:
        ReleaseRefused: There is no such release, or its snapshot is damaged.
    """
    old, new = _files(control, app, before), _files(control, app, after)
    paths = code_snapshot.changed_paths(old, new)
    shown = [asdict(_changed_file(path, old.get(path), new.get(path))) for path in paths[:MAX_FILES]]
    return {"files": shown, "more": paths[MAX_FILES : 2 * MAX_FILES], "count": len(paths)}


def _files(control: Control, app: str, name: str) -> CodeFiles:
    if name == DISK:
        return code_snapshot.read_project(settings().project)
    return released_code.files_of(control, str(released_code.find(control, app, name).digest))


def _changed_file(path: str, old: bytes | None, new: bytes | None) -> ChangedFile:
    change: Literal["added", "removed", "changed"] = "added" if old is None else "removed" if new is None else "changed"
    if old == new:
        may = "may now" if isinstance(new, ExecutableFile) else "may no longer"
        return ChangedFile(path, change, [], f"its owner {may} execute it")
    before, after = old or b"", new or b""
    if max(len(before), len(after)) > MAX_COMPARED:
        return ChangedFile(
            path, change, [], f"{len(before):,} bytes before, {len(after):,} after: too large to compare"
        )
    try:
        old_lines, new_lines = before.decode().splitlines(), after.decode().splitlines()
    except UnicodeDecodeError:
        return ChangedFile(path, change, [], "it is no text")
    # The first two lines name the files.
    diff = [line[:MAX_LINE] for line in difflib.unified_diff(old_lines, new_lines, lineterm="", n=3)][2:]
    note = f"{len(diff) - MAX_LINES} more lines" if len(diff) > MAX_LINES else ""
    return ChangedFile(path, change, diff[:MAX_LINES], note)
