"""A project of views, its instances as processes of their own, and what they answer."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from penstock import catalog
from penstock.control import Control, DriverRow
from penstock.host.ports import free_port
from penstock.kafka.admin import admin, ensure_topics
from penstock.testing import Record, send
from penstock.views.cluster.partition_assignment import partition_of
from tests.chaos.drivers import Drivers
from tests.chaos.projects import other_project
from tests.support.http_client import HTTP
from tests.support.wait import wait_until

PARTITIONS = 4
TOPIC = "agents"
AGENT = "account STRING NOT NULL, platform STRING, labels MAP<STRING,STRING>, online BOOLEAN, seen BIGINT, load DOUBLE"
BY = ("account", "platform", "online", "labels", "seen")
DECLARED = f"""
from penstock.streams import Topic, View

AGENTS = Topic("{TOPIC}", partitions={PARTITIONS}, compacted=True)
FLEET = View("fleet", AGENTS, schema="{AGENT}", query_by=tuple({json.dumps(BY)}))
"""


def agent(key: str, value: Mapping[str, Any] | str | None) -> Record:
    """A record where a key's records lie."""
    text = value if value is None or isinstance(value, str) else json.dumps(value)
    return Record(TOPIC, key, text, partition_of(key, PARTITIONS))


class Fleet:
    """ViewInstances of the views of one project, counted from 1."""

    def __init__(self, drivers: Drivers, port: int, home: Path) -> None:
        self.drivers, self.control, self.home, self._port = drivers, drivers.control, home, port
        self.rows: dict[int, DriverRow] = {}

    def start(self, *numbers: int, ready: bool = True) -> None:
        for number in numbers:
            self.rows[number] = self.drivers.launch(f"views-{number}")
        for number in numbers if ready else ():
            self.ready(number)

    def ready(self, number: int) -> None:
        log = self.rows[number].log
        wait_until(lambda: self.status(number, "/v1/ready") == 200, what=f"views-{number} is ready: {log}")

    def known(self, *numbers: int) -> None:
        """Wait until each of these knows an owner of every partition."""

        def all_owned(number: int) -> bool:
            owners = self.get(number, "/v1/views/fleet").json()["owners"]
            return len(owners) == PARTITIONS and all(owners.values())

        for number in numbers:
            wait_until(lambda number=number: all_owned(number), what=f"views-{number} knows all owners")  # type: ignore[misc]

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self._port + number - 1}"

    def get(self, number: int, path: str, **given: Any) -> httpx.Response:
        return HTTP.get(self.url(number) + path, **given)

    def ask(self, number: int, what: str, body: Any, **given: Any) -> httpx.Response:
        url = f"{self.url(number)}/v1/views/fleet/{what}"
        return HTTP.post(url, json=body, **given)

    def status(self, number: int, path: str) -> int:
        try:
            return self.get(number, path).status_code
        except httpx.HTTPError:
            return 0

    def row(self, number: int, key: str) -> Any:
        """The value of a key, or the status if there is none."""
        found = self.get(number, f"/v1/views/fleet/rows/{key}")
        return found.json()["value"] if found.status_code == 200 else found.status_code

    def kill(self, number: int) -> None:
        row = self.drivers.row(self.rows[number].incarnation)
        assert row.pid
        os.kill(row.pid, signal.SIGKILL)
        wait_until(lambda: row.session.alive() is False)

    def stop(self, number: int) -> None:
        """In order."""
        row = self.drivers.row(self.rows[number].incarnation)
        assert row.pid
        os.kill(row.pid, signal.SIGTERM)
        wait_until(lambda: row.session.alive() is False)

    def put(self, records: Iterable[Record]) -> None:
        send(self.drivers.bootstrap, list(records))

    def store(self, number: int) -> Path:
        return self.home / "views" / f"views-{number}" / "fleet.db"

    def log(self, number: int) -> str:
        return Path(self.rows[number].log).read_text()


@contextmanager
def serving(folder: Path, bootstrap: str, instances: int, standby: int = 0, **variables: object) -> Iterator[Fleet]:
    """The project's declarations, topics and control database; every instance that was started is gone at the end."""
    home, project, port = folder / "home", folder / "project", free_port(instances)
    jobs = project / "jobs" / "fleet"
    jobs.mkdir(parents=True)
    (jobs / "kept.py").write_text(DECLARED)
    url = f"sqlite:///{folder / 'control.db'}"
    given = {
        "PENSTOCK_HOME": home,
        "PENSTOCK_KAFKA_BOOTSTRAP": bootstrap,
        "PENSTOCK_CONTROL_URL": url,
        "PENSTOCK_VIEWS_INSTANCES": instances,
        "PENSTOCK_VIEWS_STANDBY": standby,
        "PENSTOCK_VIEWS_PORT": port,
        **variables,
    }
    with other_project(project, given):
        declared = catalog.load(project)
        ensure_topics(declared.topics.values(), bootstrap)
        control = Control(url)
        control.migrate()
        control.sync(declared)
        try:
            yield Fleet(Drivers(control, bootstrap), port, home)
        finally:
            for row in control.drivers(live=False):
                row.session.kill()
            control.engine.dispose()
            admin(bootstrap).delete_topics([TOPIC])[TOPIC].result(30)
