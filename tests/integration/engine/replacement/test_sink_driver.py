"""The documents of a sink are replaced by real drivers, which are killed, while records come."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from penstock.control import Actor
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.errors import ReplacementRefused
from penstock.kafka.admin import ensure_topics
from penstock.model.declaration import replacement_app
from penstock.streams import Topic
from penstock.supervision.release import start_replacement
from penstock.supervision.replacement_changes import change_replacement
from penstock.testing import Record, create, send
from tests.chaos.drivers import drivers
from tests.support.mongodb import fresh
from tests.support.replaced_app import ReplacedApp
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

ME = Actor("me", "cli")
APP, NAME = "shown", "shown-numbers"
NUMBERS = Topic("numbers", partitions=2)
SINK = """UPSERT INTO mongodb.`{database}`.numbers READ numbers AS JSON (n BIGINT NOT NULL) APP shown
AS SELECT {columns} FROM numbers"""


@pytest.fixture
def database(mongodb_url: str) -> Iterator[Database[Any]]:
    with fresh(mongodb_url) as made:
        yield made


@pytest.fixture
def app(
    broker: Broker, mariadb: MariaDB, tmp_path: Path, mongodb_url: str, database: Database[Any]
) -> Iterator[ReplacedApp]:
    write(tmp_path, database, "n")
    ensure_topics([NUMBERS], broker.bootstrap)
    create(broker.bootstrap, Topic(f"{NAME}-dead-letter", partitions=1), Topic("numbers-dead-letter", partitions=1))
    with drivers(broker, mariadb, tmp_path / "home", tmp_path / "project", PENSTOCK_MONGODB_URL=mongodb_url) as made:
        yield ReplacedApp(made.control, file_of(tmp_path), APP, NAME)


def file_of(folder: Path) -> Path:
    return folder / "project" / "sql" / "sinks" / f"{NAME}.sql"


def write(folder: Path, database: Database[Any], columns: str) -> None:
    file = file_of(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SINK.format(database=database.name, columns=columns))


@contextmanager
def sending(bootstrap: str) -> Iterator[list[int]]:
    """Send a number every 50 ms meanwhile; all that are sent."""
    sent: list[int] = []
    stop = threading.Event()

    def send_numbers() -> None:
        while not stop.wait(0.05):
            n = len(sent)
            send(bootstrap, [Record(NUMBERS.name, str(n), json.dumps({"n": n}), n % 2)])
            sent.append(n)

    thread = threading.Thread(target=send_numbers)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


def test_documents_are_replaced_while_the_sink_runs(
    app: ReplacedApp, broker: Broker, database: Database[Any], tmp_path: Path
) -> None:
    def documents() -> dict[int, set[str]]:
        app.tick()
        return {one["n"]: one.keys() - {"_id", "_v"} for one in database["numbers"].find()}

    def versions() -> list[str]:
        app.tick()
        return [name for name in database.list_collection_names() if ".version" in name]

    with sending(broker.bootstrap) as sent:
        wait_until(lambda: len(documents()) > 20, 240, every=2.0, what="documents are written")
        write(tmp_path, database, "n, n * n AS square")
        start_replacement(app.control, APP, NAME, ME, {"cut": "manual"})
        app.wait("following")
        assert versions()
        change_replacement(app.control, app.replacement(), "cancel", ME)
        wait_until(lambda: not versions(), 120, every=0.5, what="nothing is left of what was cancelled")
        start_replacement(app.control, APP, NAME, ME, {"cut": "manual", "rate": 100})
        app.wait("building", "following")
        app.kill(replacement_app(NAME))
        app.wait("following")
        assert {frozenset(columns) for columns in documents().values()} == {frozenset({"n"})}
        change_replacement(app.control, app.replacement(), "cut", ME)
        row = app.wait("cut")
        count = len(documents())
        wait_until(lambda: len(documents()) > count + 20, 240, every=2.0, what="the new version writes documents")
    wait_until(lambda: len(documents()) == len(sent), 120, every=2.0, what="all is written")
    assert documents() == {n: {"n", "square"} for n in range(len(sent))}
    assert row.figures["refused"] == 0
    assert versions() == ["numbers.version-before"]
    change_replacement(app.control, app.replacement(), "confirm", ME)
    assert versions() == []
    with pytest.raises(ReplacementRefused, match="cannot be confirmed; got: it is confirmed"):
        change_replacement(app.control, app.replacement(), "confirm", ME)
