"""Closed windows in a whole Airflow: a DAG on a stream's asset runs once for each closed hour, whatever is killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import httpx
import pytest
from confluent_kafka import Producer

from penstock.control import Control
from penstock.devstack.servers.airflow import Airflow
from penstock.devstack.servers.kafka import Broker
from penstock.host.ports import free_port
from penstock.kafka.admin import ensure_topics
from penstock.kafka.transactions import marker_partition
from penstock.model.output import CommitMarker
from penstock.model.partition import partition_key
from penstock.model.topic import COMMITS
from tests.chaos.platform import call
from tests.chaos.projects import other_project
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500), pytest.mark.long]

DECLARED = """
from datetime import timedelta
from penstock.streams import EmitFinal, Input, Stream, Topic, TopicOutput
MINUTE = timedelta(minutes=1)
def transform(sales): return sales
STREAM = Stream("totals", "shop",
    {"sales": Input(Topic("sales"), schema="shop STRING, at TIMESTAMP", event_time="at", max_ahead=MINUTE)},
    transform, TopicOutput(Topic("shop-totals"), key="shop", value="shop"), EmitFinal(MINUTE, MINUTE),
    partition="hour")
"""
DAGS = """
from airflow.sdk import DAG, PartitionedAssetTimetable, StartOfHourMapper, task
from penstock.airflow.assets import stream_asset
from penstock.airflow.dags import declare_dags

globals().update(declare_dags("partitions"))

with DAG("hourly", schedule=PartitionedAssetTimetable(
    assets=stream_asset("totals"), default_partition_mapper=StartOfHourMapper())):

    @task
    def report(dag_run=None):
        print(dag_run.partition_key)

    report()
"""
START = datetime(2026, 1, 31, 10, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
# A busy machine takes many times what a quiet one does.
PATIENCE = 400.0


class Whole(NamedTuple):
    airflow: Airflow
    bootstrap: str
    control: Control

    def close_windows(self, until: datetime) -> None:
        """Write the commit marker that the stream writes with the windows that end until then."""
        plan = "v1\n" + json.dumps({"batchWatermarkMs": int(until.timestamp() * 1000), "batchTimestampMs": 1})
        marker = CommitMarker("q", 7, {}, plans={7: plan + '\n{"sales":{"0":1}}'})
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(COMMITS.name, marker.value(), b"totals", marker_partition(COMMITS, "totals"))
        assert producer.flush(30) == 0

    def ask(self, path: str) -> dict[str, Any]:
        """What the API says, or nothing while it is down or busy."""
        with suppress(httpx.HTTPError):
            return dict(call(self.airflow, "GET", path))
        return {}

    def runs(self) -> Counter[str]:
        """The partitions of the runs that ended well."""
        found = self.ask("dags/hourly/dagRuns?limit=100").get("dag_runs", [])
        return Counter(run["partition_key"] for run in found if run["state"] == "success")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    tmp_path = tmp_path_factory.mktemp("whole")
    home, project = tmp_path / "penstock", tmp_path / "project"
    for path, text in {"jobs/shop/__init__.py": "", "jobs/shop/totals.py": DECLARED, "dags/shop.py": DAGS}.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        url = f"sqlite:///{tmp_path / 'control.db'}"
        variables = {"HOME": home, "KAFKA_BOOTSTRAP": broker.bootstrap, "CONTROL_URL": url}
        stack.enter_context(other_project(project, {f"PENSTOCK_{name}": value for name, value in variables.items()}))
        control = Control(url)
        stack.callback(control.engine.dispose)
        control.migrate()
        ensure_topics([COMMITS], broker.bootstrap)
        airflow = stack.enter_context(Airflow(home, free_port(), project))
        made = Whole(airflow, broker.bootstrap, control)
        wait_until(lambda: made.ask("dags/hourly").get("dag_id"), PATIENCE, every=1, what="Airflow knows the DAG")
        yield made


def test_a_dag_runs_once_for_each_closed_hour(whole: Whole) -> None:
    whole.close_windows(START)
    wait_until(lambda: whole.control.last_partition("totals"), PATIENCE, every=1, what="the first partition is known")
    airflow, until = whole.airflow, START + 3 * HOUR
    whole.close_windows(until)
    kills: list[Callable[[], object]] = [lambda: None, *(s.kill for s in (airflow.triggerer, airflow.scheduler))]
    kills.append(airflow.api.kill)
    for kill in kills:
        kill()
        airflow.start()
        expected = {(START + n * HOUR).strftime("%Y-%m-%dT%H"): 1 for n in range((until - START) // HOUR)}
        wait_until(lambda expected=expected: whole.runs() == expected, PATIENCE, every=1, what=f"runs {expected}")  # type: ignore[misc]
        until += HOUR
        whole.close_windows(until)
    hours = [partition_key(START.replace(minute=0) + n * HOUR) for n in range((until - START) // HOUR)]
    wait_until(lambda: len(whole.runs()) == len(hours), PATIENCE, every=1, what="the last run")
    [asset] = [a for a in whole.ask("assets?limit=100")["assets"] if a["name"] == "topic:shop-totals"]
    assert asset["uri"] == f"kafka://{whole.bootstrap}/shop-totals"
    events = whole.ask(f"assets/events?asset_id={asset['id']}&limit=100")["asset_events"]
    assert Counter(e["partition_key"] for e in events) == dict.fromkeys(hours, 1)
    assert set(whole.runs().values()) == {1}
    wait_until(lambda: not whole.control.sent_partitions(), PATIENCE, every=1, what="the next run has confirmed them")
    assert not whole.control.partition_event_due(["totals"])
