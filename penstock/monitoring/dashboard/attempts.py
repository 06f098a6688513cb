"""What Penstock did by itself about faults: drivers that were launched again, queries that were started again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.control import Control
from penstock.monitoring.dashboard.model import FaultView, StreamView
from penstock.monitoring.humanize import duration

# By the verb of a supervisor's action.
DONE = {"kill": "killed", "terminate": "terminated", "launch": "launched"}
# The meter notes a fault some time after it began.
NOTED_AFTER_MS = 60_000
QUERIES = ("stream", "sink", "capture")


def read_attempts(
    control: Control, faults: Sequence[FaultView], streams: Mapping[str, StreamView], now: int
) -> dict[tuple[str, str], str]:
    """What was tried since each fault began.

    Args:
        control: The control database.
        faults: Of this moment.
        streams: By name.
        now: Epoch ms.

    Returns:
        By kind and name of a fault, a text such as `launched 3 times, the last 20 s ago`; without those about which
        nothing was done.
    """
    began = {(one.kind, one.name): one.since - NOTED_AFTER_MS for one in faults if one.since is not None}
    apps = {name: at for (kind, name), at in began.items() if kind == "app"}
    queries = {name: at for (kind, name), at in began.items() if kind in QUERIES and name in streams}
    actions = control.supervisor_actions(apps) if apps else {}
    before = control.restarts(queries) if queries else {}
    attempts = {}
    for kind, name in began:
        if kind == "app":
            done = [_done(word, *actions[name, verb], now) for verb, word in DONE.items() if (name, verb) in actions]
            attempts[kind, name] = "its driver was " + " and ".join(done) if done else ""
        elif name in before and (restarts := streams[name].restarts - before[name]) > 0:
            attempts[kind, name] = f"its query was started again {_times(restarts)}"
    return {fault: text for fault, text in attempts.items() if text}


def _done(word: str, count: int, at: int, now: int) -> str:
    return f"{word} {_times(count)}, the last time {duration(max(0, now - at))} ago"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
