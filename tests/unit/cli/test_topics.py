"""`penstock topics`: what it makes of what the broker says. The broker itself is met in the integration tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.catalog import BrokenFile, Catalog
from penstock.cli import topics
from penstock.control import Control
from penstock.errors import BrokerError, DeclarationError
from penstock.kafka.admin import TopicState
from penstock.kafka.dead_letters import RecordLocation
from penstock.kafka.record_lookup import TopicRecord
from penstock.streams import Topic

TOPICS = {name: Topic(name) for name in ("clicks", "metrics", "receipts")}
STATES = [
    TopicState(TOPICS["clicks"]),
    TopicState(TOPICS["metrics"], 2, {"cleanup.policy": ("compact", "delete")}, {0: 3, 1: 4}),
    TopicState(TOPICS["receipts"], 4, {}, {0: 1_000, 1: 200, 2: 0, 3: 34}),
]


@pytest.fixture(autouse=True)
def described(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control.record_heartbeat("receipts", control.now() - 3_000, 4, "triggerer")

    def describe(declared: Iterable[Topic], bootstrap: str) -> list[TopicState]:
        assert list(declared) == list(TOPICS.values())
        assert bootstrap
        return STATES

    monkeypatch.setattr(topics, "partial_catalog", lambda: (Catalog({}, TOPICS), []))
    monkeypatch.setattr(topics, "connect", lambda: control)
    monkeypatch.setattr(topics, "describe_topics", describe)


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(topics.app, args)
    assert result.exit_code == code, result.output
    return result.output


def test_topics_are_compared_with_their_declaration() -> None:
    lines = {line.split()[0]: line for line in map(str.rstrip, run().splitlines())}
    assert "missing" in lines["clicks"]
    assert "4 partitions declared; cleanup.policy is delete, declared compact" in lines["metrics"]
    assert lines["receipts"].split()[1:3] == ["4", "1.23k"]
    assert lines["receipts"].endswith("yes")
    assert "--apply" in lines["`penstock"]


def test_held_heartbeats_are_shown_with_the_reason(control: Control) -> None:
    assert "held" not in run()
    at = int(datetime(2026, 1, 31, 12, 3, 10, tzinfo=UTC).timestamp() * 1000)
    control.hold_heartbeats("receipts", at, "metric-bundles is down")
    control.hold_heartbeats("clicks", None, "up was not through its inputs yet")
    said = run()
    assert "heartbeats of receipts are held at 2026-01-31T12:03:10Z: metric-bundles is down" in said
    assert "heartbeats of clicks are held: up was not through its inputs yet" in said
    found = {t["name"]: (t["held"], t["held_at"]) for t in json.loads(run("--json"))["topics"]}
    assert found["receipts"] == ("metric-bundles is down", at)
    assert found["metrics"] == ("", None)


def test_invalid_files_are_printed_and_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BrokenFile(Path("jobs/shop/orders.py"), DeclarationError("a stream needs a name"))
    monkeypatch.setattr(topics, "partial_catalog", lambda: (Catalog({}, TOPICS), [broken]))
    monkeypatch.setattr(topics, "ensure_topics", lambda *_: ["created clicks with 4 partitions"])
    monkeypatch.setattr(topics, "SETTLE", 0)
    said = run("--apply", code=1)
    assert "created clicks" in said
    assert "orders.py" in said
    assert "a stream needs a name" in said


def test_as_json() -> None:
    found = {t["name"]: t for t in json.loads(run("--json"))["topics"]}
    assert (found["clicks"]["exists"], found["receipts"]["as_declared"]) == (False, True)
    assert found["metrics"]["differences"] == {"cleanup.policy": {"declared": "compact", "real": "delete"}}
    assert found["receipts"]["end_offsets"] == {"0": 1000, "1": 200, "2": 0, "3": 34}
    assert 2_900 < found["receipts"]["heartbeat_age_ms"] < 60_000
    assert found["clicks"]["alive_at"] is None


def test_apply_prints_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "SETTLE", 0.0)
    monkeypatch.setattr(topics, "ensure_topics", lambda *_: ["created clicks with 4 partitions"])
    assert run("--apply").startswith("created clicks with 4 partitions\n")
    assert json.loads(run("--apply", "--json"))["done"] == ["created clicks with 4 partitions"]


def test_apply_waits_until_brokers_have_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [STATES[:1], [TopicState(TOPICS["clicks"], 4)]]
    monkeypatch.setattr(topics, "ensure_topics", lambda *_: ["created clicks with 4 partitions"])
    monkeypatch.setattr(topics, "describe_topics", lambda *_: looks.pop(0))
    assert json.loads(run("--apply", "--json"))["topics"][0]["as_declared"] is True
    assert looks == []


def test_without_the_database_only_heartbeats_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Control(f"sqlite:///{tmp_path}/nothing.db")
    monkeypatch.setattr(topics, "connect", lambda: away)
    said = run()
    assert "heartbeats are unknown" in said
    assert "receipts" in said
    away.engine.dispose()


def test_an_absent_broker_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[TopicState]:
        raise BrokerError("the broker did not answer", got="refused at 127.0.0.1:1", hint="see that it runs")

    monkeypatch.setattr(topics, "describe_topics", refuse)
    assert run(code=1) == "error: the broker did not answer; got: refused at 127.0.0.1:1; hint: see that it runs\n"


@pytest.mark.parametrize(
    ("stamp", "shown"),
    [
        (-1, "1969-12-31 23:59:59.999"),
        (1_769_860_800_000, "2026-01-31 12:00:00.000"),
        (1_769_860_800_000_000, "1769860800000000"),
        (2**62, str(2**62)),
        (-(2**60), str(-(2**60))),
    ],
)
def test_records_with_any_timestamp_are_printed(stamp: int, shown: str) -> None:
    """One in microseconds lies beyond the calendar, and those behind it are to be read too."""
    assert topics._line(TopicRecord(RecordLocation("t", 2, 7), b"k", b"v", stamp)) == f"{shown}  2@7  k  v"
