"""The overview of the present moment, cached for the threads of a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from penstock.control import Control
from penstock.monitoring.dashboard.model import Overview, StreamView
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.shared_result import SharedResult
from penstock.monitoring.dashboard.snapshot import Snapshot, read
from penstock.monitoring.dashboard.states import StateLimits


@dataclass(frozen=True)
class PlatformStatus:
    """A snapshot of the control database and its overview."""

    snap: Snapshot
    view: Overview
    limits: StateLimits

    @cached_property
    def streams(self) -> list[StreamView]:
        return [stream for app in self.view.apps for stream in app.streams]

    @cached_property
    def by_name(self) -> Mapping[str, StreamView]:
        """The streams by name, in order of their apps."""
        return {stream.name: stream for stream in self.streams}


def read_status(control: Control, limits: StateLimits) -> PlatformStatus:
    """Read the status; ControlError if the database does not answer."""
    snap = read(control)
    return PlatformStatus(snap, overview(snap, limits), limits)


class PlatformStatusCache(SharedResult[PlatformStatus]):
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
        self.control = control
        super().__init__(lambda: read_status(control, limits or StateLimits()), keep=keep, clock=clock)
