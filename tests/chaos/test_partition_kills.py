"""In a project of the installed wheel, a DAG on the closed hours of a stream runs once for each, while the driver and
Airflow's processes are killed."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

import httpx
import pytest

from penstock.control import Control, connect
from penstock.devstack.servers.airflow import Airflow
from penstock.host.ports import free_port
from penstock.model.partition import partition_key
from penstock.settings import settings
from penstock.testing import Record, read, send
from tests.chaos.platform import SCHEDULER_TIMEOUTS, call
from tests.chaos.projects import other_project
from tests.support.installation import Installation
from tests.support.wait import wait_until

# Of each process.
KILLS = int(os.environ.get("KILLS", "1"))
SEED = int(os.environ.get("SEED", "1"))

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(900 + 600 * KILLS)]

DECLARED = """
from datetime import timedelta
from penstock.streams import EmitFinal, F, Input, Stream, Topic, TopicOutput
MINUTE = timedelta(minutes=1)
SALES = Input(Topic("sales", partitions=1), schema="at BIGINT NOT NULL",
    event_time="timestamp_millis(at)")
def transform(sales):
    minutes = sales.groupBy(F.window("event_time", "1 minute")).agg(F.count("*").alias("count"))
    return minutes.select(F.unix_millis("window.start").alias("start"), "count")
STREAM = Stream("totals", "orders", {"sales": SALES}, transform,
    TopicOutput(Topic("shop-totals", partitions=1), key="start", value="count"), EmitFinal(MINUTE, MINUTE),
    partition="hour")
"""
DAGS = """
from datetime import timedelta
from airflow.sdk import DAG, PartitionedAssetTimetable, StartOfHourMapper, task
from penstock.airflow.assets import stream_asset

with DAG("hourly", schedule=PartitionedAssetTimetable(
    assets=stream_asset("totals"), default_partition_mapper=StartOfHourMapper()),
    default_args={"retries": 20, "retry_delay": timedelta(seconds=1)}):

    @task
    def report(dag_run=None):
        print(dag_run.partition_key)

    report()
"""
START_AIRFLOW = "from penstock.devstack.servers.airflow import Airflow; Airflow().start()"
# In the past: only records close these hours, as no DAG sends heartbeats.
START = datetime(2026, 1, 31, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
# A busy machine takes many times what a quiet one does.
TIMEOUT = 400.0


@dataclass
class HourlyPlatform:
    """A stream, a DAG on its closed hours, and everything that runs them.

    Attributes:
        restart: Starts what was killed of Airflow.
        hours: Number of hours that have records. All but the last are closed, sooner or later.
    """

    airflow: Airflow
    restart: Callable[[], object]
    bootstrap: str
    control: Control
    hours: int = field(default=0)

    def send_hour(self) -> None:
        """Send a record for each minute of the next hour, and so close the hour before."""
        begin = int((START + self.hours * HOUR).timestamp() * 1000)
        values = [json.dumps({"at": begin + minute * 60_000 + 1}) for minute in range(60)]
        send(self.bootstrap, [Record("sales", None, value, 0) for value in values])
        self.hours += 1

    def kill_driver(self) -> None:
        for driver in self.control.drivers():
            if driver.app == "orders":
                driver.session.kill()

    def ask(self, path: str) -> dict[str, Any]:
        """The API's answer; nothing while it is down or busy."""
        with suppress(httpx.HTTPError):
            return dict(call(self.airflow, "GET", path))
        return {}

    def pages(self, path: str, name: str) -> Iterator[dict[str, Any]]:
        for number in count():
            page = self.ask(f"{path}&limit=100&offset={100 * number}").get(name, [])
            yield from page
            if len(page) < 100:
                return

    def runs(self) -> Counter[str]:
        """How many runs each partition has."""
        return Counter(run["partition_key"] for run in self.pages("dags/hourly/dagRuns?order_by=id", "dag_runs"))

    def successes(self) -> int:
        return sum(1 for _ in self.pages("dags/hourly/dagRuns?state=success&order_by=id", "dag_runs"))

    def wait_runs(self, successes: int, what: str) -> None:
        wait_until(lambda: self.successes() >= successes, TIMEOUT, every=1, what=f"{what}: {successes} runs succeed")


