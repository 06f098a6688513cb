"""Files that come, fail and break under a running platform, as Airflow shows them and acts on them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.control import Control, DriverRow
from penstock.devstack.servers.airflow import Airflow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.kafka.admin import admin, partition_counts
from penstock.streams import Topic
from penstock.testing import Record, create, read, send
from tests.chaos.platform import call
from tests.chaos.projects import deployed
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

STREAM = """
from penstock.streams import Stateless, Input, Stream, Topic, TopicOutput
STREAM = Stream("{name}", "{app}", {{"orders": Input(Topic("orders", partitions=1))}},
                lambda orders: orders.select("value"),
                TopicOutput(Topic("{name}-out", partitions=1), value="value"), Stateless())
"""
# Beyond the 20 s that a driver may lack a stream, and short: a run tells of failing streams at its end.
EPOCH = 40
# A busy machine takes many times what a quiet one does.
TIMEOUT = 300.0


def write(project: Path, app: str, name: str, text: str = STREAM) -> None:
    """Write the file of a stream."""
    folder = project / "jobs" / app
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").touch()
    (folder / f"{name}.py").write_text(text.format(name=name, app=app))


def penstock(*words: str) -> str:
    """What a command says."""
    return subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, text=True, check=True).stdout


@dataclass
class Platform:
    """What may be asked and done in a test."""

    control: Control
    bootstrap: str
    airflow: Airflow
    sent: int = 0

    def driver(self, app: str) -> DriverRow:
        """The driver that runs an app, once there is one."""

        def runs() -> DriverRow | None:
            row = self.control.app(app)
            d = self.control.driver(row.incarnation) if row and row.incarnation else None
            return d if d and d.state == "running" and d.session.alive() else None

        found = wait_until(runs, TIMEOUT, what=f"a driver of {app} runs")
        assert found
        return found

    def ended(self, d: DriverRow) -> DriverRow:
        """A driver, once it has ended."""

        def row() -> DriverRow | None:
            found = self.control.driver(d.incarnation)
            return found if found and found.state == "ended" else None

        found = wait_until(row, TIMEOUT, what=f"driver {d.incarnation} of {d.app} ends")
        assert found
        return found

    def flows(self, *streams: str) -> None:
        """What is sent now comes out of these streams."""
        self.sent += 1
        value = f"order {self.sent}"
        send(self.bootstrap, [Record("orders", None, value)])

        def lacking() -> set[str]:
            return {name for name in streams if value not in [r.value for r in read(self.bootstrap, f"{name}-out")]}

        wait_until(lambda: not lacking(), TIMEOUT, every=1, what=f"{value} comes out of {streams}")

    def made_again(self) -> None:
        """The topic of orders is deleted, and there again."""
        client = admin(self.bootstrap)
        client.delete_topics(["orders"])["orders"].result(30)
        wait_until(lambda: "orders" not in partition_counts(client, self.bootstrap))
        create(self.bootstrap, Topic("orders", partitions=1))

    def get(self, path: str) -> Any:
        return call(self.airflow, "GET", path)

    def run(self, app: str, state: str, after: datetime) -> dict[str, Any]:
        """A run of an app's DAG that ended so behind a time, once there is one."""
        path = f"dags/streams_{app}/dagRuns?state={state}&limit=100"

        def ended() -> list[dict[str, Any]]:
            return [r for r in self.get(path)["dag_runs"] if datetime.fromisoformat(r["end_date"]) > after]

        return wait_until(ended, TIMEOUT, every=1, what=f"a run of streams_{app} ends: {state}")[0]

    def told(self, run: dict[str, Any]) -> str:
        """The log of a supervising run."""
        task = f"dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/taskInstances/supervise"
        return str(self.get(f"{task}/logs/{self.get(task)['try_number']}"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An app of one stream."""
    write(tmp_path / "project", "shop", "sales")
    return tmp_path / "project"


@pytest.fixture
def platform(project: Path, home: Path) -> Iterator[Platform]:
    """The app runs on a platform of its own, beside another app whose topics were not made."""
    given = {
        "PENSTOCK_SUPERVISE_EPOCH": EPOCH,
        # No driver is killed because this machine is slow.
        "PENSTOCK_DRAIN_TIMEOUT": TIMEOUT,
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 15,
    }
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        mariadb = stack.enter_context(MariaDB(home=home, port=free_port()))
        control = stack.enter_context(deployed(project, broker, mariadb, home, **given))
        write(project, "bank", "rates")
        airflow = stack.enter_context(Airflow(home, free_port(), project))
        yield Platform(control, broker.bootstrap, airflow)


@pytest.mark.long
def test_airflow_follows_app_files_that_are_added_broken_and_removed(platform: Platform, project: Path) -> None:
    p, began = platform, datetime.now(UTC)
    first = p.driver("shop")
    p.flows("sales")
    write(project, "shop", "returns")

    failed = p.run("bank", "failed", began)
    assert "stream rates: failing" in p.told(failed)
    failing = p.driver("bank")
    penstock("streams", "stop", "rates")
    assert p.ended(failing).reason == "no stream of the app is wanted"
    penstock("streams", "start", "rates")
    said = penstock("topics", "--apply")
    assert "rates-out" in said
    assert "returns-out" in said
    p.flows("rates")
    p.run("bank", "success", datetime.now(UTC))

    p.flows("sales", "returns")
    second = p.driver("shop")
    assert second.incarnation != first.incarnation
    asked = [(a["source"], a["target"], a["detail"]) for a in p.control.actions(200) if a["verb"] == "release"]
    assert asked == [("supervisor", "shop", "new to its driver: returns")], "nobody asked for it"

    names, again = ("sales", "returns", "rates"), datetime.now(UTC)
    p.made_again()
    assert "stream rates: blocked" in p.told(p.run("bank", "failed", again))

    def asks() -> bool:
        rows = p.control.progress("shop") | p.control.progress("bank")
        return all("recreated" in (rows[name].error or "") for name in names)

    wait_until(asks, TIMEOUT, every=1, what="all streams ask how to go on")
    for name in names:
        penstock("streams", "go-on", name, "--yes")
    p.flows(*names)
    p.run("bank", "success", datetime.now(UTC))

    bank, broken = p.driver("bank"), datetime.now(UTC)
    write(project, "bank", "rates", "def f(:\n")

    def told() -> bool:
        errors = [e["stack_trace"] for e in p.get("importErrors")["import_errors"]]
        return any("rates.py" in e for e in errors)

    def listed() -> bool:
        dags = {d["dag_id"]: d for d in p.get("dags?dag_id_pattern=streams_")["dags"]}
        assert dags.keys() == {"streams_shop", "streams_bank"}
        return all(datetime.fromisoformat(d["last_parsed_time"]) > broken for d in dags.values())

    wait_until(told, TIMEOUT, every=1, what="Airflow shows the mistake")
    wait_until(listed, TIMEOUT, every=1, what="both DAGs were read again")
    assert second.session.kill()
    p.flows("sales", "returns", "rates")
    assert p.driver("shop").incarnation != second.incarnation, "it is looked after as before"
    assert p.driver("bank").incarnation == bank.incarnation, "it runs on"
