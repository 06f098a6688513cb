"""Requests a release of a snapshot that would run; otherwise refuses it before any driver drains.

What is checked is the snapshot itself, so an edit meanwhile changes nothing. It is imported by separate processes,
because the caller may be Airflow's API server.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Any

from penstock.control import Actor, Control
from penstock.errors import PenstockError, ReleaseRefused
from penstock.host import files
from penstock.registry.registration import SubjectSchema, register_all
from penstock.settings import settings
from penstock.supervision import code_snapshot, launch, released_code

# Seconds that the declarations, and the plans of an app's streams, may take to be read.
READ_TIMEOUT, PLAN_TIMEOUT = 60.0, 180.0
# Releases that are checked or wait for it, in one process.
MAX_WAITING = 4


def release(
    control: Control,
    app: str,
    actor: Actor,
    note: str = "",
    *,
    accept_state: bool = False,
    request: str = "",
    to: str = "",
) -> int:
    """Ask for a new driver of an app, and return the number of the release.

    Args:
        control: The control database.
        app: The app.
        actor: Who asks for it.
        note: Recorded with it.
        accept_state: Whether to release it though its plan does not fit the state of its streams; it is recorded.
        request: Id of the request; a release that was already requested with it is not requested again.
        to: Number or digest of the earlier release whose code it runs; empty: the code on the disk.

    Raises:
        ReleaseRefused: The code does not load, or cannot go on with the state that its streams have; or the home of
            this host cannot be written.
    """
    # Whoever asks on this host waits for the others: several JVMs at once take so long that all are given up.
    run = settings().home / "run"
    with ExitStack() as lock:
        with code_snapshot.clear_errors(run):
            lock.enter_context(files.locked(run / "release.lock"))
        earlier = released_code.find(control, app, to) if to else None
        if earlier and earlier.digest:
            digest = earlier.digest
            # Another host may release meanwhile, and an old release is then removed with its code.
            control.use_snapshot(digest)
        else:
            digest = released_code.take(control)
        schemas = _check(control, app, released_code.copy_of(control, digest), accept_state=accept_state)
        register_schemas(app, schemas)
    if earlier:
        note = f"{note} (the code of release {earlier.number})".strip()
    if accept_state:
        note = f"{note} (what streams have in state is accepted)".strip()
    number = control.release(app, actor, note, request, digest)
    released_code.prune(control, app)
    return number


def _check(control: Control, app: str, project: Path, *, accept_state: bool) -> list[SubjectSchema]:
    """Raise ReleaseRefused if the code of an app would not run; returns the schemas that it writes by."""
    declared = _run_check(("penstock.catalog", app), READ_TIMEOUT, project)
    missing = control.desired(app).keys() - set(declared["names"])
    owned_by_others = [
        name for name in declared["names"] if declared["others"] and control.app_of(name) not in (None, app)
    ]
    if declared["wrong"]:
        raise ReleaseRefused(
            f"the code of app {app} cannot be read, so it is not released and its driver continues",
            got="; ".join(declared["wrong"]),
            hint="correct the files, and release again",
        )
    if declared["others"] and (unclear := sorted({*missing, *owned_by_others})):
        raise ReleaseRefused(
            f"a file of another app cannot be read and may declare {', '.join(unclear)}, so app {app} is not released "
            "and its driver continues",
            got="; ".join(declared["others"]),
            hint="correct the file, and release again",
        )
    if not declared["names"]:
        raise ReleaseRefused(f"nothing is declared for app {app} any more", hint="stop it; its driver then exits")
    if declared["streams"]:
        plans = ("penstock.engine.checkpoint.plan_fingerprint", app, *(["--accept"] if accept_state else []))
        if refused := _run_check(plans, PLAN_TIMEOUT, project)["refused"]:
            raise ReleaseRefused(
                f"app {app} cannot continue with this code, so it is not released and its driver continues",
                got="; ".join(refused),
            )
    # A release of a checkout has a library of its own, and an early one says nothing of schemas.
    return [SubjectSchema(*schema) for schema in declared.get("schemas", ())]


def register_schemas(app: str, schemas: Sequence[SubjectSchema]) -> None:
    """Register the schemas that an app writes by, so that its batches find them.

    Raises:
        ReleaseRefused: The registry refuses one, or does not answer, or there is none.
    """
    try:
        register_all(schemas)
    except PenstockError as e:
        raise ReleaseRefused(
            f"the schemas that app {app} writes by cannot be registered: {e.what}", got=e.got, hint=e.hint
        ) from e


class ReleaseQueue:
    """Releases apps one after the other in a thread of its own, so that no caller waits."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "release")
        self._running: dict[tuple[str, str, str], Future[int]] = {}
        self._lock = Lock()

    def ask(self, control: Control, app: str, actor: Actor, note: str = "", *, to: str = "") -> Future[int]:
        """The release of an app that was asked for, once it is accepted; who asks while the same code is being checked
        gets the same one. ReleaseRefused, also at once if too many wait.

        Args:
            control: The control database.
            app: The app.
            actor: Who asks for it.
            note: Recorded with it.
            to: As for `release`.
        """
        key = (app, to, "" if to else code_snapshot.disk_digest(settings().project))
        with self._lock:
            running = self._running.get(key)
            if is_joining := running is not None:
                note = f"{note} (one with another that was being checked)".strip()
            elif len(self._running) >= MAX_WAITING:
                raise ReleaseRefused(
                    f"{len(self._running)} releases are being checked, so that of app {app} is not",
                    got=", ".join(sorted(name for name, *_ in self._running)),
                    hint="release again in a minute",
                )
            else:
                running = self._running[key] = self._pool.submit(release, control, app, actor, note, to=to)
        assert running is not None

        def done(ended: Future[int]) -> None:
            if not is_joining:
                self._forget(key)
            elif not ended.exception():
                control.record(actor, "release", app, note)

        running.add_done_callback(done)
        return running

    def _forget(self, key: tuple[str, str, str]) -> None:
        with self._lock:
            self._running.pop(key, None)


def _run_check(command: Sequence[str], timeout: float, project: Path) -> dict[str, Any]:
    """Run a module on a snapshot and return the JSON of its last line. ReleaseRefused if it fails."""
    what = f"`python -m {' '.join(command)}` could not check the code"
    try:
        answer = launch.run_json_module(
            command, timeout, project, PENSTOCK_SPARK_MASTER="local[1]", PENSTOCK_DRIVER_MEMORY="512m"
        )
    except subprocess.TimeoutExpired as e:
        raise ReleaseRefused(what, got=f"no answer within {timeout:g} s", hint="release again") from e
    except subprocess.CalledProcessError as e:
        error = e.stderr.decode(errors="replace").strip()[-2000:]
        raise ReleaseRefused(what, got=_on_disk(error, project)) from e
    return {
        key: [_on_disk(v, project) if isinstance(v, str) else v for v in value] if isinstance(value, list) else value
        for key, value in answer.items()
    }


def _on_disk(text: str, project: Path) -> str:
    """A message with the names of the files that an author edits, in place of those in the snapshot."""
    return text.replace(str(project), str(settings().project))