@pytest.fixture
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HourlyPlatform]:
    """What `penstock init` lays out and `penstock up` starts, with a stream and a DAG that were added while it ran."""
    folder = tmp_path_factory.mktemp("hourly")
    installation, project = Installation(folder), folder / "shop"
    ports = {name: free_port(2) for name in ("KAFKA", "MARIADB", "AIRFLOW", "METRICS", "VIEWS", "MONGODB", "S3")}
    variables = {
        "PENSTOCK_HOME": str(project / ".penstock"),
        "PENSTOCK_DRIVER_MEMORY": "512m",
        **{f"PENSTOCK_{name}_PORT": str(port) for name, port in ports.items()},
        **SCHEDULER_TIMEOUTS,
    }
    installation.run("penstock", "init", str(project))

    def run(program: str, *words: str) -> str:
        return installation.run(program, *words, cwd=project, **variables)

    with ExitStack() as stack:
        stack.callback(run, "penstock", "down")
        run("penstock", "up")
        stack.enter_context(other_project(project, variables))
        airflow = Airflow()
        control = connect()
        stack.callback(control.engine.dispose)
        # They would close all hours of the test at once.
        call(airflow, "PATCH", "dags/heartbeat", is_paused=True)
        (project / "jobs/orders/totals.py").write_text(DECLARED)
        (project / "dags/hourly.py").write_text(DAGS)
        run("penstock", "up")
        restart = partial(
            run, "python", "-c", "from penstock.devstack.servers.airflow import Airflow; Airflow().start()"
        )
        hourly = HourlyPlatform(airflow, restart, settings().bootstrap, control)
        wait_until(lambda: hourly.ask("dags/hourly").get("dag_id"), TIMEOUT, every=1, what="Airflow knows the DAG")
        yield hourly


def test_a_dag_runs_once_for_each_closed_hour(platform: HourlyPlatform) -> None:
    rng, airflow = random.Random(SEED), platform.airflow
    platform.send_hour()
    wait_until(lambda: platform.control.last_partition("totals"), TIMEOUT, every=1, what="the first partition")
    kills: dict[str, Callable[[], object]] = {"driver": platform.kill_driver}
    kills |= {server.name: server.kill for server in airflow.servers}
    platform.send_hour()
    platform.wait_runs(1, "before the kills")
    for _ in range(KILLS):
        for name in rng.sample(sorted(kills), len(kills)):
            platform.send_hour()
            time.sleep(rng.uniform(0, 10))
            kills[name]()
            platform.restart()
            platform.send_hour()
            # Some kills come while the consequences of the one before are not over.
            platform.wait_runs(platform.hours - 3, f"{name} was killed")
    platform.wait_runs(platform.hours - 1, "at the end")
    hours = [START + n * HOUR for n in range(platform.hours - 1)]
    assert platform.runs() == {hour.strftime("%Y-%m-%dT%H"): 1 for hour in hours}
    [asset] = [a for a in platform.pages("assets?order_by=id", "assets") if a["name"] == "topic:shop-totals"]
    assert asset["uri"] == f"kafka://{platform.bootstrap}/shop-totals"
    events = platform.pages(f"assets/events?asset_id={asset['id']}&order_by=timestamp", "asset_events")
    assert Counter(e["partition_key"] for e in events) == {partition_key(hour): 1 for hour in hours}
    wait_until(lambda: not platform.control.sent_partitions(), TIMEOUT, every=1, what="the next run confirms them")
    assert not platform.control.partition_event_due(["totals"])
    minutes = Counter(int(r.key or "") for r in read(platform.bootstrap, "shop-totals"))
    closed = [int(hour.timestamp() * 1000) + minute * 60_000 for hour in hours for minute in range(60)]
    assert {minute: minutes[minute] for minute in closed} == dict.fromkeys(closed, 1)
    assert set(minutes.values()) == {1}
