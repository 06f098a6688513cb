"""Releases, and returns to the version before a replacement, that are asked of one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

from penstock.control import Actor, Control, ReplacementRow
from penstock.errors import ReleaseRefused
from penstock.settings import settings
from penstock.supervision import code_snapshot, release
from penstock.supervision.replacement_options import replacement_options

# Releases that are checked or wait for it, in one process.
MAX_WAITING = 4


class ReleaseQueue:
    """Releases apps one after the other in a thread of its own, so that no caller waits."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "release")
        self._running: dict[tuple[str, ...], Future[Any]] = {}
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
        running, is_joining = self._submit(key, lambda: release.release(control, app, actor, note, to=to))
        if is_joining:
            joined = f"{note} (one with another that was being checked)".strip()
            running.add_done_callback(
                lambda ended: None if ended.exception() else control.record(actor, "release", app, joined)
            )
        return running

    def go_back(self, control: Control, row: ReplacementRow, actor: Actor, note: str = "") -> Future[ReplacementRow]:
        """The replacement of a stream by the version before, once its code is checked; see `release.start_going_back`.

        Args:
            control: The control database.
            row: The replacement that is cut.
            actor: Who asks for it.
            note: Recorded with it.
        """
        options = replacement_options()
        running, _ = self._submit(
            (row.app, "back", row.name),
            lambda: release.start_going_back(control, row.app, row.name, actor, options, note),
        )
        return running

    def _submit(self, key: tuple[str, ...], work: Callable[[], Any]) -> tuple[Future[Any], bool]:
        """The result of what a key names, which may wait or run already, and whether it did. ReleaseRefused if too
        many wait."""
        with self._lock:
            if running := self._running.get(key):
                return running, True
            if len(self._running) >= MAX_WAITING:
                raise ReleaseRefused(
                    f"{len(self._running)} releases are being checked, so that of app {key[0]} is not",
                    got=", ".join(sorted(name for name, *_ in self._running)),
                    hint="release again in a minute",
                )
            running = self._running[key] = self._pool.submit(work)
        running.add_done_callback(lambda _: self._forget(key))
        return running, False

    def _forget(self, key: tuple[str, ...]) -> None:
        with self._lock:
            self._running.pop(key, None)
