"""For load generators: many records sent, topics read whole, an end by Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Protocol, TypeVar

from confluent_kafka import KafkaError, Message, Producer

from penstock.errors import BrokerError, PenstockError
from penstock.kafka.admin import admin, end_offsets, first_offsets, partition_counts
from penstock.kafka.client import client_config
from penstock.kafka.dead_letters import open_consumer, read_range
from penstock.kafka.limits import as_bytes
from penstock.model.topic import CREATE


class RecordSender:
    """Sends records, and reports whether the broker accepted all of them."""

    def __init__(self, bootstrap: str) -> None:
        self._failures, self._reason = 0, ""
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
                # The partitioner of the Java clients, so that a key has the same partition as with any other client.
                "partitioner": "murmur2_random",
                "log_level": 2,
            }
        )

    def send(self, topic: str, key: str, value: str | bytes, timestamp: int = 0) -> None:
        """Send a record. timestamp: epoch ms, 0 for now."""
        while True:
            try:
                return self._producer.produce(topic, value, key, timestamp=timestamp)
            except BufferError:
                self._producer.poll(0.05)

    def poll(self) -> None:
        self._producer.poll(0)

    def close(self) -> None:
        """Wait until all is sent; raise BrokerError if the broker did not accept all."""
        self._failures += self._producer.flush()
        if self._failures:
            raise BrokerError(
                f"{self._failures} records were not accepted, so the expected result is unknown",
                got=self._reason or "no answer",
                hint="check the broker with `penstock doctor`, and run the command again",
            )

    def _failed(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures += 1
            self._reason = str(error)


@dataclass
class SentCounts:
    """How far a generator is.

    Attributes:
        records: Records of its main topic.
        others: Records of its other topics.
        until: Time up to which all was sent, epoch ms.
        behind: How far it is behind the clock, ms.
    """

    records: int = 0
    others: int = 0
    until: int = 0
    behind: int = 0


class Step(Protocol):
    """Records that are sent together, up to a time."""

    @property
    def until(self) -> int: ...


StepT = TypeVar("StepT", bound=Step)


def on_schedule(steps: Iterable[StepT], sent: SentCounts, stop: Event, *, fast: bool) -> Iterator[StepT]:
    """Yield each step when the clock has reached its time, or at once if `fast`, until `stop` is set."""
    for step in steps:
        if not fast:
            stop.wait(max(0, step.until / 1000 - time.time()))
            sent.behind = max(0, int(time.time() * 1000) - step.until)
        if stop.is_set():
            return
        yield step
        sent.until = step.until


def read_topic(topic: str, bootstrap: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Key and value of all committed records of a topic."""
    client = admin(bootstrap)
    partitions = [(topic, p) for p in range(partition_counts(client, bootstrap)[topic])]
    starts, ends = (offsets(client, partitions, bootstrap) for offsets in (first_offsets, end_offsets))
    with open_consumer(bootstrap) as reader:
        for partition in partitions:
            for message in read_range(reader, *partition, starts.get(partition, 0), ends.get(partition, 0)):
                yield as_bytes(message.key()) or b"", as_bytes(message.value())


def check_topics(topics: Sequence[str], bootstrap: str) -> None:
    """Raise BrokerError if a topic does not exist."""
    existing = partition_counts(admin(bootstrap), bootstrap)
    if missing := [topic for topic in topics if topic not in existing]:
        raise BrokerError(f"topic {missing[0]} does not exist", hint=CREATE)


def write_truth(path: Path, content: bytes) -> None:
    """Write the ground truth of a generator; PenstockError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as e:
        raise PenstockError("the truth cannot be written", got=f"{path}: {e.strerror}", hint="name another file") from e


def read_truth(path: Path) -> bytes:
    """Read the ground truth of a generator; PenstockError if that fails."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise PenstockError("the truth cannot be read", got=f"{path}: {e.strerror}", hint="name its file") from e


@contextmanager
def interruptible() -> Iterator[Event]:
    """An event that Ctrl-C sets, so that what was sent is known; the second Ctrl-C ends the process."""
    stop = Event()

    def request_stop(*_: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.signal(signal.SIGINT, request_stop)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
