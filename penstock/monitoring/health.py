"""Which streams and captures are ill, for who must say so by an exit code or a failed run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from penstock.control import Control
from penstock.monitoring.dashboard.model import StreamView
from penstock.monitoring.dashboard.snapshot_cache import take
from penstock.monitoring.dashboard.states import Limits, State
from penstock.settings import settings

# Of what is wanted. The supervisor mends the first two by itself, or says why not.
ILL: frozenset[State] = frozenset({"hung", "down", "failing", "blocked", "waiting", "queued"})
FAILING: frozenset[State] = frozenset({"failing", "blocked", "waiting", "queued"})
NAMED = 4
# A store that is away for less is not worth a failed run.
MOMENT_MS = 60_000
# Nothing is known of it yet, or not any more.
UNSETTLED: frozenset[State] = frozenset({"down", "starting", "unknown"})


def by_state(streams: Sequence[StreamView]) -> str:
    """How many are in each state, and the first of them by name: a line also where there are many. Empty if none is."""
    counts = ", ".join(f"{n} {state}" for state, n in Counter(s.state for s in streams).items())
    names = ", ".join(s.name for s in streams[:NAMED])
    more = f" and {len(streams) - NAMED} more" if len(streams) > NAMED else ""
    return f"{counts}: {names}{more}" if streams else ""


def ill(streams: Iterable[StreamView], states: frozenset[State] = ILL) -> dict[str, str]:
    """What is wrong with wanted streams, by name."""
    return {s.name: f"{s.state}: {s.why}" for s in streams if s.desired == "on" and s.state in states}


def failing(control: Control, app: str) -> dict[str, str]:
    """What is wrong with an app's streams that its driver cannot run, by name."""
    return ill((s for s in take(control, Limits.of(settings())).streams if s.app == app), FAILING)


def lasting(control: Control, app: str) -> dict[str, str]:
    """As `failing`, without streams whose stores have been away for a moment only."""
    found = [s for s in take(control, Limits.of(settings())).streams if s.app == app]
    return ill((s for s in found if s.state != "waiting" or (s.error_age_ms or 0) >= MOMENT_MS), FAILING)


def settled(control: Control, name: str) -> bool:
    """Whether it can be said of a stream or capture how it is."""
    found = [s for s in take(control, Limits.of(settings())).streams if s.name == name]
    return bool(found) and (found[0].desired == "off" or found[0].state not in UNSETTLED)
