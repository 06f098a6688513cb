"""Sends the records of a fleet, and compares the output of the streams with what they must find."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import orjson

from jobs.agents.simulator.fleet import Fleet, Plan
from penstock.errors import PenstockError
from penstock.testing.load import (
    RecordSender,
    SentCounts,
    check_topics,
    on_schedule,
    read_topic,
    read_truth,
    write_truth,
)

CHECK_INS, SESSIONS, OFFLINE, ASSIGNMENTS = "check-ins", "browser-sessions", "agent-offline", "assignments"
TABLES = ("tests", "accounts")
# How long after an absence is due its event may be missing: heartbeats, grace and a batch.
TOLERANCE_MS = 30_000

# Ids of tests with their required labels, by account.
TestsByAccount = dict[str, list[tuple[int, dict[str, str]]]]


def send(plan: Plan, bootstrap: str, stop: Event, *, fast: bool, report: Callable[[SentCounts], None]) -> SentCounts:
    """Send the records of a plan.

    Args:
        plan: What is sent.
        bootstrap: The brokers.
        stop: Ends sending early when it is set.
        fast: Whether to send without waiting for the clock.
        report: Called after each step.

    Raises:
        BrokerError: A topic does not exist, or records were not accepted.
    """
    check_topics([CHECK_INS, SESSIONS], bootstrap)
    sender, sent = RecordSender(bootstrap), SentCounts(until=plan.fleet.start)
    for step in on_schedule(plan.steps(), sent, stop, fast=fast):
        # With `fast` the records get the time of their step: a check-in that is written so late would be ignored.
        timestamp = step.until if fast else 0
        for topic, records in ((CHECK_INS, step.check_ins), (SESSIONS, step.sessions)):
            for key, value in records:
                sender.send(topic, key, value, timestamp)
        sender.poll()
        sent.records += len(step.check_ins)
        sent.others += len(step.sessions)
        report(sent)
    sender.close()
    return sent


def write(path: Path, fleet: Fleet, until: int) -> None:
    """Write the truth of a fleet that was sent until a time."""
    write_truth(path, fleet.truth(until) + b"\n")


def read(path: Path) -> tuple[Fleet, int]:
    """Read the truth of a fleet, and the time until which it was sent."""
    content = read_truth(path)
    try:
        fields = orjson.loads(content)
        name, until = fields.pop("fleet"), int(fields.pop("until"))
        fleet = Fleet(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        hint = "name a file that `python -m jobs.agents.simulator` has written"
        raise PenstockError("this is not the truth of a fleet", got=path, hint=hint) from e
    if fleet.name != name:
        raise PenstockError("this truth of a fleet was changed", got=path, hint="simulate another fleet")
    return fleet, until


@dataclass(frozen=True)
class Comparison:
    """The output of the streams compared with what they must find.

    Attributes:
        found: Number of absences that were emitted once.
        missed: Agent and last_seen of absences that were not emitted.
        invented: Agent and last_seen of absences that are wrong, or were emitted more than once.
        right: Number of agents whose assignment is right.
        wrong: Agent, ids of the assigned tests (None: no record), and ids of the expected tests.
    """

    found: int
    missed: list[tuple[str, int]]
    invented: list[tuple[str, int]]
    right: int
    wrong: list[tuple[str, list[int] | None, list[int]]]


def compare(path: Path, bootstrap: str) -> Comparison:
    """Compare the topics of agents with the truth of a fleet. Other agents are ignored.

    Agents whose absence has just become due are left out.
    """
    fleet, until = read(path)
    check_topics([OFFLINE, ASSIGNMENTS, *TABLES], bootstrap)
    plan = Plan(fleet)
    expected = plan.expected(until, int(time.time() * 1000), TOLERANCE_MS)
    emitted: Counter[tuple[int, int]] = Counter()
    assigned: dict[int, list[int]] = {}
    for key, value in read_topic(OFFLINE, bootstrap):
        if value and (n := _number(key, fleet)) is not None:
            emitted[n, int(orjson.loads(value)["last_seen"])] += 1
    for key, value in read_topic(ASSIGNMENTS, bootstrap):
        if value and (n := _number(key, fleet)) is not None:
            assigned[n] = [test["id"] for test in orjson.loads(value)["tests"]]
    allowed = expected.absences | {(n, int(expected.last[n])) for n in expected.undecided}
    right, wrong = 0, []
    tests = _read_tests(bootstrap)
    for n in range(fleet.agents):
        last = int(expected.last[n])
        if last < 0 or n in expected.undecided:
            continue
        matching = _matching_tests(plan, n, last, tests) if expected.online[n] else []
        if assigned.get(n) == matching:
            right += 1
        else:
            wrong.append((plan.names[n], assigned.get(n), matching))
    missed = sorted(expected.absences - emitted.keys())
    invented = sorted(absence for absence, times in emitted.items() if absence not in allowed or times > 1)
    return Comparison(
        found=sum(times == 1 and absence in expected.absences for absence, times in emitted.items()),
        missed=[(plan.names[n], last_seen) for n, last_seen in missed],
        invented=[(plan.names[n], last_seen) for n, last_seen in invented],
        right=right,
        wrong=wrong,
    )


def _number(key: bytes, fleet: Fleet) -> int | None:
    """The number of an agent in the fleet; None if it is another fleet's."""
    name = key.decode(errors="replace")
    if not name.startswith(fleet.name) or len(name) != 12:
        return None
    try:
        return int(name[6:], 16)
    except ValueError:
        return None


def _read_tests(bootstrap: str) -> TestsByAccount:
    """The enabled tests of active accounts."""
    tests, accounts = (_read_rows(topic, bootstrap) for topic in TABLES)
    active = {row["id"] for row in accounts if row["active"]}
    by_account: TestsByAccount = defaultdict(list)
    for row in sorted(tests, key=lambda row: int(row["id"])):
        if row["enabled"] and row["account_id"] in active and row.get("labels"):
            by_account[str(row["account_id"])].append((row["id"], orjson.loads(row["labels"])))
    return by_account


def _read_rows(topic: str, bootstrap: str) -> list[dict[str, Any]]:
    latest = {key: value for key, value in read_topic(topic, bootstrap) if key.startswith(b"{")}
    return [orjson.loads(value) for value in latest.values() if value]


def _matching_tests(plan: Plan, agent: int, last_seen: int, tests: TestsByAccount) -> list[int]:
    labels = plan.labels(agent, last_seen)
    return [
        test
        for test, required in tests.get(str(plan.account[agent]), [])
        if all(labels.get(name) == value for name, value in required.items())
    ]
