"""What the benchmark of agents sends, asks and watches, each in a process of its own beside what it measures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.synchronize import Event
from typing import Any

import httpx
import numpy as np
import orjson
from confluent_kafka import Consumer, TopicPartition

from penstock.kafka.admin import admin, end_offsets, partition_counts
from penstock.testing.load import RecordSender

# One account has a tenth of all agents, the others share the rest.
LARGE, ACCOUNTS = 1, 1000
REGIONS, PLATFORMS, VERSIONS = ("eu", "us", "apac"), ("linux", "windows", "mac"), ("1.9.3", "1.10.0", "2.0.1")
AFTER_MS = 25 * 60_000
# Agents that fall silent for good, and changes of agents that are waited for, a second; how many take turns.
SILENT, CHANGES, CHANGING = 2, 5, 500
# Accounts with a rule whose windows all break it, and as many with one that none does.
RULES, WINDOW_S = 50, 10
SESSIONS = 200
TICK, ASK = 0.05, 0.1


def account(n: int, agents: int) -> int:
    return LARGE if n < agents // 10 else 2 + n % (ACCOUNTS - 1)


def wanted(of: int, region: str) -> list[int]:
    """The tests of an agent of an account: one that asks for nothing, and one for each of two regions."""
    return [3 * of, *(3 * of + 1 + n for n, one in enumerate(REGIONS[:2]) if one == region)]


def check_in(name: str, of: int, n: int, region: str, at: int) -> str:
    return (
        f'{{"agent":"{name}","account":"{of}","platform":"{PLATFORMS[n % 3]}","version":"{VERSIONS[n // 3 % 3]}",'
        f'"labels":{{"region":"{region}","os":"{PLATFORMS[n % 3]}","office":"o{n % 50}"}},"timestamp":{at}}}'
    )


def ordinary(n: int, agents: int, at: int) -> tuple[str, str]:
    """An agent says what it always says."""
    name = f"agent-{n:07d}"
    return name, check_in(name, account(n, agents), n, REGIONS[n // 7 % 3], at)


Sent = tuple[str, str, str]


def test(number: int, of: int, **labels: str) -> Sent:
    """Topic, key and value. labels: what it asks for."""
    value = {"id": number, "account_id": of, "name": f"t{number}", "kind": "http", "target": "https://example.com",
             "every_seconds": 300, "enabled": 1, "labels": json.dumps(labels)}  # fmt: skip
    return "tests", f'{{"id":{number}}}', json.dumps(value)


def captured() -> Iterator[Sent]:
    for of in range(1, ACCOUNTS + 1):
        yield "accounts", f'{{"id":{of}}}', f'{{"id":{of},"active":1}}'
        yield test(3 * of, of)
        yield from (test(3 * of + n, of, region=region) for n, region in enumerate(REGIONS[:2], 1))
    for rule in range(2 * RULES):
        row = {"id": rule, "account_id": 2 + rule, "metric": "load", "comparison": "over", "min_count": 1, "enabled": 1,
               "threshold": "0" if rule < RULES else "1000000", "window_seconds": WINDOW_S}  # fmt: skip
        yield "alert-rules", f'{{"id":{rule}}}', json.dumps(row)


def known(bootstrap: str, agents: int) -> int:
    """All agents as of the last minutes, and those that are silent from now on: when they are due is the clock's.

    Epoch ms, when the first of them is due."""
    out, now = RecordSender(bootstrap), int(time.time() * 1000)
    for row in captured():
        out.send(*row)
    for n in range(agents):
        out.send("check-ins", *ordinary(n, agents, now - 200_000 + n * 200_000 // agents))
    for n in range(SILENT * AFTER_MS // 1000):
        name = f"silent-{n:05d}"
        out.send("check-ins", name, check_in(name, 2 + n % 900, n, "eu", now - AFTER_MS + n * 1000 // SILENT))
    out.close()
    return now


def load(bootstrap: str, agents: int, rate: float, stop: Event) -> dict[str, Any]:
    """Check-ins at a rate, of all agents in turn, and browser sessions; how many were sent, and in how long."""
    out, began = RecordSender(bootstrap), time.time()
    order, sent, sessions = cycle(np.random.default_rng(7).permutation(agents).tolist()), 0, 0
    while not stop.wait(max(0.0, TICK - (time.time() - began) % TICK)):
        now = time.time()
        while sent < (now - began) * rate:
            sent += 1
            out.send("check-ins", *ordinary(next(order), agents, int(time.time() * 1000)))
        while sessions < (now - began) * SESSIONS:
            sessions += 1
            of, agent = 2 + sessions % (2 * RULES), f"agent-{sessions % agents:07d}"
            value = {"account": str(of), "agent": agent, "metrics": {"load": 1.5}, "timestamp": int(time.time() * 1000)}
            out.send("browser-sessions", agent, orjson.dumps(value))
        out.poll()
    out.close()
    return {"check_ins": sent, "sessions": sessions, "seconds": time.time() - began}


@dataclass
class Change:
    """An agent that is to have other tests. sent: epoch s."""

    agent: str
    tests: list[int]
    at: int
    sent: float
    seen: float | None = None


def changes(bootstrap: str, url: str, stop: Event) -> list[tuple[float, float | None]]:
    """New agents, and some whose region is another each time, at a rate; of each when it was sent, and how many seconds
    later its assignment was seen by REST, None if it was not."""
    out, number = RecordSender(bootstrap), 0
    every: list[Change] = []
    open_: list[Change] = []
    began = time.time()
    with httpx.Client(base_url=url, trust_env=False, timeout=5) as client:
        while not stop.wait(ASK) or open_:
            now = time.time()
            while not stop.is_set() and number < (now - began) * CHANGES:
                turn, n = divmod(number, CHANGING)
                of, region, name = 2 + n % 900, REGIONS[turn % 2], f"changing-{n:04d}"
                made = Change(name, wanted(of, region), int(time.time() * 1000), time.time())
                out.send("check-ins", name, check_in(name, of, n, region, made.at))
                every.append(made)
                open_.append(made)
                number += 1
            out.poll()
            if stop.is_set() and now - max(one.sent for one in open_) > 30:
                break
            _look(client, open_)
            open_ = [one for one in open_ if one.seen is None]
    out.close()
    return [(one.sent, None if one.seen is None else one.seen - one.sent) for one in every]


def _look(client: httpx.Client, waiting: list[Change]) -> None:
    keys = list({one.agent for one in waiting})[:1000]
    try:
        answer = client.post("/v1/views/assigned/batch", json={"keys": keys})
    except httpx.HTTPError:
        return
    if answer.status_code != 200:
        return
    rows, now = orjson.loads(answer.content)["rows"], time.time()
    for one in waiting:
        row = rows.get(one.agent)
        if row and row["timestamp"] >= one.at and [t["id"] for t in row["tests"]] == one.tests:
            one.seen = now


@dataclass
class Watched:
    """What came in committed topics, as this process had it. offline: (due, seconds behind); alerts: (window's end,
    seconds behind); again: of each agent that has the new test, when it came. Epoch s."""

    offline: list[tuple[float, float]] = field(default_factory=list)
    alerts: list[tuple[float, float]] = field(default_factory=list)
    again: dict[str, float] = field(default_factory=dict)


def watch(bootstrap: str, new: int, most: int, all_of: Event, stop: Event) -> Watched:
    """new: the test that `most` agents are to get, which `all_of` is set behind."""
    found, topics = Watched(), ("agent-offline", "alerts", "assignments")
    with closing(
        Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-watch",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
            }
        )
    ) as consumer:
        client = admin(bootstrap)
        places = [(t, p) for t in topics for p in range(partition_counts(client, bootstrap)[t])]
        consumer.assign([TopicPartition(t, p, at) for (t, p), at in end_offsets(client, places, bootstrap).items()])
        while not stop.is_set():
            messages, now = consumer.consume(10_000, 0.02), time.time()
            for message in messages:
                if message.error() or not (value := message.value()):
                    continue
                said = orjson.loads(value)
                if message.topic() == "agent-offline":
                    found.offline.append((said["timestamp"] / 1000, now - said["timestamp"] / 1000))
                elif message.topic() == "alerts":
                    found.alerts.append((said["window_end"] / 1000, now - said["window_end"] / 1000))
                elif any(one["id"] == new for one in said["tests"]):
                    found.again.setdefault(said["agent"], now)
            if len(found.again) >= most:
                all_of.set()
    return found
