"""The crowd on its way: what lies in the topics is what its truth tells of, and walk-ins are compared with that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jobs.presence.simulator.__main__ import app
from penstock.devstack.demo_database import DemoDatabase
from penstock.devstack.servers.kafka import Broker
from penstock.settings import PROJECT, settings
from penstock.streams import Topic
from penstock.testing.topics import Record, create, read, send
from tests.support.presence_model import walk_ins
from tests.support.wait import wait_until

TOPICS = ("probes", "crm-events", "crm-events-backfill", "walk-ins")
CAPTURED = Topic("businesses", partitions=4, compacted=True)


@pytest.fixture
def place(fresh_broker: Broker, demo: DemoDatabase, home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Broker, Path]:
    """The topics, and the demo database with seven businesses that the topic has too."""
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", fresh_broker.bootstrap)
    settings.cache_clear()
    create(fresh_broker.bootstrap, CAPTURED, *(Topic(name, partitions=4) for name in TOPICS))
    for n in range(4):
        demo.add("businesses", {"name": f"Shop {n}", "threshold": str(-60 - n)})
    captured(fresh_broker, demo)
    return fresh_broker, home


def captured(broker: Broker, demo: DemoDatabase) -> None:
    names, rows = demo.rows("businesses")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    send(
        broker.bootstrap,
        [
            Record("businesses", f'{{"id":{row["id"]}}}', json.dumps({**row, "updated_at": str(row["updated_at"])}))
            for row in found
        ],
    )


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done.output


def values(broker: Broker, topic: str) -> list[Any]:
    return [json.loads(r.value or "") for r in read(broker.bootstrap, topic)]


def expected(broker: Broker, truth: Path) -> list[Any]:
    """What the rules make of the probes that lie in the topic: the truth's visits."""
    businesses = {str(row["id"]): row["threshold"] for row in values(broker, "businesses")}
    found = walk_ins(values(broker, "probes"), businesses)
    told = [json.loads(line) for line in truth.read_text().splitlines()][1:]
    assert sorted(found, key=str) == sorted(told, key=str)
    return told


def walked(broker: Broker, visits: list[Any]) -> None:
    send(broker.bootstrap, [Record("walk-ins", f"{v['device']}|{v['business']}", json.dumps(v)) for v in visits])


@pytest.mark.long
def test_a_crowd_is_sent_and_what_was_made_of_it_compared(place: tuple[Broker, Path], tmp_path: Path) -> None:
    broker, _ = place
    truth = tmp_path / "some" / "truth.jsonl"
    # So many that one of them is removed, whatever the hour is.
    words = ("--devices", "200", "--businesses", "5", "--rate", "2", "--seed", "3", "--for", "9h", "--fast")
    said = run(*words, "--truth", str(truth))
    assert str(truth) in "".join(said.split())
    told = expected(broker, truth)
    assert len(told) > 20
    probes = read(broker.bootstrap, "probes")
    assert len(probes) >= 2 * 9 * 3600
    assert all(json.loads(r.value or "")["device"] == r.key for r in probes)
    assert max(json.loads(r.value or "")["timestamp"] for r in probes) < time.time() * 1000
    crm = values(broker, "crm-events")
    assert {e["type"] for e in crm} == {"login", "change", "removal"}
    assert values(broker, "crm-events-backfill") != []

    walked(broker, told[2:])
    said = run("--check", str(truth), code=1)
    assert f"{len(told) - 2} found, 2 missed, 0 invented" in said
    assert all(v["device"] in said for v in told[:2])
    walked(broker, told[:2])
    assert f"{len(told)} found, 0 missed, 0 invented" in run("--check", str(truth))
    # Another crowd's walk-in, one twice, and one that never was.
    walked(broker, [{**told[0], "device": "ffffff000000"}, told[0], {**told[1], "timestamp": told[1]["timestamp"] + 1}])
    said = run("--check", str(truth), code=1)
    assert f"{len(told)} found, 0 missed, 2 invented" in said
    assert "ffffff000000" not in said


def test_a_crowd_on_the_clock_ends_early_with_the_truth_of_what_was_sent(place: tuple[Broker, Path]) -> None:
    broker, home = place
    rules = ("--dwell", "2s", "--within", "6s", "--away", "20s", "--late", "1s")
    size = ("--devices", "500", "--rate", "300", "--businesses", "6", "--for", "1m")
    command = (sys.executable, "-m", "jobs.presence.simulator")
    env = {**os.environ, "PYTHONPATH": str(PROJECT)}
    process = subprocess.Popen([*command, *size, *rules], env=env, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(read(broker.bootstrap, "probes")) > 6000, every=1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=180)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said
    [truth] = (home / "crowds").glob("*.jsonl")
    businesses = {str(row["id"]): row["threshold"] for row in values(broker, "businesses")}
    found = walk_ins(values(broker, "probes"), businesses, dwell=2000, within=6000, away=20_000)
    told = [json.loads(line) for line in truth.read_text().splitlines()][1:]
    assert len(told) > 3
    assert sorted(found, key=str) == sorted(told, key=str)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--for", "10 minutes"), "this is not a duration; got: 10 minutes; hint: e.g. 90s"),
        (("--for", "4s", "--businesses", "3"), "the simulated time of the crowd is too short; got: 4000 ms"),
        (("--dwell", "10m"), "no crowd can be simulated by these rules; got: dwell 600000 ms"),
        (("--rate", "0.1", "--businesses", "3"), "1000 devices send "),
        (("--check", "nowhere"), "the truth cannot be read; got: nowhere"),
        (("--check", str(PROJECT / "pyproject.toml")), "this is not the truth of a crowd"),
    ],
)
def test_what_cannot_be_done_says_why(place: tuple[Broker, Path], words: tuple[str, ...], message: str) -> None:  # noqa: ARG001
    assert message in run(*words, code=1)


def test_businesses_are_made_and_waited_for(
    place: tuple[Broker, Path], demo: DemoDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, _ = place
    monkeypatch.setattr("jobs.presence.simulator.topics.CAPTURE_TIMEOUT", 0.0)
    assert "does not have the demo database's businesses" in run("--businesses", "9", code=1)
    assert len(demo.rows("businesses")[1]) == 9
    captured(broker, demo)
    assert "visits to be found" in run("--businesses", "9", "--devices", "5", "--fast", "--for", "1h", "--rate", "1")


def test_topics_that_are_not_there(fresh_broker: Broker, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", fresh_broker.bootstrap)
    settings.cache_clear()
    truth = home / "truth.jsonl"
    truth.write_text('{"crowd":"abcdef"}\n')
    assert "topic walk-ins does not exist; hint: create them" in run("--check", str(truth), code=1)
