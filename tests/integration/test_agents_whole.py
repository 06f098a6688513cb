"""From a row in MariaDB to an answer by REST, all of it by processes as they run behind `make up`."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.devstack.demo_database import DemoDatabase
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.model.capture import APP as CAPTURES
from penstock.settings import PROJECT
from penstock.testing import Record, read, send
from tests.chaos.drivers import Drivers, drivers
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

AFTER = 8


class Fleet(threading.Thread):
    """Agents that check in every second, until they are silent."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="fleet")
        self.says: dict[str, dict[str, Any]] = {}
        self.over = threading.Event()
        self._place = bootstrap

    def run(self) -> None:
        while not self.over.wait(1):
            now = int(time.time() * 1000)
            said = [{"agent": agent, "timestamp": now, **says} for agent, says in self.says.copy().items()]
            send(self._place, [Record("check-ins", c["agent"], json.dumps(c)) for c in said])


@contextmanager
def checking_in(bootstrap: str) -> Iterator[Fleet]:
    fleet = Fleet(bootstrap)
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.over.set()
        fleet.join()


class Asked:
    """What the views answer."""

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}/v1/", timeout=30, trust_env=False)

    def get(self, path: str) -> Any:
        try:
            return self._client.get(path).json()
        except httpx.HTTPError:
            return {}

    def tests(self, *agents: str) -> list[list[int] | None]:
        """The ids of each one's tests."""
        rows = [self.get(f"views/assigned/rows/{agent}").get("value") for agent in agents]
        return [row and [test["id"] for test in row["tests"]] for row in rows]

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def platform(
    fresh_broker: Broker,
    mariadb: MariaDB,
    demo: DemoDatabase,  # noqa: ARG001
    tmp_path: Path,
) -> Iterator[tuple[Drivers, Asked]]:
    project, port = tmp_path / "project", free_port()
    for name in ("jobs", "sql"):
        # Nothing here alerts, and no store is there.
        shutil.copytree(PROJECT / name, project / name, ignore=shutil.ignore_patterns("alert*", "sinks"))
    given = {"PENSTOCK_AGENTS_RUN": 1, "PENSTOCK_AGENTS_OFFLINE_AFTER": f"PT{AFTER}S", "PENSTOCK_VIEWS_PORT": port}
    with ExitStack() as stack:
        started = stack.enter_context(drivers(fresh_broker, mariadb, tmp_path, project, **given))
        for app in ("agents", CAPTURES, "views-1"):
            started.launch(app)
        stack.enter_context(started.sending_heartbeats())
        asked = Asked(port)
        stack.callback(asked.close)
        yield started, asked


def test_what_an_agent_is_to_run_follows_the_database_and_the_agent(
    platform: tuple[Drivers, Asked], demo: DemoDatabase
) -> None:
    started, asked = platform

    def are(*wanted: list[int], of: tuple[str, ...] = ("eu", "us", "other")) -> None:
        wait_until(
            lambda: asked.tests(*of) == list(wanted), every=0.5, what=f"{of} have {wanted}, not {asked.tests(*of)}"
        )

    with checking_in(started.bootstrap) as fleet:
        fleet.says = {
            "eu": {"account": "1", "labels": {"region": "eu"}},
            "us": {"account": "1", "labels": {"region": "us"}},
            "other": {"account": "2", "labels": {"os": "linux", "office": "Springfield"}},
            "gone": {"account": "1", "labels": {"region": "us"}},
        }
        # As sql/tables has them: test 1 asks for region=eu, test 2 for nothing, both of account 1.
        are([1, 2], [2], [3], [2], of=(*fleet.says,))
        gone = fleet.says.pop("gone")
        # Added, changed, paused and deleted: each shows by itself.
        demo.add("tests", {"account_id": "1", "name": "added", "kind": "ping", "target": "acme.example"})
        demo.edit("labels", {"test_id": "1", "name": "region"}, {"value": "us"})
        demo.edit("tests", {"id": "2"}, {"enabled": "0"})
        demo.remove("tests", {"id": "3"}, hard=False)
        are([4], [1, 4], [])
        # Of another account now, and other labels.
        demo.edit("tests", {"id": "2"}, {"enabled": "1", "account_id": "2"})
        demo.edit("tests", {"id": "4"}, {"target": "changed.example"})
        fleet.says["eu"] = {"account": "1", "labels": {"region": "us"}}
        are([1, 4], [1, 4], [2])
        wait_until(lambda: asked.get("views/assigned/rows/us")["value"]["tests"][1]["target"] == "changed.example")
        # Meanwhile or by now.
        wait_until(lambda: asked.get("views/agents/rows/gone")["value"]["online"] is False)
        are([], of=("gone",))
        fleet.says["gone"] = gone
        are([1, 4], [1, 4], [2], [1, 4], of=("eu", "us", "other", "gone"))
    (event,) = [json.loads(r.value or "") for r in read(started.bootstrap, "agent-offline") if r.key == "gone"]
    assert event["timestamp"] == event["last_seen"] + AFTER * 1000
