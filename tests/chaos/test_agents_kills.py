"""The streams of agents while their driver and the broker are killed: each silent agent is reported once, each alert is
written once, and no assignment is stale."""

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

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("KILLS", "2"))
APP = "agents"
# Seconds. The broker is down for a shorter time than the grace, so that no record arrives late.
OFFLINE_AFTER, GRACE, BROKER_DOWN = 8, 30, 4
AGENTS, CHECK_IN_EVERY = 40, 1.5
VALUES = {"region": ["eu", "us"], "os": ["linux", "mac"]}
RULES = [
    {"id": 1, "account_id": 1, "metric": "load", "comparison": "over", "threshold": "4.875000", "window_seconds": 2,
     "min_count": 2, "labels": "{}", "enabled": 1},
    {"id": 2, "account_id": 2, "metric": "load", "comparison": "under", "threshold": "4.875000", "window_seconds": 3,
     "min_count": 1, "labels": '{"region": "eu"}', "enabled": 1},
    {"id": 3, "account_id": 2, "metric": "load", "comparison": "over", "threshold": "0", "window_seconds": 2,
     "min_count": 1, "labels": "{}", "enabled": 0},
]  # fmt: skip


class LoadGenerator(threading.Thread):
    """Sends check-ins, browser sessions and changes of tests, in real time, and keeps all that it sent."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(name="load")
        self.rng = random.Random(seed)
        self.check_ins: list[dict[str, Any]] = []
        self.sessions: list[dict[str, Any]] = []
        self.poison = 0
        self.tables: dict[str, dict[str, dict[str, Any]]] = {"tests": {}, "accounts": {}}
        self.quiet, self.stopped = threading.Event(), threading.Event()
        self._undelivered: list[str] = []
        self._agent_fields = {f"a{n}": self._random_fields() for n in range(AGENTS)}
        self._due = dict.fromkeys(self._agent_fields, 0.0)
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
        while not self.stopped.wait(0.05):
            now = time.time()
            for agent in [agent for agent, due in self._due.items() if due <= now]:
                self._check_in(agent, int(now * 1000))
                self._due[agent] = now + self._pause()
            if not self.quiet.is_set():
                self._session(int(now * 1000))
                if self.rng.random() < 0.1:
                    self._change_table()
            elif not ended:
                # So that agents of account 1 have a test at the end.
                self._row("accounts", {"id": 1}, {"active": 1})
                self._row("tests", {"id": 0}, {"account_id": 1, "enabled": 1, "labels": "{}"})
                ended = True
            self._producer.poll(0)
        assert self._producer.flush(120) == 0

    def end(self) -> None:
        self.stopped.set()
        self.join()
        assert not self._undelivered, self._undelivered

    def disable_test(self) -> None:
        """Disable the test of account 1, after the last check-in."""
        self._row("tests", {"id": 0}, {"account_id": 1, "enabled": 0, "labels": "{}"})
        assert self._producer.flush(120) == 0

    def _random_fields(self) -> dict[str, Any]:
        labels = {name: self.rng.choice(values) for name, values in VALUES.items() if self.rng.random() < 0.8}
        account = self.rng.choice(["1", "1", "2"])
        return {"account": account, "platform": "linux", "version": "1", "labels": labels}

    def _pause(self) -> float:
        """Seconds until an agent's next check-in: mostly regular, some just before or after it is offline."""
        if self.quiet.is_set() or self.rng.random() < 0.93:
            return CHECK_IN_EVERY
        # If an absence is reported before it ends, there is a batch between the two.
        long = self.rng.choice([self.rng.uniform(0, 6), GRACE + self.rng.uniform(6, 20)])
        return self.rng.choice([OFFLINE_AFTER - 1.5, OFFLINE_AFTER + long])

    def _check_in(self, agent: str, at: int) -> None:
        if self.rng.random() < 0.05 and not self.quiet.is_set():
            self._agent_fields[agent] = self._random_fields()
        if self.rng.random() < 0.01:
            self.poison += 1
            self._put("check-ins", agent, {"agent": "", "account": "1", "timestamp": at})
        self.check_ins.append({"agent": agent, **self._agent_fields[agent], "timestamp": at})
        self._put("check-ins", agent, self.check_ins[-1])

    def _session(self, at: int) -> None:
        agent, load = f"a{self.rng.randrange(AGENTS)}", self.rng.randrange(40) / 4
        fields = self._agent_fields[agent]
        row = {"account": fields["account"], "agent": agent, "metrics": {"load": load}, "labels": fields["labels"]}
        self.sessions.append({**row, "timestamp": at})
        self._put("browser-sessions", agent, self.sessions[-1])

    def _change_table(self) -> None:
        test = self.rng.randrange(8)
        if self.rng.random() < 0.9:
            labels = {name: self.rng.choice(values) for name, values in VALUES.items() if self.rng.random() < 0.5}
            row = {"account_id": self.rng.choice([1, 1, 2]), "enabled": int(self.rng.random() < 0.8)}
            deleted = self.rng.random() < 0.1
            self._row("tests", {"id": test}, None if deleted else {**row, "labels": json.dumps(labels)})
        else:
            self._row("accounts", {"id": self.rng.choice([1, 2])}, {"active": int(self.rng.random() < 0.8)})

    def _row(self, topic: str, key: dict[str, Any], row: dict[str, Any] | None) -> None:
        text_key = json.dumps(key, separators=(",", ":"))
        if row is None:
            self.tables[topic].pop(text_key, None)
            self._put(topic, text_key, None)
        else:
            self.tables[topic][text_key] = {**key, **row}
            self._put(topic, text_key, {**key, **row})

    def _put(self, topic: str, key: str, value: dict[str, Any] | None) -> None:
        def delivered(error: KafkaError | None, _: object) -> None:
            if error:
                self._undelivered.append(str(error))

        self._producer.produce(topic, None if value is None else json.dumps(value), key, on_delivery=delivered)

    def assigned(self, agent: dict[str, Any]) -> list[int]:
        return model.assigned(agent, *(values.values() for values in self.tables.values()))


