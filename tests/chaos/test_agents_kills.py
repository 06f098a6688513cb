"""The streams of agents through kills of their driver and of the broker: who falls silent is told of once, alerts come
once, and no assignment is stale."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from penstock.control import DriverRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.settings import PROJECT
from penstock.testing import read, table
from tests.chaos.drivers import Drivers, drivers, signal_session
from tests.support import agents_model as model
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("KILLS", "2"))
APP = "agents"
# Seconds. No check-in and no session is longer on its way than the grace: the broker is away, and then starts.
AFTER, GRACE, AWAY = 8, 30, 4
AGENTS, EVERY = 40, 1.5
VALUES = {"region": ["eu", "us"], "os": ["linux", "mac"]}
RULES = [
    {"id": 1, "account_id": 1, "metric": "load", "comparison": "over", "threshold": "4.875000", "window_seconds": 2,
     "min_count": 2, "labels": "{}", "enabled": 1},
    {"id": 2, "account_id": 2, "metric": "load", "comparison": "under", "threshold": "4.875000", "window_seconds": 3,
     "min_count": 1, "labels": '{"region": "eu"}', "enabled": 1},
    {"id": 3, "account_id": 2, "metric": "load", "comparison": "over", "threshold": "0", "window_seconds": 2,
     "min_count": 1, "labels": "{}", "enabled": 0},
]  # fmt: skip


class Outside(threading.Thread):
    """Agents, browsers and people who change tests, all by the clock; what they said, as it was sent."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(name="outside")
        self.chance = random.Random(seed)
        self.check_ins: list[dict[str, Any]] = []
        self.sessions: list[dict[str, Any]] = []
        self.poison = 0
        self.tables: dict[str, dict[str, dict[str, Any]]] = {"tests": {}, "accounts": {}}
        self.calm, self.over = threading.Event(), threading.Event()
        self._lost: list[str] = []
        self._says = {f"a{n}": self._said() for n in range(AGENTS)}
        self._due = dict.fromkeys(self._says, 0.0)
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random",
            "reconnect.backoff.max.ms": 500, "log_level": 0,
        })  # fmt: skip
        for n in (1, 2):
            self._row("accounts", {"id": n}, {"active": 1})
        for rule in RULES:
            self._put("alert-rules", json.dumps({"id": rule["id"]}), rule)

    def run(self) -> None:
        ended = False
        while not self.over.wait(0.05):
            now = time.time()
            for agent in [agent for agent, due in self._due.items() if due <= now]:
                self._checks_in(agent, int(now * 1000))
                self._due[agent] = now + self._pause()
            if not self.calm.is_set():
                self._session(int(now * 1000))
                if self.chance.random() < 0.1:
                    self._changes()
            elif not ended:
                # So that some have something to do, in the end as well.
                self._row("accounts", {"id": 1}, {"active": 1})
                self._row("tests", {"id": 0}, {"account_id": 1, "enabled": 1, "labels": "{}"})
                ended = True
            self._producer.poll(0)
        assert self._producer.flush(120) == 0

    def end(self) -> None:
        self.over.set()
        self.join()
        assert not self._lost, self._lost

    def change(self) -> None:
        """One test more or less of account 1, when nobody says anything any more."""
        self._row("tests", {"id": 0}, {"account_id": 1, "enabled": 0, "labels": "{}"})
        assert self._producer.flush(120) == 0

    def _said(self) -> dict[str, Any]:
        labels = {name: self.chance.choice(of) for name, of in VALUES.items() if self.chance.random() < 0.8}
        account = self.chance.choice(["1", "1", "2"])
        return {"account": account, "platform": "linux", "version": "1", "labels": labels}

    def _pause(self) -> float:
        """How long until an agent's next word: soon mostly, almost too long, too long."""
        if self.calm.is_set() or self.chance.random() < 0.93:
            return EVERY
        # Of those that are told of before they end, a batch lies between the two.
        long = self.chance.choice([self.chance.uniform(0, 6), GRACE + self.chance.uniform(6, 20)])
        return self.chance.choice([AFTER - 1.5, AFTER + long])

    def _checks_in(self, agent: str, at: int) -> None:
        if self.chance.random() < 0.05 and not self.calm.is_set():
            self._says[agent] = self._said()
        if self.chance.random() < 0.01:
            self.poison += 1
            self._put("check-ins", agent, {"agent": "", "account": "1", "timestamp": at})
        self.check_ins.append({"agent": agent, **self._says[agent], "timestamp": at})
        self._put("check-ins", agent, self.check_ins[-1])

    def _session(self, at: int) -> None:
        agent, load = f"a{self.chance.randrange(AGENTS)}", self.chance.randrange(40) / 4
        says = self._says[agent]
        one = {"account": says["account"], "agent": agent, "metrics": {"load": load}, "labels": says["labels"]}
        self.sessions.append({**one, "timestamp": at})
        self._put("browser-sessions", agent, self.sessions[-1])

    def _changes(self) -> None:
        test = self.chance.randrange(8)
        if self.chance.random() < 0.9:
            asked = {name: self.chance.choice(of) for name, of in VALUES.items() if self.chance.random() < 0.5}
            row = {"account_id": self.chance.choice([1, 1, 2]), "enabled": int(self.chance.random() < 0.8)}
            gone = self.chance.random() < 0.1
            self._row("tests", {"id": test}, None if gone else {**row, "labels": json.dumps(asked)})
        else:
            self._row("accounts", {"id": self.chance.choice([1, 2])}, {"active": int(self.chance.random() < 0.8)})

    def _row(self, topic: str, key: dict[str, Any], row: dict[str, Any] | None) -> None:
        said = json.dumps(key, separators=(",", ":"))
        if row is None:
            self.tables[topic].pop(said, None)
            self._put(topic, said, None)
        else:
            self.tables[topic][said] = {**key, **row}
            self._put(topic, said, {**key, **row})

    def _put(self, topic: str, key: str, value: dict[str, Any] | None) -> None:
        def delivered(error: KafkaError | None, _: object) -> None:
            if error:
                self._lost.append(str(error))

        self._producer.produce(topic, None if value is None else json.dumps(value), key, on_delivery=delivered)

    def assigned(self, agent: dict[str, Any]) -> list[int]:
        return model.assigned(agent, *(of.values() for of in self.tables.values()))


