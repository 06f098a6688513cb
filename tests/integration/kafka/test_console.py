"""`penstock topics send` and `read` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

import pytest
from typer.testing import CliRunner

from penstock import testing
from penstock.catalog import Catalog, build
from penstock.cli import app
from penstock.codec.heartbeat import HEARTBEAT_KEY
from penstock.devstack.servers.kafka import Broker
from penstock.errors import BrokerError, BrokerRefused
from penstock.kafka import console
from penstock.kafka.admin import ensure_topics
from penstock.settings import settings
from penstock.streams import EmitFinal, Input, Stream, Topic, TopicOutput

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("orders")]

ORDER = "shop STRING NOT NULL, amount DOUBLE NOT NULL, at BIGINT NOT NULL"
GOOD = '{"shop":"north","amount":2.50,"at":1700000000000}'


@pytest.fixture
def orders(fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Brokers with a topic that a stream reads."""
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", fresh_broker.bootstrap)
    settings.cache_clear()
    catalog = _catalog()
    monkeypatch.setattr("penstock.catalog.partial_catalog", lambda: (catalog, []))
    ensure_topics([Topic("orders", partitions=2)], fresh_broker.bootstrap)
    yield fresh_broker.bootstrap
    settings.cache_clear()


def _catalog() -> Catalog:
    given = Input(Topic("orders"), schema=ORDER, event_time="timestamp_millis(at)")
    output, output_mode = TopicOutput(Topic("totals"), "shop", "amount"), EmitFinal(timedelta(minutes=1), timedelta(0))
    return build([Stream("totals", "shop", {"orders": given}, lambda orders: orders, output, output_mode)])


def run(*args: str, given: str | bytes | None = None, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["topics", *args], input=given)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout, result.stderr


def values(text: str) -> list[object]:
    return [json.loads(line)["value"] for line in text.splitlines()]


def test_what_is_sent_is_read() -> None:
    places, said = run("send", "orders", GOOD, GOOD, "--key", "a", "--header", "source=test")
    assert len(places.splitlines()) == 2
    assert said == "sent 2 records to orders\n"
    lines = run("read", "orders")[0].splitlines()
    assert [line.split("  ")[2:] for line in lines] == [["a", GOOD]] * 2
    (first, _) = map(json.loads, run("read", "orders", "--json")[0].splitlines())
    assert (first["key"], first["value"]["shop"], first["headers"]) == ("a", "north", [["source", "test"]])


def test_a_value_that_a_stream_would_put_aside_is_refused() -> None:
    _, said = run("send", "orders", GOOD, '{"shop":"north","at":1}', code=1)
    assert "stream totals would write record 2 as a dead letter" in said
    assert "field amount is missing or null" in said
    assert ORDER in said
    assert run("read", "orders") == ("", "topic orders has no record\n")
    run("send", "orders", "anything", "--no-check")
    assert values(run("read", "orders", "--json")[0]) == ["anything"]


def test_lines_of_standard_input_are_records() -> None:
    given = f"a\t{GOOD}\nb\t{GOOD}\na\n".encode()
    assert run("send", "orders", "--keyed", given=given)[1] == "sent 3 records to orders\n"
    read = [json.loads(line) for line in run("read", "orders", "--key", "a", "--json")[0].splitlines()]
    assert [(one["key"], one["value"] is None) for one in read] == [("a", False), ("a", True)]
    run("send", "orders", "--key", "b", "--tombstone")
    assert values(run("read", "orders", "--key", "b", "--json")[0])[-1] is None


def test_where_reading_begins_and_ends() -> None:
    for minute in range(15):
        run("send", "orders", GOOD, "--key", str(minute), "--at", f"2026-01-31T12:{minute:02d}:00")
    assert len(run("read", "orders")[0].splitlines()) == 10
    assert run("read", "orders", "-n", "1")[0].split("  ")[2] == "14"
    assert len(run("read", "orders", "--from", "beginning")[0].splitlines()) == 15
    assert len(run("read", "orders", "--from", "2026-01-31T12:05:00")[0].splitlines()) == 10
    assert len(run("read", "orders", "--from", "beginning", "-n", "3")[0].splitlines()) == 3
    assert run("read", "orders", "--from", "end")[0] == ""
    assert "no place to start at" in run("read", "orders", "--from", "yesterday", code=1)[1]


def test_reading_goes_on_with_what_comes(orders: str) -> None:
    run("send", "orders", GOOD)
    found = console.read("orders", orders, "beginning", follow=True)
    assert len(list(islice(found, 1))) == 1
    run("send", "orders", GOOD)
    assert len(list(islice(found, 1))) == 1


def test_partitions_that_are_added_are_followed(orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "NEW_PARTITIONS_INTERVAL", 0.5)
    run("send", "orders", GOOD)
    found = console.read("orders", orders, "beginning", follow=True)
    assert len(list(islice(found, 1))) == 1
    ensure_topics([Topic("orders", partitions=4)], orders)
    testing.send(orders, [testing.Record("orders", "a", GOOD, partition) for partition in range(4)])
    assert sorted(one.location.partition for one in islice(found, 4)) == [0, 1, 2, 3]


def test_a_time_before_1970_is_before_all_records(orders: str) -> None:
    testing.send(orders, [testing.Record("orders", "a", GOOD, 0, timestamp=5)])
    # In milliseconds this is -1, by which Kafka means the end.
    for at in ("1969-12-31T23:59:59.999", "1960-01-01T00:00:00"):
        assert len(run("read", "orders", "--from", at)[0].splitlines()) == 1


def test_numbers_keep_their_digits_in_values_of_several_lines(orders: str) -> None:
    testing.send(orders, [testing.Record("orders", "a", '{"n":\n12345678901234567890123.10}', 0)])
    assert '{"n": 12345678901234567890123.10}' in run("read", "orders", "--json")[0]


def test_heartbeats_and_open_transactions_are_left_out(orders: str) -> None:
    testing.send(
        orders, [testing.Record("orders", HEARTBEAT_KEY.decode(), "beat"), testing.Record("orders", "a", GOOD)]
    )
    assert len(run("read", "orders")[0].splitlines()) == 1
    assert len(run("read", "orders", "--heartbeats")[0].splitlines()) == 2


def test_a_topic_that_is_not_there_is_told(orders: str) -> None:
    for args in (("read", "ordres"), ("read", "ordres", "--from", "end"), ("send", "ordres", "x", "--no-check")):
        assert "topic ordres does not exist" in run(*args, code=1)[1]
    with pytest.raises(BrokerError, match=r"not all records|cannot be sent"):
        console.send("orders", [console.OutgoingRecord(b"a", b"x" * 3_000_000)], orders)


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(orders: str) -> None:
    ensure_topics([Topic("latest-orders", compacted=True)], orders)
    assert "needs a key" in run("send", "latest-orders", "x", "--no-check", code=1)[1]


@pytest.mark.parametrize("config", [{"cleanup.policy": "shrink"}, {"no.such.setting": "1"}])
def test_a_setting_that_the_broker_refuses_is_one_clear_line(orders: str, config: dict[str, str]) -> None:
    for name in ("new", "orders"):
        with pytest.raises(BrokerRefused, match=rf"topic {name} could not be .*correct the topic's `config`"):
            ensure_topics([Topic(name, partitions=2, config=config)], orders)
