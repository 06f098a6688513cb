"""What a stream or a topic that nobody needs any more leaves at the broker, and its removal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException

from penstock.errors import BrokerError
from penstock.kafka.admin import TIMEOUT

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")
COORDINATING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}


def read_by(client: AdminClient, group: str) -> list[str]:
    """The topics of which a consumer group has offsets; none if it is not there."""
    asked = [ConsumerGroupTopicPartitions(group)]
    found = _of_group(group, lambda: client.list_consumer_group_offsets(asked, request_timeout=TIMEOUT)[group])
    return sorted({place.topic for place in found.topic_partitions or ()}) if found is not None else []


def delete_group(client: AdminClient, group: str) -> None:
    """Delete a consumer group, if it is there."""
    _of_group(group, lambda: client.delete_consumer_groups([group], request_timeout=TIMEOUT)[group])


def _of_group(group: str, ask: Callable[[], Future[T]]) -> T | None:
    """The answer; None if there is no such group. A broker that has just started knows of none for a moment."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return ask().result(TIMEOUT)
        except KafkaException as e:
            code = e.args[0].code()
            if code == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            if code not in COORDINATING or time.monotonic() > deadline:
                raise BrokerError(f"the broker did not answer for group {group}", got=e.args[0]) from e
        time.sleep(0.1)


def delete_topics(client: AdminClient, names: Iterable[str]) -> None:
    """Delete topics and all their records."""
    for name, done in client.delete_topics(list(names), request_timeout=TIMEOUT).items():
        try:
            done.result(TIMEOUT)
        except KafkaException as e:
            raise BrokerError(f"topic {name} could not be deleted", got=e.args[0]) from e