class Seen:
    """What the topics hold."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def rows(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(r.value) for r in read(self._bootstrap, topic) if r.value]

    def table(self, topic: str) -> dict[str, dict[str, Any]]:
        return {key: json.loads(value) for key, value in table(read(self._bootstrap, topic)).items()}

    def absences(self) -> list[dict[str, Any]]:
        return sorted(self.rows("agent-offline"), key=lambda r: (r["agent"], r["timestamp"]))

    def alerts(self) -> Counter[tuple[Any, ...]]:
        names = ("account", "rule", "window_start", "window_end", "count", "value")
        return Counter(tuple(r[name] for name in names) for r in self.rows("alerts"))

    def again(self) -> Counter[str]:
        return Counter(r["agent"] for r in self.rows("agent-rechecks"))

    def assigned(self) -> dict[str, tuple[str, list[int]]]:
        found = self.table("assignments")
        return {agent: (one["account"], [test["id"] for test in one["tests"]]) for agent, one in found.items()}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """One that may die."""
    with Broker(home=tmp_path / "broker", port=free_port(2)) as part:
        yield part


@pytest.fixture
def started(broker: Broker, mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    monkeypatch.setattr(model, "AFTER", AFTER * 1000)
    monkeypatch.setattr(model, "GRACE", GRACE * 1000)
    lengths = {"OFFLINE_AFTER": AFTER, "GRACE": GRACE, "ALERT_GRACE": GRACE}
    given = {f"PENSTOCK_AGENTS_{name}": value for name, value in {"RUN": 1, **lengths}.items()}
    with drivers(broker, mariadb, tmp_path, PROJECT, PENSTOCK_LEASE_TTL=5, **given) as made, made.beating():
        yield made


@contextmanager
def outside(bootstrap: str, seed: int) -> Iterator[Outside]:
    made = Outside(bootstrap, seed)
    made.start()
    try:
        yield made
    finally:
        made.over.set()
        made.join()


def killed(given: Drivers, driver: DriverRow, _: Broker, __: random.Random) -> DriverRow:
    assert driver.session.kill()
    return given.launch(APP)


def fenced(given: Drivers, driver: DriverRow, _: Broker, chance: random.Random) -> DriverRow:
    """Paused as if it ran on another host, where nobody can kill it; woken beside its heir."""
    driver = given.row(driver.incarnation)
    signal_session(driver, signal.SIGSTOP)
    given.control.update_driver(driver.incarnation, host="elsewhere")
    leases = given.control.leases
    wait_until(lambda: all(one.expires_at < given.control.now() for one in leases().values()), what="the leases end")
    heir = given.launch(APP)
    given.wait_running(heir, 180)
    time.sleep(chance.uniform(0, 3))
    signal_session(driver, signal.SIGCONT)
    wait_until(lambda: driver.session.alive() is False, what="it sees that it lost its leases")
    return heir


def cut_off(given: Drivers, driver: DriverRow, broker: Broker, chance: random.Random) -> DriverRow:
    """Without a broker for a while; in half of them it dies meanwhile."""
    broker.kill()
    time.sleep(chance.uniform(0, AWAY))
    if dies := chance.random() < 0.5:
        assert driver.session.kill()
    broker.start()
    broker.wait()
    return given.launch(APP) if dies else driver


def paused(_: Drivers, driver: DriverRow, __: Broker, chance: random.Random) -> DriverRow:
    signal_session(driver, signal.SIGSTOP)
    time.sleep(chance.uniform(0.5, 3))
    signal_session(driver, signal.SIGCONT)
    return driver


KINDS: list[Callable[[Drivers, DriverRow, Broker, random.Random], DriverRow]] = [
    fenced,
    cut_off,
    killed,
    paused,
    killed,
]


def test_agents_through_kills(started: Drivers, broker: Broker) -> None:
    seed = int(os.environ.get("SEED", "1"))
    chance, seen = random.Random(seed), Seen(started.bootstrap)
    with outside(started.bootstrap, seed) as world:
        driver = started.launch(APP)
        started.wait_running(driver, 180)
        for number in range(KILLS):
            # Sometimes before all of it works again.
            time.sleep(chance.uniform(1, 8))
            driver = KINDS[number % len(KINDS)](started, driver, broker, chance)
        world.calm.set()

        def right() -> bool:
            """Whether each has the tests that it should have."""
            known = model.agents(list(world.check_ins), int(time.time() * 1000))
            wanted = {agent: (one["account"], world.assigned(one)) for agent, one in known.items()}
            return len(wanted) == AGENTS and seen.assigned() == wanted and any(tests for _, tests in wanted.values())

        wait_until(right, every=1, what=f"no assignment is stale: {driver.log}")
        world.end()
        before, known = seen.again(), model.agents(world.check_ins, int(time.time() * 1000))
        world.change()
        theirs = {agent for agent, one in known.items() if one["account"] == "1"}
        what = f"the agents of an account are told again: {driver.log}"
        wait_until(lambda: all(seen.again()[agent] > before[agent] for agent in theirs), every=1, what=what)
    end = int(time.time() * 1000) + 3_600_000
    gone = model.absences(world.check_ins, end)
    wait_until(lambda: len(seen.absences()) >= len(gone), every=1, what=f"all absences are told: {driver.log}")
    wanted = Counter(model.alerts(world.sessions, RULES))
    wait_until(lambda: seen.alerts().total() >= wanted.total(), every=1, what=f"all alerts are told: {driver.log}")
    told = started.control.progress(APP)

    def two_more() -> bool:
        """Whatever they had still to say: the second of two batches was planned behind all that is there."""
        now = started.control.progress(APP)
        ticking = ("agents-active", "alerts")
        return all((now[name].batch_id or 0) >= (told[name].batch_id or 0) + 2 for name in ticking)

    wait_until(two_more, every=1, what=f"all is told: {driver.log}")
    assert seen.absences() == gone
    assert len(gone) > AGENTS
    assert seen.alerts() == wanted
    assert wanted.total() > 3
    assert seen.table("active-agents") == model.agents(world.check_ins, end)
    wait_until(lambda: not any(tests for _, tests in seen.assigned().values()), every=1, what="nobody has tests")
    assert len(seen.rows("check-ins-dead-letter")) == world.poison
    forwards(read(started.bootstrap, "assignments"), read(started.bootstrap, "active-agents"))


def forwards(assigned: list[Any], active: list[Any]) -> None:
    """Nothing is written twice, and nothing goes back."""
    before: dict[str, dict[str, Any]] = {}
    for record in assigned:
        if record.value:
            one = json.loads(record.value)
            known = before.get(record.key, {"version": 0})
            assert one["version"] >= known["version"], record
            assert any(one[name] != known.get(name) for name in ("account", "online", "tests")), record
            before[record.key] = one
    before = {}
    for record in active:
        if record.value:
            one = json.loads(record.value)
            assert one["timestamp"] >= before.get(record.key, {"timestamp": 0})["timestamp"], record
            assert one != before.get(record.key), record
            before[record.key] = one
