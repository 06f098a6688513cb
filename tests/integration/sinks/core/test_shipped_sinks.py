"""The shipped sinks against real stores: the demo's tables, changes of tests, walk-ins, summaries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from bson.decimal128 import Decimal128
from pymongo import MongoClient
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.kafka.admin import admin, partition_counts
from penstock.model.sql import sink_file
from penstock.model.topic import COMMITS
from penstock.settings import PROJECT, settings
from penstock.sinks.core.stream import sink_stream
from penstock.testing import Record, create, read, running, send
from tests.support.elasticsearch import Server
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

SINKS = sink_file.load(PROJECT / "sql" / "sinks")
Run = Callable[[str, str], None]


def record(topic: str, key: dict[str, Any], **value: Any) -> Record:
    """As a capture writes it; a tombstone without columns."""
    text = json.dumps({**key, **value}, separators=(",", ":")) if value else None
    return Record(topic, json.dumps(key, separators=(",", ":")), text)


@pytest.fixture
def run(
    spark: SparkSession, fresh_broker: Broker, search: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """Runs a sink over all that its topics hold; under another name once more, as no mark says that it is written."""
    search.clear()
    monkeypatch.setenv("PENSTOCK_ELASTICSEARCH_URL", search.url)
    settings.cache_clear()

    def one(name: str, called: str) -> None:
        stream = replace(sink_stream(SINKS[name], catalog.load().topics), name=called)
        with running(stream, spark, fresh_broker.bootstrap, tmp_path / called) as started:
            started.process_all_available()
            figures = started.figures
            assert (figures.dead, figures.error) == (0, None)
            assert figures.rows_out, "it is given to the store"
            records = sum(len(read(fresh_broker.bootstrap, given.topic)) for given in SINKS[name].reads)
            assert figures.rows_in == records, "each is counted once, though tombstones go another way"

    yield one
    settings.cache_clear()


def sent(broker: Broker, names: list[str], *records: Record) -> None:
    streams = [sink_stream(SINKS[name], catalog.load().topics) for name in names]
    topics = {topic.name: topic for stream in streams for topic in stream.topics()}
    create(broker.bootstrap, *topics.values(), COMMITS)
    send(broker.bootstrap, list(records))


def test_every_shipped_sink_is_one_of_a_known_topic() -> None:
    topics = catalog.load().topics
    assert {read.topic for sink in SINKS.values() for read in sink.reads} <= topics.keys()
    assert {sink.store for sink in SINKS.values()} == {"elasticsearch", "mongodb", "influxdb"}


@pytest.mark.long
def test_tests_as_they_are_and_each_of_their_changes(run: Run, fresh_broker: Broker, search: Server) -> None:
    row = {"account_id": 1, "kind": "http", "target": "x", "every_seconds": 300, "enabled": 1, "deleted": 0}
    times = [f"2026-{month}-22T10:00:00.123456" for month in (10, 11, 11)]
    changes = [
        record("tests", {"id": 1}, name="Shop front", updated_at=times[0], **row),
        record("tests", {"id": 2}, name="Intranet", updated_at=times[1], **row),
        record("tests", {"id": 1}, name="Order form", updated_at=times[2], **row | {"enabled": 0}),
        record("tests", {"id": 2}),
    ]
    sent(fresh_broker, ["tests-search", "tests-timeline"], *changes)
    run("tests-search", "now")
    for called in ("first", "again"):
        run("tests-timeline", called)
    shown = {"account_id": 1, "kind": "http", "target": "x", "every_seconds": 300}
    now = {"id": 1, "name": "Order form", "enabled": False, "updated_at": "2026-11-22T10:00:00.123456Z"}
    assert search.documents("tests") == {"1": {**shown, **now}}
    found = {index: search.documents(index) for index in ("tests-timeline-2026.10", "tests-timeline-2026.11")}
    told = {index: sorted(one["name"] for one in documents.values()) for index, documents in found.items()}
    assert told == {"tests-timeline-2026.10": ["Shop front"], "tests-timeline-2026.11": ["Intranet", "Order form"]}


@pytest.mark.long
def test_a_topic_that_was_made_again_brings_nothing_older_back(run: Run, fresh_broker: Broker, search: Server) -> None:
    """Its offsets begin anew, and what somebody writes into it may be older than what is there, or was deleted."""

    def named(key: int, name: str, at: int) -> Record:
        return replace(record("tests", {"id": key}, name=name), timestamp=1_700_000_000_000 + at)

    gone = replace(record("tests", {"id": 2}), timestamp=1_700_000_003_000)
    sent(fresh_broker, ["tests-search"], named(1, "now", 1000), named(2, "two", 2000), gone)
    run("tests-search", "first")
    client = admin(fresh_broker.bootstrap)
    client.delete_topics(["tests"])["tests"].result(30)
    wait_until(lambda: "tests" not in partition_counts(client, fresh_broker.bootstrap))
    sent(fresh_broker, ["tests-search"], named(1, "older", 500), named(2, "late", 2500), named(3, "new", 100))
    run("tests-search", "again")
    assert {key: found["name"] for key, found in search.documents("tests").items()} == {"1": "now", "3": "new"}


def test_labels_have_a_key_of_two_columns(run: Run, fresh_broker: Broker, search: Server) -> None:
    value = {"value": "eu", "updated_at": "2026-11-22T10:00:00.000000", "deleted": 0}
    region, office = {"test_id": 1, "name": "region"}, {"test_id": 1, "name": 'a "b", c'}
    changes = [record("labels", region, **value), record("labels", office, **value), record("labels", region)]
    sent(fresh_broker, ["labels-search"], *changes)
    run("labels-search", "first")
    shown = {**office, "value": "eu", "updated_at": "2026-11-22T10:00:00Z"}
    [(key, found)] = search.documents("labels").items()
    assert (json.loads(key), {**found, "updated_at": shown["updated_at"]}) == ([1, 'a "b", c'], shown)


def test_alert_rules_keep_all_digits_of_their_threshold(
    run: Run, fresh_broker: Broker, mongodb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_MONGODB_URL", mongodb_url)
    settings.cache_clear()
    row = {"account_id": 2, "metric": "pageLoadTime", "comparison": "over", "window_seconds": 300, "enabled": 1}
    old = "2026-11-22T10:00:00.000000"
    changes = [record("alert-rules", {"id": n}, threshold=f"{n}.500001", updated_at=old, **row) for n in (4, 5)]
    sent(fresh_broker, ["alert-rules-documents"], *changes, record("alert-rules", {"id": 5}))
    run("alert-rules-documents", "first")
    with MongoClient[Any](mongodb_url, tz_aware=True) as client:
        [found] = client["penstock"]["alert-rules"].find()
        assert (found["_id"], found["threshold"]) == ("4", Decimal128(Decimal("4.500001")))
        assert (found["enabled"], found["updated_at"]) == (True, datetime(2026, 11, 22, 10, tzinfo=UTC))
        assert "account_id" in str(client["penstock"]["alert-rules"].index_information())
        client.drop_database("penstock")


@pytest.mark.long
def test_a_walk_in_gets_its_contact_once_that_is_known(run: Run, fresh_broker: Broker, search: Server) -> None:
    """In whatever order the two topics are read, and read again."""
    noon = 1_795_521_600_000
    walks = [{"device": d, "business": "7", "since": noon - 120_000, "timestamp": noon} for d in ("d1", 'd"2')]
    later = {**walks[0], "since": noon + 10 * 86_400_000, "timestamp": noon + 10 * 86_400_000}
    plain = [Record("walk-ins", "k", json.dumps(one)) for one in (*walks, later)]
    named = Record("enriched-walk-ins", "k", json.dumps({**walks[0], "contact": "ann@shop"}))
    sent(fresh_broker, ["walk-ins-timeline"], named, *plain, named)
    for called in ("first", "again"):
        run("walk-ins-timeline", called)
    found = {index: search.documents(index) for index in ("walk-ins-timeline-2026.11", "walk-ins-timeline-2026.12")}
    told = {
        index: sorted((one["device"], one["contact"], one["at"][:19], one["since"][:19]) for one in documents.values())
        for index, documents in found.items()
    }
    at, since = "2026-11-24T12:00:00", "2026-11-24T11:58:00"
    again = ("d1", None, "2026-12-04T12:00:00", "2026-12-04T12:00:00")
    assert told == {
        "walk-ins-timeline-2026.11": [('d"2', None, at, since), ("d1", "ann@shop", at, since)],
        "walk-ins-timeline-2026.12": [again],
    }


def test_counts_of_walk_ins_are_the_newest(
    run: Run, fresh_broker: Broker, mongodb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_MONGODB_URL", mongodb_url)
    settings.cache_clear()
    ann, bob = {"business": "7", "contact": "ann"}, {"business": "7", "contact": "bob"}
    more = {"base": None, "as_of": None, "walks": [{"moment": 1, "device": "d1"}]}
    changes = [record("walk-in-counts", ann, count=n, **more) for n in (1, 2)]
    changes += [record("walk-in-counts", bob, count=5, **more), record("walk-in-counts", bob)]
    sent(fresh_broker, ["walk-in-counts-documents"], *changes)
    run("walk-in-counts-documents", "first")
    with MongoClient[Any](mongodb_url) as client:
        [found] = client["penstock"]["walk-in-counts"].find()
        client.drop_database("penstock")
    assert (found["_id"], found["contact"], found["count"]) == ('["7","ann"]', "ann", 2)


def test_assignments_as_they_are_and_each_that_was_made(
    run: Run, fresh_broker: Broker, search: Server, mongodb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_MONGODB_URL", mongodb_url)
    settings.cache_clear()
    shop = {"id": 1, "name": "Shop front", "kind": "http", "target": "https://x/", "every_seconds": 300}
    made = [("a1", True, [shop], 1), ("a2", True, [shop], 2), ("a1", False, [], 3)]
    changes = [
        Record(
            "assignments", agent,
            json.dumps({"agent": agent, "account": "1", "online": online, "tests": tests, "timestamp": n}),
            timestamp=1_790_000_000_000 + n,
        )
        for agent, online, tests, n in made
    ]  # fmt: skip
    sent(fresh_broker, ["assignments-timeline", "assignments-documents"], *changes)
    for called in ("first", "again"):
        run("assignments-timeline", called)
    told = search.documents("assignments-timeline-2026.09").values()
    assert sorted((one["agent"], one["online"], [t["id"] for t in one["tests"]]) for one in told) == [
        ("a1", False, []), ("a1", True, [1]), ("a2", True, [1]),
    ]  # fmt: skip
    run("assignments-documents", "now")
    with MongoClient[Any](mongodb_url, tz_aware=True) as client:
        found = {one["_id"]: one for one in client["penstock"]["assignments"].find()}
        client.drop_database("penstock")
    assert {agent: (one["online"], one["tests"]) for agent, one in found.items()} == {
        "a1": (False, []), "a2": (True, [shop]),
    }  # fmt: skip
    assert found["a2"]["last_seen"] == datetime(1970, 1, 1, 0, 0, 0, 2000, tzinfo=UTC)


@pytest.mark.long
def test_agents_and_alerts_are_found(run: Run, fresh_broker: Broker, search: Server) -> None:
    noon = 1_795_521_600_000
    labels = {"region": "eu", "site.name": "Berlin", "": "?"}
    said = {"account": "1", "platform": "linux", "version": "1.2", "labels": labels, "since": noon, "timestamp": noon}
    agents = [
        Record("active-agents", agent, json.dumps({"agent": agent, **said, "online": online}))
        for agent, online in (("a1", True), ("a2", True), ("a1", False))
    ]
    alert = {
        "account": "1", "rule": 7, "metric": "pageLoadTime", "comparison": "over", "threshold": 4.5, "value": 6.0,
        "count": 3, "window_start": noon - 300_000, "window_end": noon,
    }  # fmt: skip
    key = json.dumps({"account": "1", "rule": 7})
    alerts = [Record("alerts", key, json.dumps(alert | {"window_end": end})) for end in (noon, noon + 300_000)]
    sent(fresh_broker, ["active-agents-search", "alerts-timeline"], *agents, *alerts)
    run("active-agents-search", "now")
    found = search.documents("active-agents")
    assert {agent: (one["online"], one["labels"]) for agent, one in found.items()} == {
        "a1": (False, labels), "a2": (True, labels),
    }  # fmt: skip
    for called in ("first", "again"):
        run("alerts-timeline", called)
    told = search.documents("alerts-timeline-2026.11").values()
    assert sorted((one["at"][:19], one["value"]) for one in told) == [
        ("2026-11-24T12:00:00", 6.0), ("2026-11-24T12:05:00", 6.0),
    ]  # fmt: skip


def test_a_summary_that_is_written_again_takes_its_own_place(run: Run, fresh_broker: Broker, search: Server) -> None:
    key = {"environment": "prod", "metric": "pageLoadTime", "window": 1_501_273_500_000}
    figures = {"average": 1.5, "min": 1.0, "max": 2.0, "stddev": 0.5, "p90": 2.0}
    changes = [record("metric-summaries", key, count=count, **figures) for count in (2, 3)]
    sent(fresh_broker, ["metric-summaries-search"], *changes)
    run("metric-summaries-search", "first")
    [found] = search.documents("metric-summaries").values()
    assert (found["count"], found["p90"], found["at"][:19]) == (3, 2.0, "2017-07-28T20:25:00")
