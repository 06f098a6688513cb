"""Releases what has changed on the disk: once when the platform starts, or whenever files change.

`python -m penstock.devstack.releases` does it once, in a process that has no older version of the code.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Container, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from penstock.catalog import Catalog
from penstock.control import Actor, Control
from penstock.errors import PenstockError, ReleaseRefused, optional_packages
from penstock.host.child_output import redirect_stdout, write_result
from penstock.settings import settings
from penstock.supervision import backends, code_snapshot, launch
from penstock.supervision.changed_code import changed_files
from penstock.supervision.release import register_schemas, release

RELEASE_TIMEOUT = 900.0
"""Seconds in which all apps are checked and released."""
SETTLED_MS = 500
"""An editor writes its files within less."""
MAX_PATHS = 3


@dataclass
class ReleasedApps:
    """What was released.

    Attributes:
        apps: Names of apps by the reason.
        problems: Why others were not.
        left_out: Streams that cannot start because of it.
    """

    apps: dict[str, list[str]] = field(default_factory=dict)
    problems: list[PenstockError] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)


def release_what_changed(
    control: Control, catalog: Catalog, new: Set[str], broken_apps: Container[str]
) -> ReleasedApps:
    """Release the apps of which the disk has new streams or captures, or files that differ from their release.

    Not those that have never run, as their first launch takes the code on the disk, and not for changed files those of
    which a stream is being replaced. The schemas that these and unchanged apps write by are registered.

    Args:
        new: Streams and captures that were not known until now.
        broken_apps: Apps of which files cannot be read; changed files do not release them.
    """
    result = ReleasedApps()
    try:
        changed = changed_files(control, catalog)
    except ReleaseRefused as e:
        result.problems.append(e)
        changed = {}
    for app in control.apps():
        fresh = sorted(new & control.desired(app.name).keys())
        paths = () if app.name in broken_apps or control.open_replacement(app.name) else changed.get(app.name, ())
        driver = control.driver(app.incarnation) if app.incarnation else None
        if not (fresh or paths) or not (app.digest or (driver and backends.alive(driver))):
            # The registry may be new, or empty.
            if app.name not in broken_apps:
                try:
                    register_schemas(app.name, catalog.written_schemas(app.name))
                except ReleaseRefused as e:
                    result.problems.append(e)
                    result.left_out |= control.desired(app.name).keys()
            continue
        reason, note = ("what is new", "new: " + ", ".join(fresh)) if fresh else ("changed files", _described(paths))
        try:
            release(control, app.name, Actor("penstock up", "cli"), note)
            result.apps.setdefault(reason, []).append(app.name)
        except ReleaseRefused as e:
            result.problems.append(e)
            result.left_out |= set(fresh)
    return result


def _described(paths: Sequence[str]) -> str:
    more = len(paths) - MAX_PATHS
    return "changed: " + ", ".join(paths[:MAX_PATHS]) + (f" and {more} more" if more > 0 else "")


def watch_and_release() -> Iterator[str]:
    """Release what changes until Ctrl-C; yields what was done, or why it was not."""
    with optional_packages():
        from watchfiles import watch

    project = settings().project
    digest = code_snapshot.disk_digest(project)
    for _ in watch(project, debounce=SETTLED_MS, step=SETTLED_MS // 2, raise_interrupt=False):
        present = code_snapshot.disk_digest(project)
        if present != digest:
            digest = present
            yield "files have changed; their code is checked and then released"
            yield from _release_in_process()


def _release_in_process() -> Iterator[str]:
    try:
        answer = launch.run_json_module(["penstock.devstack.releases"], RELEASE_TIMEOUT)
    except subprocess.TimeoutExpired:
        yield f"error: the release has not ended within {RELEASE_TIMEOUT:g} s"
    except subprocess.CalledProcessError as e:
        yield e.stderr.decode(errors="replace").strip()[-2000:]
    else:
        yield answer["summary"]
        yield from (f"error: {problem}" for problem in answer["problems"])


def main() -> dict[str, Any]:
    """Create what is new and release what has changed."""
    from penstock.devstack.platform import Platform, as_running

    platform = Platform(as_running(settings()))
    return {"summary": platform.declare(), "problems": [str(problem) for problem in platform.problems]}


if __name__ == "__main__":
    out = redirect_stdout()
    try:
        answer = main()
    except Exception as e:
        sys.exit(f"error: {e}")
    write_result(out, answer)