class TopicReader:
    """Reads rows from the output topics."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def rows(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(r.value) for r in read(self._bootstrap, topic) if r.value]

    def table(self, topic: str) -> dict[str, dict[str, Any]]:
        return {key: json.loads(value) for key, value in table(read(self._bootstrap, topic)).items()}

    def offline_events(self) -> list[dict[str, Any]]:
        return sorted(self.rows("agent-offline"), key=lambda r: (r["agent"], r["timestamp"]))

    def alerts(self) -> Counter[tuple[Any, ...]]:
        names = ("account", "rule", "window_start", "window_end", "count", "value")
        return Counter(tuple(r[name] for name in names) for r in self.rows("alerts"))

    def rechecks(self) -> Counter[str]:
        return Counter(r["agent"] for r in self.rows("agent-rechecks"))

    def assigned(self) -> dict[str, tuple[str, list[int]]]:
        assignments = self.table("assignments")
        return {agent: (row["account"], [test["id"] for test in row["tests"]]) for agent, row in assignments.items()}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test may kill."""
    with Broker(home=tmp_path / "broker", port=free_port(2)) as broker:
        yield broker


@pytest.fixture
def started(broker: Broker, mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    monkeypatch.setattr(model, "AFTER", OFFLINE_AFTER * 1000)
    monkeypatch.setattr(model, "GRACE", GRACE * 1000)
    lengths = {"OFFLINE_AFTER": OFFLINE_AFTER, "GRACE": GRACE, "ALERT_GRACE": GRACE}
    variables = {f"PENSTOCK_AGENTS_{name}": value for name, value in {"RUN": 1, **lengths}.items()}
    with (
        drivers(broker, mariadb, tmp_path, PROJECT, PENSTOCK_LEASE_TTL=5, **variables) as app_drivers,
        app_drivers.sending_heartbeats(),
    ):
        yield app_drivers


@contextmanager
def load_generator(bootstrap: str, seed: int) -> Iterator[LoadGenerator]:
    load = LoadGenerator(bootstrap, seed)
    load.start()
    try:
        yield load
    finally:
        load.stopped.set()
        load.join()


def kill_driver(app_drivers: Drivers, driver: DriverRow, _: Broker, __: random.Random) -> DriverRow:
    assert driver.session.kill()
    return app_drivers.launch(APP)


def pause_beyond_lease(app_drivers: Drivers, driver: DriverRow, _: Broker, rng: random.Random) -> DriverRow:
    """Pause a driver as if it ran on another host, where nobody can kill it; resume it beside its successor."""
    driver = app_drivers.row(driver.incarnation)
    signal_session(driver, signal.SIGSTOP)
    app_drivers.control.update_driver(driver.incarnation, host="elsewhere")
    leases = app_drivers.control.leases
    wait_until(
        lambda: all(row.expires_at < app_drivers.control.now() for row in leases().values()), what="the leases end"
    )
    successor = app_drivers.launch(APP)
    app_drivers.wait_running(successor, 180)
    time.sleep(rng.uniform(0, 3))
    signal_session(driver, signal.SIGCONT)
    wait_until(lambda: driver.session.alive() is False, what="it notices that it lost its leases")
    return successor


def stop_broker(app_drivers: Drivers, driver: DriverRow, broker: Broker, rng: random.Random) -> DriverRow:
    """Stop the broker for a while; in half of the cases kill the driver meanwhile."""
    broker.kill()
    time.sleep(rng.uniform(0, BROKER_DOWN))
    if kill_too := rng.random() < 0.5:
        assert driver.session.kill()
    broker.start()
    broker.wait()
    return app_drivers.launch(APP) if kill_too else driver


def pause_briefly(_: Drivers, driver: DriverRow, __: Broker, rng: random.Random) -> DriverRow:
    signal_session(driver, signal.SIGSTOP)
    time.sleep(rng.uniform(0.5, 3))
    signal_session(driver, signal.SIGCONT)
    return driver


FAULTS: list[Callable[[Drivers, DriverRow, Broker, random.Random], DriverRow]] = [
    pause_beyond_lease,
    stop_broker,
    kill_driver,
    pause_briefly,
    kill_driver,
]


def test_agents_despite_kills(started: Drivers, broker: Broker) -> None:
    seed = int(os.environ.get("SEED", "1"))
    rng, topics = random.Random(seed), TopicReader(started.bootstrap)
    with load_generator(started.bootstrap, seed) as load:
        driver = started.launch(APP)
        started.wait_running(driver, 180)
        for number in range(KILLS):
            # Sometimes before all streams have recovered.
            time.sleep(rng.uniform(1, 8))
            driver = FAULTS[number % len(FAULTS)](started, driver, broker, rng)
        load.quiet.set()

        def are_assigned() -> bool:
            """Whether each agent has the tests that it should have."""
            agents = model.agents(list(load.check_ins), int(time.time() * 1000))
            expected = {agent: (row["account"], load.assigned(row)) for agent, row in agents.items()}
            return (
                len(expected) == AGENTS
                and topics.assigned() == expected
                and any(tests for _, tests in expected.values())
            )

        wait_until(are_assigned, every=1, what=f"no assignment is stale: {driver.log}")
        load.end()
        before, agents = topics.rechecks(), model.agents(load.check_ins, int(time.time() * 1000))
        load.disable_test()
        members = {agent for agent, row in agents.items() if row["account"] == "1"}
        what = f"agents of an account are checked again: {driver.log}"
        wait_until(lambda: all(topics.rechecks()[agent] > before[agent] for agent in members), every=1, what=what)
    end = int(time.time() * 1000) + 3_600_000
    absences = model.absences(load.check_ins, end)
    wait_until(
        lambda: len(topics.offline_events()) >= len(absences),
        every=1,
        what=f"absences: {driver.log}",
    )
    expected = Counter(model.alerts(load.sessions, RULES))
    wait_until(lambda: topics.alerts().total() >= expected.total(), every=1, what=f"alerts: {driver.log}")
    progress_before = started.control.progress(APP)

    def two_more_batches() -> bool:
        """Whether all output is written: the second of two more batches was planned after all input was there."""
        now = started.control.progress(APP)
        timer_streams = ("agents-active", "alerts")
        return all((now[name].batch_id or 0) >= (progress_before[name].batch_id or 0) + 2 for name in timer_streams)

    wait_until(two_more_batches, every=1, what=f"all is written: {driver.log}")
    assert topics.offline_events() == absences
    assert len(absences) > AGENTS
    assert topics.alerts() == expected
    assert expected.total() > 3
    assert topics.table("active-agents") == model.agents(load.check_ins, end)
    wait_until(lambda: not any(tests for _, tests in topics.assigned().values()), every=1, what="no agent has tests")
    assert len(topics.rows("check-ins-dead-letter")) == load.poison
    check_row_order(read(started.bootstrap, "assignments"), read(started.bootstrap, "active-agents"))


def check_row_order(assigned: list[Any], active: list[Any]) -> None:
    """No row is written twice, and none after a newer one of its key."""
    before: dict[str, dict[str, Any]] = {}
    for record in assigned:
        if record.value:
            row = json.loads(record.value)
            previous = before.get(record.key, {"version": 0})
            assert row["version"] >= previous["version"], record
            assert any(row[name] != previous.get(name) for name in ("account", "online", "tests")), record
            before[record.key] = row
    before = {}
    for record in active:
        if record.value:
            row = json.loads(record.value)
            assert row["timestamp"] >= before.get(record.key, {"timestamp": 0})["timestamp"], record
            assert row != before.get(record.key), record
            before[record.key] = row
