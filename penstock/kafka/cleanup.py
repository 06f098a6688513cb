"""Finds and deletes the consumer groups and topics that removed streams leave at the broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.errors import BrokerError, BrokerRefused
from penstock.kafka.admin import REQUEST_TIMEOUT, TIMEOUT, await_result
from penstock.kafka.client import client_config

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")
COORDINATOR_ERRORS = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}


def topics_of_group(bootstrap: str, group: str, counts: Mapping[str, int]) -> list[str]:
    """Returns the topics for which a consumer group has offsets; `counts` are the partition counts of all topics."""
    consumer = Consumer({**client_config(bootstrap), "group.id": group, "log_level": 2})
    partitions = [TopicPartition(topic, p) for topic, count in counts.items() for p in range(count)]
    try:
        committed = _ask_coordinator(group, lambda: consumer.committed(partitions, timeout=TIMEOUT))
    finally:
        consumer.close()
    return sorted({partition.topic for partition in committed or () if partition.offset >= 0})


def group_names(client: AdminClient, bootstrap: str) -> set[str]:
    """Returns the names of all consumer groups."""
    listed = await_result(
        client.list_consumer_groups(request_timeout=REQUEST_TIMEOUT), bootstrap, "consumer groups could not be listed"
    )
    return {group.group_id for group in listed.valid}


def delete_group(client: AdminClient, group: str, bootstrap: str) -> None:
    """Deletes a consumer group if it exists."""
    what = f"consumer group {group} could not be deleted"
    _ask_coordinator(
        group,
        lambda: await_result(
            client.delete_consumer_groups([group], request_timeout=REQUEST_TIMEOUT)[group], bootstrap, what
        ),
    )


def _ask_coordinator(group: str, ask: Callable[[], T]) -> T | None:
    """Returns the answer, or None if the group does not exist; retries while the coordinator is loading."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return ask()
        except (KafkaException, BrokerRefused) as e:
            code = e.code if isinstance(e, BrokerRefused) else e.args[0].code()
            if code == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            if code not in COORDINATOR_ERRORS or time.monotonic() > deadline:
                raise BrokerError(f"the broker did not answer for group {group}", got=e.args[0]) from e
        time.sleep(0.1)


def delete_topics(client: AdminClient, names: Iterable[str], bootstrap: str) -> None:
    """Deletes topics with all their records."""
    chosen = list(names)
    # The client takes no empty list.
    for name, future in client.delete_topics(chosen, request_timeout=REQUEST_TIMEOUT).items() if chosen else ():
        await_result(future, bootstrap, f"topic {name} could not be deleted")
