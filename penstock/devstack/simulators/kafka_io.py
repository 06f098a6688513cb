"""What demo generators share: records sent in numbers, and topics read whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from confluent_kafka import KafkaError, Message, Producer

from penstock.errors import BrokerError
from penstock.kafka.admin import admin, end_offsets, first_offsets, partition_counts
from penstock.kafka.client import client_config
from penstock.kafka.dead_letters import open_consumer, read_range
from penstock.kafka.limits import as_bytes
from penstock.model.topic import CREATE


class Out:
    """Sends records and knows whether all were taken."""

    def __init__(self, bootstrap: str) -> None:
        self._lost, self._why = 0, ""
        self._producer = Producer(
            {
                **client_config(bootstrap),
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 500_000,
                "delivery.report.only.error": True,
                "on_delivery": self._failed,
                # The Java clients' partitioner: a key's records lie where any other client would look for them.
                "partitioner": "murmur2_random",
                "log_level": 2,
            }
        )

    def put(self, topic: str, key: str, value: str | bytes, at: int = 0) -> None:
        """Send a record. at: its own time, epoch ms; 0 for now."""
        while True:
            try:
                return self._producer.produce(topic, value, key, timestamp=at)
            except BufferError:
                self._producer.poll(0.05)

    def poll(self) -> None:
        self._producer.poll(0)

    def end(self) -> None:
        """Wait until all is sent; BrokerError if records were not taken."""
        self._lost += self._producer.flush()
        if self._lost:
            raise BrokerError(
                f"{self._lost} records were not taken, so nobody knows what is to be expected",
                got=self._why or "no answer",
                hint="see that the broker runs (`penstock doctor`), and send others",
            )

    def _failed(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._lost += 1
            self._why = str(error)


def records(topic: str, bootstrap: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Key and value of all that is committed in a topic."""
    client = admin(bootstrap)
    places = [(topic, p) for p in range(partition_counts(client, bootstrap)[topic])]
    starts, ends = (of(client, places, bootstrap) for of in (first_offsets, end_offsets))
    with open_consumer(bootstrap) as reader:
        for place in places:
            for message in read_range(reader, *place, starts.get(place, 0), ends.get(place, 0)):
                yield as_bytes(message.key()) or b"", as_bytes(message.value())


def are_there(topics: Sequence[str], bootstrap: str) -> None:
    """BrokerError if a topic is not there."""
    known = partition_counts(admin(bootstrap), bootstrap)
    if missing := [topic for topic in topics if topic not in known]:
        raise BrokerError(f"topic {missing[0]} is not there", hint=CREATE)
