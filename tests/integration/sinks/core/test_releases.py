"""Sinks of one app are added, changed and removed by releases while records arrive; the others continue."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from typer.testing import CliRunner

from penstock import catalog
from penstock.cli import app as penstock
from penstock.control import Control, ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.kafka.admin import ensure_topics
from penstock.settings import settings
from penstock.streams import Topic
from penstock.supervision import launch
from penstock.supervision.supervisor import Supervisor
from penstock.testing import Record, send
from tests.chaos.drivers import drivers
from tests.support.caches import clear_caches
from tests.support.mongodb import fresh, store
from tests.support.wait import wait_until

# Four drivers, one behind another, and three tries of the code.
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1800)]

APP = "going"
CLICKS = Topic("going-clicks", partitions=2)
SINK = """UPSERT INTO mongodb.{database}.{name} READ going-clicks AS JSON (n BIGINT NOT NULL) APP {app}
AS SELECT n, {more} AS more FROM `going-clicks`"""
OTHERS = ("first", "second")


class Clicks(threading.Thread):
    """Sends numbers, one behind another, until it is ended; sent: how many there are."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._ended, self.sent = bootstrap, threading.Event(), 0

    def run(self) -> None:
        while not self._ended.wait(0.2):
            numbers = range(self.sent, self.sent + 20)
            send(self._broker, [Record(CLICKS.name, str(n), f'{{"n": {n}}}', n % 2) for n in numbers])
            self.sent += 20

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.sent


class Going:
    """The app of the sinks, looked after as its DAG does, and what is in the store."""

    def __init__(self, control: Control, project: Path, database: Database[Any]) -> None:
        self.control, self._folder, self._database = control, project / "sql" / "sinks", database
        self._supervisor = Supervisor(control, APP, "test", self._command)

    @staticmethod
    def _command(incarnation: str) -> list[str]:
        return [sys.executable, "-m", "penstock.engine.driver", *launch.driver_arguments(APP, incarnation)]

    def put(self, name: str, more: str) -> None:
        text = SINK.format(database=self._database.name, name=name, app=APP, more=more)
        (self._folder / f"{name}.sql").write_text(text)

    def remove(self, name: str) -> None:
        (self._folder / f"{name}.sql").unlink()

    def declare(self) -> None:
        """Bring in what is in the files now, with the topics of dead letters that it has."""
        clear_caches()
        run("topics", "--apply")
        self.control.sync(catalog.load())

    def release(self) -> None:
        """As its form does."""
        self.declare()
        run("streams", "release", APP)
        row = self.control.app(APP)
        assert row

        def follows() -> bool:
            driver = next((d for d in self.control.drivers() if d.app == APP and d.state == "running"), None)
            return driver is not None and driver.release_seq == row.release_seq

        self.until(follows, "a driver of the release runs")

    def until(self, condition: Callable[[], object], what: str) -> None:
        def looked_after() -> bool:
            self._supervisor.tick()
            return bool(condition())

        wait_until(looked_after, 300, every=0.5, what=what)

    def progress(self) -> dict[str, ProgressRow]:
        return self.control.progress(APP)

    def there(self, name: str) -> dict[int, int]:
        return {found["n"]: found["more"] for found in self._database[name].find()}

    def has(self, name: str, upto: int) -> bool:
        return self._database[name].count_documents({"n": {"$lt": upto}}) == upto

    def mark(self, *names: str) -> None:
        """Mark what is in the store: to write it again would take the mark away."""
        for name in names:
            self._database[name].update_many({}, {"$set": {"mark": True}})

    def unmarked(self, name: str, upto: int) -> int:
        return self._database[name].count_documents({"n": {"$lt": upto}, "mark": {"$ne": True}})


def run(*args: str) -> str:
    result = CliRunner().invoke(penstock, args, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def database(tmp_path: Path) -> Iterator[tuple[str, Database[Any]]]:
    with store(tmp_path / "mongodb") as url, fresh(url) as made:
        yield url, made


@pytest.fixture
def going(
    fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path, database: tuple[str, Database[Any]]
) -> Iterator[Going]:
    url, there = database
    project = tmp_path / "project"
    (project / "sql" / "sinks").mkdir(parents=True)
    ensure_topics([CLICKS], fresh_broker.bootstrap)
    given = {"PENSTOCK_MONGODB_URL": url, "PENSTOCK_LEASE_TTL": 5}
    with drivers(fresh_broker, mariadb, tmp_path, project, **given) as made:
        yield Going(made.control, project, there)


def test_sinks_come_change_and_go_while_the_others_go_on(going: Going, fresh_broker: Broker) -> None:
    for name in OTHERS:
        going.put(name, "1")
    going.declare()
    clicks = Clicks(fresh_broker.bootstrap)
    clicks.start()

    def reach(*names: str) -> int:
        """Let them write all that is sent until now, and more of what is sent then; how much it was."""
        upto = clicks.sent + 20
        going.until(lambda: all(going.has(n, upto) and len(going.there(n)) > upto for n in names), f"{names} write")
        return upto

    try:
        settled = reach(*OTHERS)
        going.mark(*OTHERS)
        reach(*OTHERS)

        going.put("third", "1")
        going.release()
        added = reach(*OTHERS, "third")
        assert set(going.there("third").values()) == {1}
        going.mark("third")
        reach("third")

        going.put("third", "2")
        going.release()
        reach(*OTHERS, "third")
        going.until(lambda: 2 in going.there("third").values(), "the changed statement writes")
        found = going.there("third")
        assert {found[n] for n in range(added)} == {1}, "it goes on where it was"
        assert going.unmarked("third", added) == 0
        assert {n for n in range(max(found)) if n in found} >= set(range(added))

        going.remove("third")
        going.release()
        left = going.there("third")
        reach(*OTHERS)
        assert going.there("third") == left
    finally:
        sent = clicks.end()
    going.until(lambda: all(going.has(name, sent) for name in OTHERS), "all that was sent is there")
    for name in OTHERS:
        assert going.there(name) == dict.fromkeys(range(sent), 1)
        assert going.unmarked(name, settled) == 0, "nothing is written a second time"
    going.until(lambda: all(going.progress()[name].rows_out >= sent for name in OTHERS), "the figures say so")
    assert {name: going.progress()[name].rows_out for name in OTHERS} == dict.fromkeys(OTHERS, sent)
    assert going.control.desired(APP).keys() == set(OTHERS)
    assert going.control.leases().keys() == set(OTHERS)

    checkpoints = Path(settings().checkpoint_root)
    said = run("streams", "remove", "third")
    assert str(checkpoints / "third") in said.replace("\n", "")
    assert "penstock.third" in said
    assert "going-clicks" in said
    assert "first, second" in said
    assert "third-dead-letter" in said
    run("streams", "remove", "third", "--checkpoint")
    assert {path.name for path in checkpoints.iterdir()} == set(OTHERS)
