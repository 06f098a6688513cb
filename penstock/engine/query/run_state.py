"""The state of a stream's run: named phases, and what each event makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

# Seconds until a failed query is started again: at once, then ever later, as an absent broker must not fill the log.
RETRY_DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)


class RunPhase(Enum):
    """What a run does."""

    STOPPED = auto()
    STARTING = auto()
    """Its query is being started."""
    LOADING = auto()
    """Its tables are read to their ends."""
    RUNNING = auto()
    """Its query runs."""
    WAITING = auto()
    """A store asked to back off."""
    STALLED = auto()
    """Its query runs and makes no progress, as while a batch is searched for poison records."""
    BROKER_SILENT = auto()
    """Its query runs, and the broker does not answer."""
    FAILING = auto()
    """Its query failed, and no batch has ended since."""
    BLOCKED = auto()
    """Its query cannot continue until time or an operator mends the cause."""

    @property
    def published(self) -> str:
        """The state in the stream's progress."""
        return PUBLISHED.get(self, "failing")


# The others are published as failing. While records arrive, the metrics publish "running" instead of "idle".
PUBLISHED = {
    RunPhase.STOPPED: "stopped",
    RunPhase.STARTING: "starting",
    RunPhase.LOADING: "loading",
    RunPhase.RUNNING: "idle",
    RunPhase.WAITING: "waiting",
    RunPhase.BLOCKED: "blocked",
}


class RunEvent(Enum):
    """What happens to a run."""

    START = auto()
    """It is to run, or its query is started again."""
    STARTED = auto()
    """Its query runs."""
    LOADING = auto()
    """Its tables are not up to date."""
    LOADED = auto()
    """Its tables are read to their ends."""
    BATCH_ENDED = auto()
    """A batch ended well, or there was nothing to read."""
    STORE_WAITS = auto()
    STALLED = auto()
    RESUMED = auto()
    """A batch that waited or stalled goes on."""
    BROKER_SILENT = auto()
    BROKER_ANSWERED = auto()
    FAILED = auto()
    BLOCKED = auto()
    STOPPED = auto()


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        phase: what it does.
        unhealthy: whether it failed or was blocked, and no batch has ended since. Such a run stays failing or blocked
            while its query starts again.
        failures: how often its query failed in a row.
    """

    phase: RunPhase = RunPhase.STOPPED
    unhealthy: bool = False
    failures: int = 0

    @property
    def retry_delay(self) -> float:
        """Seconds until a query that fails now is started again."""
        return RETRY_DELAYS_S[min(self.failures, len(RETRY_DELAYS_S) - 1)]

    def after(self, event: RunEvent) -> RunState:
        """The state after an event. An event that does not apply to the phase changes nothing."""
        up = RunPhase.FAILING if self.unhealthy else RunPhase.RUNNING
        match event, self.phase:
            case RunEvent.STOPPED, _:
                return RunState()
            case RunEvent.FAILED, _:
                return RunState(RunPhase.FAILING, unhealthy=True, failures=self.failures + 1)
            case RunEvent.BLOCKED, _:
                return replace(self, phase=RunPhase.BLOCKED, unhealthy=True)
            case RunEvent.BATCH_ENDED, _ if self.unhealthy:
                return RunState(RunPhase.RUNNING)
            case RunEvent.BATCH_ENDED, _:
                return replace(self, failures=0)
            case RunEvent.START, _ if not self.unhealthy:
                return replace(self, phase=RunPhase.STARTING)
            case RunEvent.LOADING, _:
                return replace(self, phase=RunPhase.LOADING)
            case (RunEvent.STARTED, RunPhase.STARTING) | (RunEvent.LOADED, RunPhase.LOADING):
                return replace(self, phase=up)
            case (RunEvent.STORE_WAITS | RunEvent.STALLED | RunEvent.RESUMED, RunPhase.STOPPED):
                return self  # a writer of a query that has been stopped
            case RunEvent.STORE_WAITS, _:
                return replace(self, phase=RunPhase.WAITING)
            case RunEvent.STALLED, _:
                return replace(self, phase=RunPhase.STALLED)
            case RunEvent.RESUMED, _:
                return replace(self, phase=up)
            case RunEvent.BROKER_SILENT, RunPhase.RUNNING:
                return replace(self, phase=RunPhase.BROKER_SILENT)
            case RunEvent.BROKER_ANSWERED, RunPhase.BROKER_SILENT:
                return replace(self, phase=RunPhase.RUNNING)
            case _:
                return self
