"""Topics that were created can be read at once."""

from __future__ import annotations

import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.kafka.admin import admin, end_offsets, ensure_topics
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
