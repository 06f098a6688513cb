"""What a stream leaves at a real broker, found and removed."""

from __future__ import annotations

import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.errors import BrokerError
from penstock.kafka import cleanup
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.topic_writer import TopicWriter
from penstock.model.output import CommitMarker
from penstock.model.topic import COMMITS
from penstock.streams import Topic
from penstock.testing import create
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration


def test_a_group_and_topics_are_found_and_deleted(fresh_broker: Broker) -> None:
    at = fresh_broker.bootstrap
    create(at, COMMITS, Topic("read", partitions=1), Topic("other", partitions=1))
    client, group = admin(at), "penstock.leaving"

    def read() -> list[str]:
        return cleanup.topics_of_group(at, group, partition_counts(client, at))

    assert read() == []
    writer = TopicWriter("leaving", group, at)
    writer.committed()
    # Offsets are published behind a batch, and nothing waits for it.
    wait_until(lambda: writer.write({}, CommitMarker("q", 0, {"read": {0: 1}})) or read() == ["read"])
    writer.close()
    assert group in cleanup.group_names(client, at)
    for _ in range(2):
        cleanup.delete_group(client, group, at)
    assert read() == []
    assert group not in cleanup.group_names(client, at)
    for chosen in ([], ["other"]):
        cleanup.delete_topics(client, chosen, at)
    wait_until(lambda: "other" not in partition_counts(client, at))
    assert "read" in partition_counts(client, at)
    with pytest.raises(BrokerError, match="topic other could not be deleted"):
        cleanup.delete_topics(client, ["other"], at)
