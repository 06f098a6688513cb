"""What a stream or a topic that nobody needs any more leaves at the broker, and its removal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException

from penstock.errors import BrokerError
from penstock.kafka.admin import TIMEOUT

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


def read_by(client: AdminClient, group: str) -> list[str]:
    """The topics of which a consumer group has offsets; none if it is not there."""
    asked = [ConsumerGroupTopicPartitions(group)]
    try:
        found = client.list_consumer_group_offsets(asked, request_timeout=TIMEOUT)[group].result(TIMEOUT)
    except KafkaException as e:
        if e.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return []
        raise BrokerError(f"group {group} could not be read", got=e.args[0]) from e
    return sorted({place.topic for place in found.topic_partitions or ()})


def delete_group(client: AdminClient, group: str) -> bool:
    """Delete a consumer group; whether it was there."""
    try:
        client.delete_consumer_groups([group], request_timeout=TIMEOUT)[group].result(TIMEOUT)
    except KafkaException as e:
        if e.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return False
        raise BrokerError(f"group {group} could not be deleted", got=e.args[0]) from e
    return True


def delete_topics(client: AdminClient, names: Iterable[str]) -> None:
    """Delete topics and all their records."""
    for name, done in client.delete_topics(list(names), request_timeout=TIMEOUT).items():
        try:
            done.result(TIMEOUT)
        except KafkaException as e:
            raise BrokerError(f"topic {name} could not be deleted", got=e.args[0]) from e
