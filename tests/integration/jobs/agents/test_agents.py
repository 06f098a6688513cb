"""The streams of agents together: rows of a real database, captured, become assignments; and what is matched."""

from __future__ import annotations

import json
import random
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from jobs.agents import active, alerts, assignments, recheck
from jobs.agents.simulator import topics as simulator_topics
from jobs.agents.simulator.__main__ import app
from jobs.agents.simulator.fleet import Plan
from penstock import catalog
from penstock.capture import factory
from penstock.devstack.demo_database import DemoDatabase
from penstock.devstack.servers.kafka import Broker
from penstock.model.topic import COMMITS, POSITIONS
from penstock.settings import settings
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing import Record, create, latest, read, rows, running, send
from tests.support import agents_model as model
from tests.support.captures import polled

pytestmark = pytest.mark.integration

TABLES = ("tests", "accounts")


# Through processes, in each run of the tests: test_agents_whole.py.
@pytest.mark.long
def test_a_row_that_changes_is_an_assignment_that_changes(
    demo: DemoDatabase, spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    """From the database to the topic of assignments, with streams that are stopped in between."""
    bootstrap = fresh_broker.bootstrap
    streams = [replace(one.STREAM, enabled=True) for one in (active, recheck, assignments)]
    create(bootstrap, *catalog.build(streams).topics.values(), COMMITS, POSITIONS)
    captures = [catalog.load().captures[name] for name in TABLES]
    now = int(time.time() * 1000)

    def check_in(agent: str, account: str, at: int = 0, **labels: str) -> Record:
        said = {"agent": agent, "account": account, "labels": labels, "timestamp": now + at}
        return Record("check-ins", agent, json.dumps(said))

    def assigned() -> dict[str | None, list[int]]:
        found = {key: json.loads(value or "") for key, value in latest(read(bootstrap, "assignments")).items()}
        return {agent: [test["id"] for test in one["tests"]] for agent, one in found.items()}

    with ExitStack() as stack:
        pollers = [factory.open_poller(capture, bootstrap) for capture in captures]
        for poller in pollers:
            stack.callback(poller.close)

        def settled(*which: int) -> None:
            for poller in pollers:
                polled(poller, 2)
            for number in which:
                with running(streams[number], spark, bootstrap, tmp_path) as run:
                    run.process_all_available()

        sent = [check_in("a", "1", region="eu"), check_in("b", "1", region="us"), check_in("c", "2", os="linux")]
        send(bootstrap, sent)
        settled(0, 1, 2)
        # As sql/tables has them: test 1 asks for region=eu, test 3 for two labels, of which one is there.
        assert assigned() == {"a": [1, 2], "b": [2], "c": []}
        before = len(read(bootstrap, "assignments"))
        demo.edit("labels", {"test_id": "1", "name": "region"}, {"value": "us"})
        demo.remove("labels", {"test_id": "3", "name": "office"}, hard=False)
        # The scheduler hears of the new agent and of the test before those that were there are told again.
        send(bootstrap, [check_in("d", "1", region="us")])
        settled(0, 2)
        assert assigned() == {"a": [1, 2], "b": [2], "c": [], "d": [1, 2]}
        settled(1, 2)
        assert assigned() == {"a": [2], "b": [1, 2], "c": [3], "d": [1, 2]}
        # Those to whom nothing changes are not written again.
        assert len(read(bootstrap, "assignments")) == before + 4
        demo.edit("tests", {"id": "2"}, {"account_id": "2"})
        demo.edit("tests", {"id": "1"}, {"enabled": "0"})
        send(bootstrap, [check_in("b", "2", 1000)])
        settled(1, 0, 2)
        assert assigned() == {"a": [], "b": [2], "c": [2, 3], "d": []}
        demo.edit("accounts", {"id": "2"}, {"active": "0"})
        settled(1, 2)
        assert assigned() == {"a": [], "b": [], "c": [], "d": []}


def test_a_test_is_never_seen_without_its_labels(demo: DemoDatabase, fresh_broker: Broker) -> None:
    """What one transaction writes of a test and of its labels is one record; so is each change of a label alone."""
    bootstrap, capture = fresh_broker.bootstrap, catalog.load().captures["tests"]
    poller = factory.open_poller(capture, bootstrap)
    odd = {'q"uote': "back\\slash", "übel": "ende\n\t", "a": ""}

    def asked() -> list[Any]:
        found = [r for r in read(bootstrap, "tests") if r.key == '{"id":4}']
        return [json.loads(json.loads(r.value)["labels"]) if r.value else None for r in found]

    with closing(poller):
        polled(poller)
        values = latest(read(bootstrap, "tests")).values()
        labels = {row["id"]: row["labels"] for row in (json.loads(value or "") for value in values)}
        assert labels == {1: '{"region": "eu"}', 2: "{}", 3: '{"office": "Springfield", "os": "linux"}'}
        with demo._engine.begin() as c:
            c.exec_driver_sql("INSERT INTO tests (account_id, name, kind, target) VALUES (1, 'new', 'ping', 'x')")
            polled(poller)
            for name, value in odd.items():
                c.exec_driver_sql("INSERT INTO labels (test_id, name, value) VALUES (4, %s, %s)", (name, value))
            polled(poller)
        polled(poller, 2)
        assert asked() == [odd]
        demo.edit("labels", {"test_id": "4", "name": "a"}, {"value": "b"})
        polled(poller, 2)
        assert asked() == [odd, {**odd, "a": "b"}]
        demo.remove("labels", {"test_id": "4", "name": "a"}, hard=False)
        polled(poller, 2)
        assert asked()[-1] == {name: value for name, value in odd.items() if name != "a"}
        demo.remove("tests", {"id": "4"}, hard=False)
        polled(poller, 2)
        assert asked()[-1] is None


@pytest.mark.long
def test_matching_is_what_the_model_says(spark: SparkSession) -> None:
    chance = random.Random(5)
    values = {"region": ["eu", "us"], "os": ["linux", "mac"], "site": ["a", "b", "c"]}
    agents: list[dict[str, Any]] = []
    for n in range(300):
        labels = {name: chance.choice(of) for name, of in values.items() if chance.random() < 0.7}
        given = chance.choice([labels, labels, labels, {}, None])
        agents.append({
            "agent": f"a{n}", "account": str(chance.randrange(5)), "platform": None, "version": None, "labels": given,
            "timestamp": 1_700_000_000_000 + n, "online": chance.random() < 0.9, "since": 1_700_000_000_000,
        })  # fmt: skip
    tables: dict[str, list[dict[str, Any]]] = {
        "tests": [
            {
                "id": n,
                "account_id": chance.randrange(5),
                "enabled": int(chance.random() < 0.8),
                "name": f"test {n}",
                "labels": json.dumps({name: chance.choice(of) for name, of in values.items() if chance.random() < 0.4}),
            }
            for n in range(40)
        ],
        "accounts": [{"id": n, "active": int(n != 3)} for n in range(4)],
    }
    of_tables = {name: [{"key": str(n), **row} for n, row in enumerate(of)] for name, of in tables.items()}
    said = [Record("active-agents", one["agent"], json.dumps(one)) for one in agents]
    found = rows(spark, assignments.STREAM, agents=said, rechecks=agents[200:], **of_tables)
    ids = {row["agent"]: [test["id"] for test in row["tests"]] for row in found}
    assert ids == {one["agent"]: model.assigned(one, *(tables[name] for name in TABLES)) for one in agents}
    assert sum(map(bool, ids.values())) > 100


@pytest.mark.long
def test_a_fleet_is_found(
    spark: SparkSession,
    fresh_broker: Broker,
    home: Path,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `python -m jobs.agents.simulator` sends, the streams find; and what they did not find, its check does."""
    bootstrap = fresh_broker.bootstrap
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", bootstrap)
    settings.cache_clear()
    streams = [replace(one.STREAM, enabled=True) for one in (active, assignments)]
    create(bootstrap, *catalog.build([*streams, alerts.STREAM]).topics.values(), COMMITS)

    def row(topic: str, key: dict[str, Any], **more: Any) -> Record:
        return Record(topic, json.dumps(key), json.dumps({**key, **more}))

    def fleet(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == code, done.output
        return done.output

    send(
        bootstrap,
        [
            *(row("accounts", {"id": n}, active=int(n != 3)) for n in (1, 2, 3)),
            *(
                row(
                    "tests",
                    {"id": n},
                    account_id=1 + n % 3,
                    enabled=1,
                    labels=json.dumps({"region": "eu"} if n in (0, 3, 4) else {}),
                )
                for n in range(6)
            ),
        ],
    )
    truth = str(tmp_path / "truth.json")
    fleet("--agents", "60", "--rate", "0.2", "--sessions", "0.1", "--fast", "--seed", "3", "--truth", truth)
    ahead = [0.0]
    with (
        running(streams[0], spark, bootstrap, tmp_path / "checkpoints") as run,
        closing(
            HeartbeatSender(
                catalog.build(streams).heartbeat_topics(), None, bootstrap, clock=lambda: time.time() + ahead[0]
            )
        ) as beater,
    ):
        for ahead[0] in (0.0, 2.0, 4.0):
            run.process_all_available()
            beater.run_once()
        run.process_all_available()
    with running(streams[1], spark, bootstrap, tmp_path / "checkpoints") as run:
        run.process_all_available()
    assert "0 missed, 0 invented" in (told := fleet("--check", truth))
    assert "0 wrong" in told
    event = next(r for r in read(bootstrap, "agent-offline") if r.value)
    gone = next(r for r in read(bootstrap, "assignments") if r.value and json.loads(r.value)["tests"])
    send(bootstrap, [Record("agent-offline", event.key, event.value), Record("assignments", gone.key, gone.value)])
    send(bootstrap, [Record("assignments", gone.key, json.dumps({**json.loads(gone.value or ""), "tests": []}))])
    assert "1 invented" in (told := fleet("--check", truth, code=1))
    assert "1 wrong" in told
    now = int(time.time() * 1000)
    fleet("--agents", "20", "--rate", "20", "--sessions", "5", "--for", "2s", "--seed", "4", "--truth", truth)
    made, until = simulator_topics.read(Path(truth))
    sent = [(json.loads(r.value or ""), r.timestamp) for r in read(bootstrap, "check-ins") if made.name in str(r.key)]
    clocked = [(c["timestamp"], at) for c, at in sent]
    assert len(clocked) == sum(len(step.check_ins) for step in Plan(made).steps()) >= 20
    assert until == made.end
    assert all(now <= said <= at for said, at in clocked), "none is sent before its time"
