"""The overview of about now, shared by the threads of a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from penstock.control import Control
from penstock.errors import ControlError
from penstock.monitoring.dashboard.model import Overview, StreamView
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.snapshot import Snapshot, read
from penstock.monitoring.dashboard.states import StateLimits


@dataclass(frozen=True)
class PlatformStatus:
    """What was read from the control database, and what it means."""

    snap: Snapshot
    view: Overview
    limits: StateLimits

    @property
    def streams(self) -> list[StreamView]:
        return [stream for app in self.view.apps for stream in app.streams]


def read_status(control: Control, limits: StateLimits) -> PlatformStatus:
    """Read it now; ControlError if the database is away."""
    snap = read(control, actions=0)
    return PlatformStatus(snap, overview(snap, limits), limits)


class PlatformStatusCache:
    """The moment of about now: read again when older than `keep` seconds.

    A failure is kept as long as a success, so that a database that is away is not asked by everybody in turn.
    """

    def __init__(
        self,
        control: Control,
        limits: StateLimits | None = None,
        *,
        keep: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.control, self.limits, self.keep, self.clock = control, limits or StateLimits(), keep, clock
        self._lock = Lock()
        self._at: float | None = None
        self._found: PlatformStatus | ControlError | None = None

    def read(self) -> PlatformStatus:
        with self._lock:
            if self._at is None or self.clock() - self._at >= self.keep:
                try:
                    self._found = read_status(self.control, self.limits)
                except ControlError as e:
                    self._found = e
                self._at = self.clock()
            if isinstance(self._found, ControlError):
                raise ControlError(self._found.what, got=self._found.got, hint=self._found.hint) from self._found
            assert self._found is not None
            return self._found
