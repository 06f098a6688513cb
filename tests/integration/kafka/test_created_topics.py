"""Topics that were created can be read at once."""

from __future__ import annotations

import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.kafka.admin import admin, end_offsets, ensure_topics
from penstock.model.topic import Topic
from penstock.testing.topics import delete_all

pytestmark = pytest.mark.integration


def test_each_partition_has_a_leader_when_its_topic_is_told_to_be_created(fresh_broker: Broker) -> None:
    topics = [Topic(f"t{number}", partitions=4) for number in range(6)]
    partitions = {(topic.name, p) for topic in topics for p in range(topic.partitions)}
    # A broker that is slow once may be quick the next time.
    for _ in range(5):
        changes = ensure_topics(topics, fresh_broker.bootstrap)
        assert changes == [f"created {topic.name} with 4 partitions" for topic in topics]
        assert end_offsets(admin(fresh_broker.bootstrap), partitions, fresh_broker.bootstrap).keys() == partitions
        delete_all(fresh_broker.bootstrap)
