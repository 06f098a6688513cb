"""A backfill's process is killed at random moments. At the end its topic has each row of the archive once.

The expected rows are computed by plain Python."""

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
from tests.support.s3_store import endpoint_of, write_to_archive
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("SEED", "1"))
PROJECT_FOLDER = PROJECT / "tests" / "chaos" / "backfill_project"
HOUR = datetime(2026, 1, 1, 10, tzinfo=UTC)
COUNT, KEYS = 12_000, 4_000
ARCHIVE = Archive("events-archive", "events", bucket="lake", prefix="backfills")
TOPICS = {
    "unchanged": Topic("events-copy", partitions=3, config={"retention.ms": "-1"}),
    "by-query": Topic("backfilled-totals", partitions=2, compacted=True),
    "through-a-stream": Topic("digits", partitions=2, compacted=True),
}
# Rows per second; each second's rows are one transaction.
RATES = {"unchanged": 3_000, "by-query": 1_000, "through-a-stream": 500}


def events() -> list[dict[str, Any]]:
    """Records of three hours in two partitions, not ordered by time; every eleventh is a tombstone."""
    rng = random.Random(SEED)
    records = []
    for n in range(COUNT):
        at = HOUR + timedelta(milliseconds=rng.randrange(3 * 3_600_000))
        value: dict[str, Any] = {"who": f"k{rng.randrange(KEYS)}", "n": n, "at": int(at.timestamp() * 1000)}
        records.append(
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
    return records


EVENTS = events()
VALUES = [json.loads(event["value"]) for event in EVENTS if event["value"] is not None]


@dataclass
class BackfillProcess:
    """Runs one backfill of the project in its own process. settings: environment variables."""

    name: str
    bootstrap: str
    settings: dict[str, str]
    control: Control
    log: Path
    home: Path

    @contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        arguments = ["backfill", "run", self.name, "--from", "2026-01-01T10", "--to", "2026-01-01T13"]
        arguments += ["--rate", str(RATES.get(self.name, 0))]
        with self.log.open("ab") as out:
            started = subprocess.Popen(
                [sys.executable, "-m", "penstock", *arguments], env={**os.environ, **self.settings},
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            yield started
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
            started.wait(60)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def written(self) -> int:
        topic = TOPICS[self.name]
        partitions = [(topic.name, p) for p in range(topic.partitions)]
        return sum(log_end_offsets(admin(self.bootstrap), partitions, self.bootstrap).values())

    def kill_points(self, rng: random.Random) -> Sequence[tuple[str, Callable[[], object]]]:
        """Names of phases at which the process may be killed, each with a test for whether it has been reached."""
        threshold = self.written() + rng.randrange(1, 2 * RATES[self.name])
        earlier = self.output().count("verifying")
        work_folder = self.home / "backfills"
        return [
            ("reading", lambda: list(work_folder.glob("*/files/*"))),
            ("transforming", lambda: list(work_folder.glob("*/rows.parquet"))),
            ("writing", lambda: self.written() >= threshold),
            ("writing", lambda: self.written() >= threshold),
            ("verifying", lambda: self.output().count("verifying") > earlier),
        ]

    def run_and_kill(self, rng: random.Random) -> str:
        """Start the process and kill it in some phase; return the phase, or `done` if it ended before."""
        kill_point, is_reached = rng.choice(self.kill_points(rng))
        with self.process() as running:
            wait_until(lambda: is_reached() or running.poll() is not None, every=0.05, what=f"{kill_point}: {self.log}")
            time.sleep(rng.uniform(0, 0.3))
            if running.poll() is not None:
                assert running.returncode == 0, self.output()
                return "done"
        return kill_point

    def run_to_end(self) -> str:
        """Run the process to its end and return its output."""
        earlier = len(self.output())
        with self.process() as running:
            assert running.wait(300) == 0, self.output()
        return " ".join(self.output()[earlier:].split())


@pytest.fixture
def backfill(
    request: pytest.FixtureRequest, fresh_broker: Broker, home: Path, control: Control, tmp_path: Path
) -> Iterator[BackfillProcess]:
    bootstrap, name = fresh_broker.bootstrap, str(request.param)
    create(bootstrap, *TOPICS.values())
    with s3_store.server(tmp_path / "s3") as store_server:
        at = endpoint_of(store_server)
        control_url = control.engine.url.render_as_string(hide_password=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_CONTROL_URL", control_url)
            write_to_archive(ARCHIVE, at, EVENTS)
        variables = {
            "PENSTOCK_PROJECT": str(PROJECT_FOLDER), "PENSTOCK_HOME": str(home), "PENSTOCK_KAFKA_BOOTSTRAP": bootstrap,
            "PENSTOCK_CONTROL_URL": control_url,
            "PENSTOCK_S3_URL": at.url, "PENSTOCK_S3_ACCESS_KEY": at.access_key,
            "PENSTOCK_S3_SECRET_KEY": at.secret_key, "PENSTOCK_DRIVER_MEMORY": "512m", "PYTHONPATH": str(PROJECT),
        }  # fmt: skip
        (tmp_path / "backfill.log").touch()
        yield BackfillProcess(name, bootstrap, variables, control, tmp_path / "backfill.log", home)


def check_copy(records: Sequence[Record]) -> None:
    expected = [
        (event["key"], event["value"], int(event["timestamp"].timestamp() * 1000), event["headers"][0]["value"])
        for event in EVENTS
    ]

    def fields(r: Record) -> tuple[Any, ...]:
        return (
            r.key and r.key.encode(), None if r.value is None else r.value.encode(), r.timestamp,
            dict(r.headers)["n"].encode(),
        )  # fmt: skip

    assert Counter(map(fields, records)) == Counter(expected)
    for p in range(3):
        times = [r.timestamp for r in records if r.partition == p]
        assert times == sorted(times)


def check_totals(records: Sequence[Record]) -> None:
    expected = Counter[str]()
    for value in VALUES:
        expected[value["who"]] += value["n"]
    assert len(records) == len(expected)
    rows = (json.loads(v or "") for v in latest(records).values())
    assert {row["who"]: row["total"] for row in rows} == expected


def check_windows(records: Sequence[Record]) -> None:
    counts, sums = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for value in VALUES:
        key = (value["at"] // 60_000 * 60_000, value["n"] % 10)
        counts[key] += 1
        sums[key] += value["n"]
    assert len(records) == len(counts)
    rows = {
        (k["start"], k["digit"]): json.loads(v or "")
        for k, v in ((json.loads(k or ""), v) for k, v in latest(records).items())
    }
    assert {key: (row["count"], row["sum"]) for key, row in rows.items()} == {
        k: (n, sums[k]) for k, n in counts.items()
    }


ORACLES = {"unchanged": check_copy, "by-query": check_totals, "through-a-stream": check_windows}


@pytest.mark.parametrize(
    "backfill",
    [
        "unchanged",
        "by-query",
        "through-a-stream",
    ],
    indirect=True,
)
def test_rows_are_written_once_despite_kills(backfill: BackfillProcess) -> None:
    rng = random.Random(f"{SEED} {backfill.name}")
    killed_at = [backfill.run_and_kill(rng) for _ in range(KILLS)]
    assert killed_at.count("done") < KILLS, backfill.output()
    output = backfill.run_to_end()
    assert " rows, hash " in output or "nothing is new" in output, killed_at
    records = read(backfill.bootstrap, TOPICS[backfill.name].name)
    ORACLES[backfill.name](records)
    assert ": 0 rows written; nothing is new" in backfill.run_to_end()
    assert read(backfill.bootstrap, TOPICS[backfill.name].name) == records
    [row] = backfill.control.backfill_runs()
    assert row.state == "done"


@pytest.mark.parametrize("backfill", ["slow-query"], indirect=True)
def test_sigterm_stops_a_running_query(backfill: BackfillProcess) -> None:
    with backfill.process() as running:
        # This is logged repeatedly while the query runs.
        wait_until(lambda: "the rows are made, for" in backfill.output() or running.poll() is not None)
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait(120) == 143, backfill.output()
    [row] = backfill.control.backfill_runs()
    assert row.state == "stopped"
    assert row.why.startswith("it was stopped")


@pytest.mark.parametrize("backfill", ["through-a-stream"], indirect=True)
@pytest.mark.parametrize("process_name", ["java", "pyspark"])
def test_sigterm_stops_spark(backfill: BackfillProcess, process_name: str) -> None:
    """SIGTERM to all processes of the session, as Airflow sends it when a task is stopped.

    process_name: part of the command line of a process that must have started before.
    """
    with backfill.process() as running:
        process = psutil.Process(running.pid)

        def spark_started() -> bool:
            try:
                return any(process_name in " ".join(child.cmdline()) for child in _descendants(process))
            except psutil.Error:  # one of them has just ended
                return False

        wait_until(
            lambda: spark_started() or running.poll() is not None, every=0.05, what=f"{process_name}: {backfill.log}"
        )
        time.sleep(random.Random(SEED).uniform(0, 2))
        descendants = _descendants(process)
        os.killpg(running.pid, signal.SIGTERM)
        assert running.wait(120) == 143, backfill.output()
    wait_until(lambda: not any(child.is_running() and child.status() != "zombie" for child in descendants), 60)
    assert read(backfill.bootstrap, TOPICS[backfill.name].name) == []
    [row] = backfill.control.backfill_runs()
    assert (row.state, row.why[:14]) == ("stopped", "it was stopped")
    backfill.run_to_end()
    ORACLES[backfill.name](read(backfill.bootstrap, TOPICS[backfill.name].name))


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
