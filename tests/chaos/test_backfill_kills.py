"""A backfill's process, killed wherever it is, again and again: at its end its topic holds what the archive gives, each
row once. What that is, is told here by plain Python."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from penstock.kafka.admin import admin, log_end_offsets
from penstock.settings import PROJECT
from penstock.streams import Archive, Topic
from penstock.testing import Record, create, latest, read
from tests.support import s3_store
from tests.support.s3_store import holds, where
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("SEED", "1"))
FILLING = PROJECT / "tests" / "chaos" / "filling"
HOUR = datetime(2026, 1, 1, 10, tzinfo=UTC)
COUNT, PEOPLE = 12_000, 4_000
ARCHIVE = Archive("events-archive", "events", bucket="lake", prefix="filling")
TOPICS = {
    "as-they-are": Topic("events-again", partitions=3, config={"retention.ms": "-1"}),
    "by-query": Topic("totals-again", partitions=2, compacted=True),
    "through-a-stream": Topic("digits", partitions=2, compacted=True),
}
# Rows a second: a transaction each.
RATES = {"as-they-are": 3_000, "by-query": 1_000, "through-a-stream": 500}


def events() -> list[dict[str, Any]]:
    """Three hours of records, of two partitions, in no order of time; every eleventh is a tombstone."""
    chance = random.Random(SEED)
    found = []
    for n in range(COUNT):
        at = HOUR + timedelta(milliseconds=chance.randrange(3 * 3_600_000))
        value: dict[str, Any] = {"who": f"k{chance.randrange(PEOPLE)}", "n": n, "at": int(at.timestamp() * 1000)}
        found.append(
            {
                "topic": "events",
                "partition": n % 2,
                "offset": n // 2,
                "key": value["who"].encode(),
                "value": None if n % 11 == 5 else json.dumps(value).encode(),
                "timestamp": at,
                "event_time": at,
                "headers": [{"key": "n", "value": str(n).encode()}],
            }
        )
    return found


EVENTS = events()
VALUES = [json.loads(one["value"]) for one in EVENTS if one["value"] is not None]


@dataclass
class Filling:
    """Runs one backfill of the project, in a process of its own. settings: variables of its environment."""

    name: str
    bootstrap: str
    settings: dict[str, str]
    control: Control
    log: Path
    home: Path

    @contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        words = ["backfill", "run", self.name, "--from", "2026-01-01T10", "--to", "2026-01-01T13"]
        words += ["--rate", str(RATES.get(self.name, 0))]
        with self.log.open("ab") as out:
            started = subprocess.Popen(
                [sys.executable, "-m", "penstock", *words], env={**os.environ, **self.settings},
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            yield started
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
            started.wait(60)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def written(self) -> int:
        topic = TOPICS[self.name]
        places = [(topic.name, p) for p in range(topic.partitions)]
        return sum(log_end_offsets(admin(self.bootstrap), places, self.bootstrap).values())

    def moments(self, chance: random.Random) -> Sequence[tuple[str, Callable[[], object]]]:
        """Where it may be killed."""
        more = self.written() + chance.randrange(1, 2 * RATES[self.name])
        before = self.said().count("verifying")
        made = self.home / "backfills"
        return [
            ("reading", lambda: list(made.glob("*/files/*"))),
            ("made", lambda: list(made.glob("*/rows.parquet"))),
            ("writing", lambda: self.written() >= more),
            ("writing", lambda: self.written() >= more),
            ("verifying", lambda: self.said().count("verifying") > before),
        ]

    def killed(self, chance: random.Random) -> str:
        """Start it and kill it somewhere; where, or `done` if it was quicker."""
        moment, reached = chance.choice(self.moments(chance))
        with self.process() as running:
            wait_until(lambda: reached() or running.poll() is not None, every=0.05, what=f"{moment}: {self.log}")
            time.sleep(chance.uniform(0, 0.3))
            if running.poll() is not None:
                assert running.returncode == 0, self.said()
                return "done"
        return moment

    def done(self) -> str:
        """Let it come to its end; what it said."""
        before = len(self.said())
        with self.process() as running:
            assert running.wait(300) == 0, self.said()
        return " ".join(self.said()[before:].split())


@pytest.fixture
def filling(
    request: pytest.FixtureRequest, fresh_broker: Broker, home: Path, control: Control, tmp_path: Path
) -> Iterator[Filling]:
    bootstrap, name = fresh_broker.bootstrap, str(request.param)
    create(bootstrap, *TOPICS.values())
    with s3_store.server(tmp_path / "s3") as part:
        at = where(part)
        holds(ARCHIVE, at, EVENTS)
        given = {
            "PENSTOCK_PROJECT": str(FILLING), "PENSTOCK_HOME": str(home), "PENSTOCK_KAFKA_BOOTSTRAP": bootstrap,
            "PENSTOCK_CONTROL_URL": control.engine.url.render_as_string(hide_password=False),
            "PENSTOCK_S3_URL": at.url, "PENSTOCK_S3_ACCESS_KEY": at.access_key,
            "PENSTOCK_S3_SECRET_KEY": at.secret_key, "PENSTOCK_DRIVER_MEMORY": "512m", "PYTHONPATH": str(PROJECT),
        }  # fmt: skip
        (tmp_path / "said.log").touch()
        yield Filling(name, bootstrap, given, control, tmp_path / "said.log", home)


def as_they_are(found: Sequence[Record]) -> None:
    wanted = [
        (one["key"], one["value"], int(one["timestamp"].timestamp() * 1000), one["headers"][0]["value"])
        for one in EVENTS
    ]

    def given(r: Record) -> tuple[Any, ...]:
        return (
            r.key and r.key.encode(), None if r.value is None else r.value.encode(), r.timestamp,
            dict(r.headers)["n"].encode(),
        )  # fmt: skip

    assert Counter(map(given, found)) == Counter(wanted)
    for p in range(3):
        times = [r.timestamp for r in found if r.partition == p]
        assert times == sorted(times)


def by_query(found: Sequence[Record]) -> None:
    wanted = Counter[str]()
    for one in VALUES:
        wanted[one["who"]] += one["n"]
    assert len(found) == len(wanted)
    rows = (json.loads(value or "") for value in latest(found).values())
    assert {row["who"]: row["total"] for row in rows} == wanted


def through_a_stream(found: Sequence[Record]) -> None:
    counts, sums = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for one in VALUES:
        key = (one["at"] // 60_000 * 60_000, one["n"] % 10)
        counts[key] += 1
        sums[key] += one["n"]
    assert len(found) == len(counts)
    rows = {
        (k["start"], k["digit"]): json.loads(v or "")
        for k, v in ((json.loads(k or ""), v) for k, v in latest(found).items())
    }
    assert {key: (row["count"], row["sum"]) for key, row in rows.items()} == {
        k: (n, sums[k]) for k, n in counts.items()
    }


ORACLES = {"as-they-are": as_they_are, "by-query": by_query, "through-a-stream": through_a_stream}


@pytest.mark.parametrize(
    "filling", [pytest.param("as-they-are", marks=pytest.mark.long), "by-query", "through-a-stream"], indirect=True
)
def test_killed_again_and_again(filling: Filling) -> None:
    chance = random.Random(f"{SEED} {filling.name}")
    where_killed = [filling.killed(chance) for _ in range(KILLS)]
    assert where_killed.count("done") < KILLS, filling.said()
    said = filling.done()
    assert " rows, hash " in said or "nothing is new" in said, where_killed
    found = read(filling.bootstrap, TOPICS[filling.name].name)
    ORACLES[filling.name](found)
    assert ": 0 rows written; nothing is new" in filling.done()
    assert read(filling.bootstrap, TOPICS[filling.name].name) == found
    [row] = filling.control.backfill_runs()
    assert row.state == "done"


@pytest.mark.parametrize("filling", ["for-hours"], indirect=True)
def test_asked_to_end_within_a_query(filling: Filling) -> None:
    with filling.process() as running:
        # It has said so once more, so the query runs.
        wait_until(lambda: "the rows are made, for" in filling.said() or running.poll() is not None)
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait(120) == 143, filling.said()
    [row] = filling.control.backfill_runs()
    assert row.state == "stopped"
    assert row.why.startswith("it was stopped")


@pytest.mark.parametrize("filling", ["through-a-stream"], indirect=True)
@pytest.mark.parametrize("works", ["java", pytest.param("pyspark", marks=pytest.mark.long)])
def test_asked_to_end_while_spark_works(filling: Filling, works: str) -> None:
    """As Airflow asks whose task is stopped: all of its session at once. works: part of the command line of a process
    that is there by then."""
    with filling.process() as running:
        one = psutil.Process(running.pid)

        def there() -> bool:
            try:
                return any(works in " ".join(child.cmdline()) for child in _below(one))
            except psutil.Error:  # one of them has just ended
                return False

        wait_until(lambda: there() or running.poll() is not None, every=0.05, what=f"{works}: {filling.log}")
        time.sleep(random.Random(SEED).uniform(0, 2))
        below = _below(one)
        os.killpg(running.pid, signal.SIGTERM)
        assert running.wait(120) == 143, filling.said()
    wait_until(lambda: not any(child.is_running() and child.status() != "zombie" for child in below), 60)
    assert read(filling.bootstrap, TOPICS[filling.name].name) == []
    [row] = filling.control.backfill_runs()
    assert (row.state, row.why[:14]) == ("stopped", "it was stopped")
    filling.done()
    ORACLES[filling.name](read(filling.bootstrap, TOPICS[filling.name].name))


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
