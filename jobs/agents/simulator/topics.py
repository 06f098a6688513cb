"""A fleet and its topics: sent on the clock or as fast as it goes, and what was made of it compared with its truth."""

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
from penstock.testing.load import RecordSender, check_topics, read_topic

CHECK_INS, SESSIONS, OFFLINE, ASSIGNMENTS = "check-ins", "browser-sessions", "agent-offline", "assignments"
TABLES = ("tests", "accounts")
# How long after an agent's time was over its event may be missing: beats, grace and a batch.
LEEWAY = 30_000


@dataclass
class Sent:
    """check_ins, sessions: how many; until: epoch ms of what was sent; behind: ms of the clock."""

    check_ins: int = 0
    sessions: int = 0
    until: int = 0
    behind: int = 0


def send(plan: Plan, bootstrap: str, stop: Event, *, fast: bool, told: Callable[[Sent], None]) -> Sent:
    """Send a plan, until `stop` is set at most; BrokerError if its topics are not there, or records were not taken.

    told: after each step.
    """
    check_topics([CHECK_INS, SESSIONS], bootstrap)
    out, sent = RecordSender(bootstrap), Sent(until=plan.fleet.start)
    for step in plan.steps():
        if not fast:
            stop.wait(max(0, step.until / 1000 - time.time()))
            sent.behind = max(0, int(time.time() * 1000) - step.until)
        if stop.is_set():
            break
        for topic, given in ((CHECK_INS, step.check_ins), (SESSIONS, step.sessions)):
            for key, value in given:
                # What is sent of the past was written then: an agent that is heard so late would be offline.
                out.send(topic, key, value, step.until if fast else 0)
        out.poll()
        sent.check_ins += len(step.check_ins)
        sent.sessions += len(step.sessions)
        sent.until = step.until
        told(sent)
    out.close()
    return sent


def write(path: Path, fleet: Fleet, until: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fleet.truth(until) + b"\n")
    except OSError as e:
        raise PenstockError("the truth cannot be written", got=f"{path}: {e.strerror}", hint="name another file") from e


def read(path: Path) -> tuple[Fleet, int]:
    """A fleet and until when it was sent."""
    try:
        known = orjson.loads(path.read_bytes())
        name, until = known.pop("fleet"), int(known.pop("until"))
        fleet = Fleet(**known)
    except OSError as e:
        raise PenstockError("the truth cannot be read", got=f"{path}: {e.strerror}", hint="name its file") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        hint = "name one that `python -m jobs.agents.simulator` has written"
        raise PenstockError("this is no truth of a fleet", got=path, hint=hint) from e
    if fleet.name != name:
        raise PenstockError("this truth of a fleet was changed", got=path, hint="send another fleet")
    return fleet, until


@dataclass(frozen=True)
class Compared:
    """found: absences told once; missed, invented: (agent, last_seen); right: assignments; wrong: (agent, what is
    assigned, what is right), ids of tests, None for no record."""

    found: int
    missed: list[tuple[str, int]]
    invented: list[tuple[str, int]]
    right: int
    wrong: list[tuple[str, list[int] | None, list[int]]]


def compare(path: Path, bootstrap: str, now: int) -> Compared:
    """The topics of agents beside a truth, which tells of its own fleet's agents alone. now: epoch ms.

    What is not decided yet, of agents that are about to be offline, is left out.
    """
    fleet, until = read(path)
    check_topics([OFFLINE, ASSIGNMENTS, *TABLES], bootstrap)
    plan = Plan(fleet)
    expected = plan.expected(until, now, LEEWAY)
    told: Counter[tuple[int, int]] = Counter()
    for key, value in read_topic(OFFLINE, bootstrap):
        if value and (n := _number(key, fleet)) is not None:
            told[n, int(orjson.loads(value)["last_seen"])] += 1
    open_now = {(n, int(expected.last[n])) for n in expected.open}
    found = {one for one, times in told.items() if times == 1 and one in expected.absences}
    missed = sorted(expected.absences - told.keys())
    invented = sorted(one for one, times in told.items() if one not in expected.absences | open_now or times > 1)
    assigned: dict[int, list[int]] = {}
    for key, value in read_topic(ASSIGNMENTS, bootstrap):
        if value and (n := _number(key, fleet)) is not None:
            assigned[n] = [test["id"] for test in orjson.loads(value)["tests"]]
    right, wrong = 0, []
    tests = _tests(bootstrap)
    for n in range(fleet.agents):
        last = int(expected.last[n])
        if last < 0 or n in expected.open:
            continue
        wanted = _wanted(plan, n, last, tests) if expected.online[n] else []
        if assigned.get(n) == wanted:
            right += 1
        else:
            wrong.append((plan.names[n], assigned.get(n), wanted))
    missing, strange = ([(plan.names[n], at) for n, at in given] for given in (missed, invented))
    return Compared(len(found), missing, strange, right, wrong)


def _number(key: bytes, fleet: Fleet) -> int | None:
    """Of an agent of the fleet."""
    name = key.decode(errors="replace")
    if not name.startswith(fleet.name) or len(name) != 12:
        return None
    try:
        return int(name[6:], 16)
    except ValueError:
        return None


def _tests(bootstrap: str) -> dict[str, list[tuple[int, dict[str, str]]]]:
    """The tests that may run, by account, with the labels that each asks for."""
    tests, accounts = (_rows(topic, bootstrap) for topic in TABLES)
    active = {row["id"] for row in accounts if row["active"]}
    found: dict[str, list[tuple[int, dict[str, str]]]] = defaultdict(list)
    for row in sorted(tests, key=lambda row: int(row["id"])):
        if row["enabled"] and row["account_id"] in active and row.get("labels"):
            found[str(row["account_id"])].append((row["id"], orjson.loads(row["labels"])))
    return found


def _rows(topic: str, bootstrap: str) -> list[dict[str, Any]]:
    latest = {key: value for key, value in read_topic(topic, bootstrap) if key.startswith(b"{")}
    return [orjson.loads(value) for value in latest.values() if value]


def _wanted(plan: Plan, n: int, last: int, tests: dict[str, list[tuple[int, dict[str, str]]]]) -> list[int]:
    has = plan.labels(n, last)
    mine = tests.get(str(plan.account[n]), [])
    return [test for test, asks in mine if all(has.get(name) == value for name, value in asks.items())]
