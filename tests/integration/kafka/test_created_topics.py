"""Topics that were created can be read at once."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.devstack.servers.kafka import Broker
from penstock.kafka import admin as kafka_admin
from penstock.kafka.admin import admin, describe_topics, end_offsets, ensure_topics, first_offsets
from penstock.model.topic import Topic
from penstock.testing.topics import delete_all

pytestmark = pytest.mark.integration


def test_each_partition_has_a_leader_when_its_topic_is_told_to_be_created(fresh_broker: Broker) -> None:
    # A broker that is slow once may be quick the next time.
    for attempt in range(5):
        names = ["recreated", *(f"attempt-{attempt}-{number}" for number in range(6))]
        topics = [Topic(name, partitions=4) for name in sorted(names)]
        partitions = {(topic.name, p) for topic in topics for p in range(topic.partitions)}
        changes = ensure_topics(topics, fresh_broker.bootstrap)
        assert changes == [f"created {topic.name} with 4 partitions" for topic in topics]
        assert end_offsets(admin(fresh_broker.bootstrap), partitions, fresh_broker.bootstrap).keys() == partitions
        delete_all(fresh_broker.bootstrap)


def test_partitions_that_somebody_adds_are_known_at_once(fresh_broker: Broker) -> None:
    bootstrap = fresh_broker.bootstrap
    ensure_topics([Topic("grows", partitions=1)], bootstrap)
    client = admin(bootstrap)
    assert end_offsets(client, [("grows", 0)], bootstrap) == {("grows", 0): 0}
    other = AdminClient({"bootstrap.servers": bootstrap})
    other.create_partitions([NewPartitions("grows", 3)])["grows"].result()
    assert first_offsets(client, [("grows", 2)], bootstrap) == {("grows", 2): 0}
    assert end_offsets(client, [("grows", 2), ("grows", 9)], bootstrap) == {("grows", 2): 0}


def test_a_topic_that_another_process_widens_meanwhile_is_as_declared(
    fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_topics([Topic("grows", partitions=1)], fresh_broker.bootstrap)
    wide = Topic("grows", partitions=3)
    before = describe_topics([wide], fresh_broker.bootstrap)
    assert ensure_topics([wide], fresh_broker.bootstrap) == ["widened grows from 1 to 3 partitions"]
    monkeypatch.setattr(kafka_admin, "describe_topics", lambda *_: before)
    assert ensure_topics([wide], fresh_broker.bootstrap) == []
