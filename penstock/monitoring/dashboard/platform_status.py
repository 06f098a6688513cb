"""The overview of the present moment, cached for the threads of a process."""

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
    """A snapshot of the control database and its overview."""

    snap: Snapshot
    view: Overview
    limits: StateLimits

    @property
    def streams(self) -> list[StreamView]:
        return [stream for app in self.view.apps for stream in app.streams]


def read_status(control: Control, limits: StateLimits) -> PlatformStatus:
    """Read the status; ControlError if the database does not answer."""
    snap = read(control, actions=0)
    return PlatformStatus(snap, overview(snap, limits), limits)


class PlatformStatusCache:
    """The status, read again when it is older than `keep` seconds.

    A failure is cached as long as a success, so that each thread does not wait for a database that is down.
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
        self._result: PlatformStatus | ControlError | None = None

    def read(self) -> PlatformStatus:
        with self._lock:
            if self._at is None or self.clock() - self._at >= self.keep:
                try:
                    self._result = read_status(self.control, self.limits)
                except ControlError as e:
                    self._result = e
                self._at = self.clock()
            if isinstance(self._result, ControlError):
                raise ControlError(self._result.what, got=self._result.got, hint=self._result.hint) from self._result
            assert self._result is not None
            return self._result
