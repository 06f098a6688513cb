"""Unhealthy streams and captures, for exit codes and failed runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from penstock.control import Control
from penstock.monitoring.dashboard.model import StreamView
from penstock.monitoring.dashboard.platform_status import read_status
from penstock.monitoring.dashboard.states import State, StateLimits
from penstock.settings import settings

# Of streams with desired state on. The supervisor repairs the first two by itself, or says why not.
UNHEALTHY_STATES: frozenset[State] = frozenset({"hung", "down", "failing", "blocked", "waiting", "queued"})
FAILING_STATES: frozenset[State] = frozenset({"failing", "blocked", "waiting", "queued"})
MAX_NAMES = 4
# A store that is down for less fails no run.
SHORT_OUTAGE_MS = 60_000
# There is no report yet, or no recent one.
UNKNOWN_STATES: frozenset[State] = frozenset({"down", "starting", "unknown"})


def summarize_states(streams: Sequence[StreamView]) -> str:
    """The number of streams in each state, and the first names, in one line; empty without streams."""
    counts = ", ".join(f"{n} {state}" for state, n in Counter(s.state for s in streams).items())
    names = ", ".join(s.name for s in streams[:MAX_NAMES])
    more = f" and {len(streams) - MAX_NAMES} more" if len(streams) > MAX_NAMES else ""
    return f"{counts}: {names}{more}" if streams else ""


def unhealthy(streams: Iterable[StreamView], states: frozenset[State] = UNHEALTHY_STATES) -> dict[str, str]:
    """State and reason of unhealthy streams with desired state on, by name."""
    return {s.name: f"{s.state}: {s.why}" for s in streams if s.desired == "on" and s.state in states}


def failing(control: Control, app: str) -> dict[str, str]:
    """State and reason of an app's streams that its driver cannot run, by name."""
    return unhealthy(
        (s for s in read_status(control, StateLimits.of(settings())).streams if s.app == app), FAILING_STATES
    )


def failing_for_long(control: Control, app: str) -> dict[str, str]:
    """As `failing`, without streams whose stores have been down for less than a minute."""
    streams = [s for s in read_status(control, StateLimits.of(settings())).streams if s.app == app]
    return unhealthy(
        (s for s in streams if s.state != "waiting" or (s.error_age_ms or 0) >= SHORT_OUTAGE_MS), FAILING_STATES
    )


def state_is_known(control: Control, name: str) -> bool:
    """Whether the state of a stream or capture is known."""
    streams = [s for s in read_status(control, StateLimits.of(settings())).streams if s.name == name]
    return bool(streams) and (streams[0].desired == "off" or streams[0].state not in UNKNOWN_STATES)
