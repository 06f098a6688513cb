"""Dead letters of a sink that runs are discarded by the command, and a later replay writes only the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock import cli
from penstock.catalog import build
from penstock.cli import dead_letters, sinks
from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from penstock.model.sql.sink_file import parse
from penstock.settings import settings
from penstock.sinks.core.stream import sink_stream
from penstock.streams import Stream, Topic
from penstock.testing import Record, create, read, running, send
from tests.support.mongodb import fresh, there

pytestmark = pytest.mark.integration

ORDERS = Topic("orders", partitions=1)
LETTERS = "bills-dead-letter"
SINK = """UPSERT INTO mongodb.`{database}`.c READ orders AS JSON (id STRING NOT NULL, n BIGINT NOT NULL) KEY (id)
AS SELECT id, n FROM orders"""
Command = Callable[..., Any]


@pytest.fixture
def database(mongodb_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database[Any]]:
    monkeypatch.setenv("PENSTOCK_MONGODB_URL", mongodb_url)
    settings.cache_clear()
    with fresh(mongodb_url) as made:
        yield made
    settings.cache_clear()


@pytest.fixture
def bills(database: Database[Any], fresh_broker: Broker) -> Stream:
    stream = sink_stream(parse(SINK.format(database=database.name), Path("sql/sinks/bills.sql")), {"orders": ORDERS})
    create(fresh_broker.bootstrap, *stream.topics())
    return stream


@pytest.fixture
def command(
    bills: Stream, fresh_broker: Broker, spark: SparkSession, control: Control, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """Runs a command of Penstock; what it prints as JSON."""

    @contextmanager
    def session(_: str) -> Iterator[SparkSession]:
        yield spark

    def run(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(cli.app, [*words, "--json"])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", fresh_broker.bootstrap)
    settings.cache_clear()
    monkeypatch.setattr(sinks, "session", session)
    monkeypatch.setattr(dead_letters, "connect", lambda: control)
    for where in ("penstock.catalog", "penstock.cli.sinks"):
        monkeypatch.setattr(f"{where}.partial_catalog", lambda: (build([bills]), []))
    yield run
    settings.cache_clear()


def test_a_later_replay_writes_only_those_that_were_not_discarded(
    spark: SparkSession,
    fresh_broker: Broker,
    bills: Stream,
    database: Database[Any],
    command: Command,
    control: Control,
    tmp_path: Path,
) -> None:
    bootstrap = fresh_broker.bootstrap

    def order(name: str, n: int) -> Record:
        return Record("orders", name, json.dumps({"id": name, "n": n}))

    def replayed(*options: str) -> dict[str, str]:
        return {one["place"]: one["said"].partition(":")[0] for one in command("sinks", "replay", "bills", *options)}

    # Documents that no sink has written stay as they are, and what would replace them is refused.
    database.c.insert_many({"_id": name, "by": "hand"} for name in "bcde")
    with running(bills, spark, bootstrap, tmp_path) as run:
        send(bootstrap, [order(name, n) for n, name in enumerate("abcdef")])
        run.process_all_available()
        assert (run.figures.dead, there(database)["a"], there(database)["f"]) == (
            4,
            {"id": "a", "n": 0},
            {"id": "f", "n": 5},
        )

        chosen = ("dead-letters", "discard", LETTERS, "--place", "0:1", "--place", "orders[0]@3")
        assert [one["discarded"] for one in command(*chosen, "--dry-run")] == [False, False]
        assert [one["discarded"] for one in command(*chosen, "--yes", "--note", "by hand")] == [True, True]
        assert [one["ended"] for one in command(*chosen, "--yes")] == ["discarded", "discarded"]
        [action] = control.actions(9)
        assert (action["verb"], action["target"]) == ("discard", LETTERS)
        assert action["detail"] == "by hand; 2 dead letters; places 0:1, orders[0]@3"

        # The sink goes on: nobody else's writes are shut out, and a record of a discarded key is one like any other.
        send(bootstrap, [order("g", 6), order("b", 7)])
        run.process_all_available()
        assert (run.figures.dead, run.figures.restarts) == (5, 0)
        assert there(database)["g"] == {"id": "g", "n": 6}

        would = replayed("--all", "--dry-run")
        assert would == {
            "orders[0]@1": "discarded before", "orders[0]@2": "would be written, if the store takes it",
            "orders[0]@3": "discarded before", "orders[0]@4": "would be written, if the store takes it",
            "orders[0]@7": "would be written, if the store takes it",
        }  # fmt: skip
        assert there(database)["c"] == {"by": "hand"}, "a dry run writes nothing"
        database.c.delete_many({"by": "hand"})
        assert len(control.actions(9)) == 1, "a dry run is not recorded"
        assert replayed("--place", "orders[0]@1", "--recorded") == {"orders[0]@1": "discarded before"}
        assert len(control.actions(9)) == 1, "the page records it itself"
        after = {place: "written" if said.startswith("would") else said for place, said in would.items()}
        assert replayed("--all", "--note", "there is room now") == after
        action = control.actions(1)[0]
        assert (action["verb"], action["target"]) == ("replay", "bills")
        assert action["detail"] == "there is room now; 5 dead letters"
        assert {key: doc["n"] for key, doc in there(database).items()} == {
            "a": 0, "b": 7, "c": 2, "e": 4, "f": 5, "g": 6,
        }  # fmt: skip
        again = replayed("--all", "--again")
        assert [place for place, said in again.items() if said == "discarded before"] == ["orders[0]@1", "orders[0]@3"]
        # What was replayed is not discarded any more.
        ended = command("dead-letters", "discard", LETTERS, "--all", "--yes")
        assert sorted(one["ended"] for one in ended) == ["discarded"] * 2 + ["replayed"] * 3
        send(bootstrap, [order("h", 8)])
        run.process_all_available()
        assert (run.figures.restarts, there(database)["h"]["n"]) == (0, 8)
    assert "d" not in there(database)
    # The letters are still there, until they expire.
    assert len(read(bootstrap, LETTERS)) == 5
