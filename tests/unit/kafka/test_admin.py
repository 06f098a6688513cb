"""A broker that takes connections and never answers: told in a sentence, and not by the same client twice."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from penstock.errors import BrokerError
from penstock.host.ports import free_port
from penstock.kafka import admin
from penstock.kafka.client import unreachable
from penstock.model.topic import Topic
from tests.chaos.projects import other_project


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(admin, "TIMEOUT", 1.5)
    monkeypatch.setattr(admin, "REQUEST_TIMEOUT", 1.0)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    admin.admin.cache_clear()


Ask = Callable[[AdminClient, str], object]


@pytest.mark.parametrize(
    "ask",
    [
        admin.partition_counts,
        lambda client, at: admin.topic_ids(client, ["events"], at),
        lambda client, at: admin.end_offsets(client, [("events", 0)], at),
        lambda client, at: admin.topic_config("events", "cleanup.policy", at),  # noqa: ARG005
        lambda client, at: admin.topic_configs(["events"], at),  # noqa: ARG005
        lambda client, at: admin.ensure_topics([Topic("events")], at),  # noqa: ARG005
    ],
    ids=["partitions", "ids", "ends", "setting", "settings", "ensure"],
)
def test_a_broker_that_hangs_is_told_and_asked_by_another_client(silent: str, ask: Ask) -> None:
    first = admin.admin(silent)
    with pytest.raises(BrokerError, match=rf"the broker did not answer; got: .+ at {silent}"):
        ask(first, silent)
    assert admin.admin(silent) is not first


def test_the_hint_for_brokers_of_a_connection_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BROKERS", "kafka://127.0.0.1:1")
    with other_project(tmp_path, {"PENSTOCK_KAFKA_BOOTSTRAP": "airflow://brokers"}):
        said = str(unreachable("127.0.0.1:1", KafkaError(KafkaError._TRANSPORT)))
    assert said.endswith("check the host and security.protocol of the connection brokers")
    assert "KafkaError" not in said


def test_who_has_no_topics_asks_no_broker() -> None:
    assert admin.create_missing([], "127.0.0.1:1") == []


@pytest.mark.processes
def test_where_nothing_listens_topics_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(admin, "partition_counts")
    with pytest.raises(BrokerError, match="the broker did not answer; got: nothing listens at 127"):
        admin.create_missing([Topic("orders")], f"127.0.0.1:{free_port()}")
