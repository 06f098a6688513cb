"""What heartbeats and the reaper need of the declarations, which they must not wait for.

`python -m penstock.supervision.declared SECONDS` reads it: a module of the project may hang, or end its process.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from penstock.control import Control
from penstock.errors import DeclarationError, PenstockError
from penstock.host.child_output import redirect_stdout, write_result
from penstock.host.files import write_private
from penstock.settings import settings
from penstock.supervision import launch

log = logging.getLogger(__name__)

# Seconds that reading may take, and that the process has to say where it is then. No heartbeat is sent meanwhile.
READ_TIMEOUT, ANSWER_TIMEOUT = 25.0, 10.0


class DeclarationSummary(NamedTuple):
    """What is declared.

    Attributes:
        apps: Names of the apps.
        windows: See `declared_windows`.
        wrong: The number of files that are invalid, which may declare more.
    """

    apps: set[str]
    windows: list[dict[str, Any]]
    wrong: int


def read_declared() -> DeclarationSummary:
    """Read the declarations in a process of their own.

    Raises:
        DeclarationError: The process did not answer.
        PenstockError: It could not be started.
    """
    what = "the declarations could not be read"
    command = ["penstock.supervision.declared", f"{READ_TIMEOUT:g}"]
    try:
        answer = launch.run_json_module(command, READ_TIMEOUT + ANSWER_TIMEOUT)
    except subprocess.TimeoutExpired as e:
        raise DeclarationError(what, got=f"no answer within {e.timeout:g} s") from e
    except subprocess.CalledProcessError as e:
        raise DeclarationError(what, got=e.stderr.decode(errors="replace").strip()[-2000:]) from e
    return DeclarationSummary(set(answer["apps"]), answer["windows"], answer["wrong"])


def declared_apps(control: Control) -> set[str]:
    """The apps that are declared, and all others that are known if a file cannot be read, as it may declare any."""
    try:
        apps, _, wrong = read_declared()
    except PenstockError as e:
        log.warning("the apps count as declared that the control database knows: %s", e)
        return {app.name for app in control.apps()}
    return apps | {app.name for app in control.apps()} if wrong else apps


def declared_windows() -> list[dict[str, Any]]:
    """Topics that need heartbeats, as JSON: name, heartbeat_every, [every, after, name] of each reader and the least
    grace of theirs, in seconds; by name [every, feeds, clocks] of the streams that feed it.

    An invalid file must not stop the heartbeats of other files, nor those that its running driver needs: for these, the
    windows are used that were stored when all files were valid. If the declarations cannot be read, all are used.
    """
    path = stored_windows()
    try:
        _, windows, wrong = read_declared()
    except PenstockError as e:
        log.warning("heartbeats are sent by the windows that were stored last: %s", e)
        return _stored(path)
    if wrong:
        return _both(windows, _stored(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, json.dumps(windows))
    except OSError as e:
        log.warning("the windows are not stored for a time when the declarations cannot be read: %s", e)
    return windows


def stored_windows() -> Path:
    """The file of the windows that were declared when all files were valid."""
    return settings().home / "run" / "windows.json"


def _stored(path: Path) -> list[dict[str, Any]]:
    try:
        windows: list[dict[str, Any]] = json.loads(path.read_text())
    except (OSError, ValueError):  # it may be missing, or empty after a power failure
        return []
    return windows


def _both(declared: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The declared windows, with the readers and writers that were stored of each topic."""
    by_topic = {window["topic"]: window for window in declared}
    for window in earlier:
        merged = by_topic.setdefault(window["topic"], {"grace": 0.0, "writers": {}, **window, "readers": []})
        merged["readers"] += [due for due in window["readers"] if due not in merged["readers"]]
        merged["grace"] = min(merged["grace"], window.get("grace", merged["grace"]))
        merged["writers"] = {**merged["writers"], **window.get("writers", {})}
    return list(by_topic.values())


def main() -> dict[str, Any]:
    """What `read_declared` returns, by the code of the project."""
    from penstock.catalog import load_partial

    catalog, wrong = load_partial(combiners=False)
    windows = [
        {
            "topic": topic.topic.name,
            "heartbeat_every": topic.topic.heartbeat_every,
            "readers": [
                [r.schedule.interval.total_seconds(), r.schedule.offset.total_seconds(), r.name] for r in topic.readers
            ],
            "grace": topic.grace,
            "writers": {n: [w.every, list(w.feeds), list(w.clocks)] for n, w in topic.writers.items()},
        }
        for topic in catalog.heartbeat_topics().values()
    ]
    return {"apps": list(catalog.apps), "windows": windows, "wrong": len(wrong)}


if __name__ == "__main__":
    # Says in which file it hangs.
    faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
    out = redirect_stdout()
    write_result(out, main())
