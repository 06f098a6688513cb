"""The rules of endpoint agents over plain lists, as slow as they are simple: what the streams of agents are compared
with. Records are the dicts that lie in the topics; all times are epoch ms."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

Record = Mapping[str, Any]

MINUTE = 60_000
AFTER, GRACE = 25 * MINUTE, 1000
FORGET = AFTER + 30 * 24 * 60 * MINUTE
SAID = ("account", "platform", "version", "labels")


def agents(check_ins: Iterable[Record], now: int) -> dict[str, dict[str, Any]]:
    """Each agent as it is when all of time up to `now` is known: what its last check-in said, online and since when.

    Of one time the first check-in counts. Who was offline for too long is left out."""
    found = {}
    for agent, moments in _moments(check_ins).items():
        times = sorted(moments)
        last = times[-1]
        if last + FORGET <= now:
            continue
        online = last + AFTER + GRACE > now
        began = [
            t for t, before in zip(times, [None, *times], strict=False) if before is None or _parted(before, t, now)
        ]
        since = began[-1] if online else last + AFTER
        found[agent] = {"agent": agent, **moments[last], "timestamp": last, "online": online, "since": since}
    return found


def absences(check_ins: Iterable[Record], now: int) -> list[dict[str, Any]]:
    """agent, account, last_seen, timestamp of each absence, by agent and time."""
    found = []
    for agent, moments in sorted(_moments(check_ins).items()):
        times = sorted(moments)
        for last, following in zip(times, [*times[1:], None], strict=True):
            if last + AFTER + GRACE <= now if following is None else _parted(last, following, now):
                account = moments[last]["account"]
                found.append({"agent": agent, "account": account, "last_seen": last, "timestamp": last + AFTER})
    return found


def _parted(one: int, other: int, now: int) -> bool:
    """Whether an absence lies between two neighbours: until the grace is over a check-in may come between."""
    return other - one >= AFTER and one + AFTER + GRACE <= now


def _moments(check_ins: Iterable[Record]) -> dict[str, dict[int, dict[str, Any]]]:
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for c in check_ins:
        found[c["agent"]].setdefault(c["timestamp"], {name: c[name] for name in SAID})
    return found


def assigned(agent: Record, tests: Iterable[Record], accounts: Iterable[Record]) -> list[Any]:
    """The ids of the tests that an agent, as `agents` has it, is to run."""
    if not agent["online"]:
        return []
    active = {str(a["id"]) for a in accounts if a["active"]}
    found = []
    for test in tests:
        has = agent["labels"] or {}
        same = all(has.get(name) == value for name, value in json.loads(test["labels"]).items())
        if test["enabled"] and str(test["account_id"]) == agent["account"] in active and same:
            found.append(test["id"])
    return sorted(found)


def alerts(sessions: Iterable[Record], rules: Iterable[Record]) -> list[tuple[Any, ...]]:
    """account, rule, window_start, window_end, count and average of each window that breaks its rule, once it is over.

    Rules that do not change meanwhile."""
    found, windows = [], defaultdict(list)
    by_id = {rule["id"]: rule for rule in rules if rule["enabled"]}
    for session in sessions:
        for rule in by_id.values():
            value, wants = session["metrics"].get(rule["metric"]), json.loads(rule["labels"] or "{}")
            has = session["labels"] or {}
            same = all(has.get(name) == wanted for name, wanted in wants.items())
            if value is not None and same and session["account"] == str(rule["account_id"]):
                windows[rule["id"], session["timestamp"] // (rule["window_seconds"] * 1000)].append(value)
    for (number, window), values in windows.items():
        rule, mean = by_id[number], sum(values) / len(values)
        threshold, length = float(rule["threshold"]), rule["window_seconds"] * 1000
        broken = mean > threshold if rule["comparison"] == "over" else mean < threshold
        if broken and len(values) >= rule["min_count"]:
            begin = window * length
            found.append((str(rule["account_id"]), number, begin, begin + length, len(values), mean))
    return found
