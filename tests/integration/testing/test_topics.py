"""Records are read from a real broker as soon as their transaction is committed."""

from __future__ import annotations

from threading import Timer

import pytest
from confluent_kafka import Producer

from penstock.devstack.servers.kafka import Broker
from penstock.model.topic import Topic
from penstock.testing import create, read

pytestmark = pytest.mark.integration


def test_a_transaction_that_is_about_to_end_is_waited_for(broker: Broker) -> None:
    create(broker.bootstrap, Topic("pending", partitions=2))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "pending"})
    producer.init_transactions(30)

    def begin(value: str) -> None:
        producer.begin_transaction()
        producer.produce("pending", value=value, partition=0)
        producer.flush(30)

    def values() -> list[str | None]:
        return [record.value for record in read(broker.bootstrap, "pending")]

    begin("committed")
    Timer(0.5, producer.commit_transaction).start()
    assert values() == ["committed"]
    begin("aborted")
    Timer(0.5, producer.abort_transaction).start()
    assert values() == ["committed"]
    begin("open")
    assert values() == ["committed"]
    producer.abort_transaction()
