"""Sends receipts to Kafka: a bounded buffer and an idempotent producer, in one thread."""

from __future__ import annotations

import logging
import time
from collections import deque
from threading import Event, Lock, Thread
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.errors import BrokerError
from penstock.kafka.client import unreachable
from penstock.monitoring.collect.probes import client

log = logging.getLogger(__name__)


class Sender:
    """Sends values to a topic, each once and without a key, and drops the oldest if the broker is down for too long.

    buffer: values kept while the broker is down. Few are given to the client at a time, because it is uncertain
    whether a value of the client was written when it is dropped.
    """

    IN_FLIGHT = 500
    LOOK_EVERY = 5.0  # seconds between two checks for a missing topic or broker

    def __init__(self, bootstrap: str, topic: str, *, buffer: int = 20_000) -> None:
        self.bootstrap, self.topic, self.buffer = bootstrap, topic, buffer
        self.sent = self.dropped = self.failed = 0
        self._waiting: deque[bytes] = deque()
        self._lock = Lock()
        self._wake, self._stop = Event(), Event()
        self._producer: Producer | None = None
        self._flying = 0
        self._slowest: float | None = None
        self._lost = 0
        self._ready = self._renew = False
        self._troubles: set[str] = set()
        self._thread = Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, value: bytes) -> None:
        """Take a value to send; never blocks."""
        with self._lock:
            if len(self._waiting) >= self.buffer:
                self._waiting.popleft()
                self._count_lost()
            self._waiting.append(value)
        self._wake.set()

    def produced(self) -> tuple[float | None, int]:
        """The slowest acknowledgement in ms or None, and the number of dropped values, since the call before."""
        with self._lock:
            result = self._slowest, self._lost
            self._slowest, self._lost = None, 0
        return result

    def stop(self, timeout: float = 0.7) -> int:
        """Send what can be sent within `timeout` seconds and end; returns the number of values not sent."""
        deadline = time.monotonic() + timeout
        while self.pending and not self._troubles and time.monotonic() < deadline:
            self._wake.set()
            time.sleep(0.02)
        self._stop.set()
        self._wake.set()
        self._thread.join(0.1 if self._troubles else max(0.1, deadline - time.monotonic()))
        return self.pending

    @property
    def pending(self) -> int:
        """Values that are not acknowledged."""
        with self._lock:
            return len(self._waiting) + self._flying

    def _count_lost(self) -> None:
        self.dropped += 1
        self._lost += 1
        if self.dropped == 1 or self.dropped % 1000 == 0:
            log.warning("topic %s: %d receipts dropped, the oldest first: the broker is away", self.topic, self.dropped)

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._flying:
                self._wake.wait(1.0)
                self._wake.clear()
            try:
                self._pump()
            except BrokerError as e:
                self._troubled(e.what, e)
                self._stop.wait(self.LOOK_EVERY)
            except Exception as e:
                self._troubled(type(e).__name__, f"receipts cannot be sent: {type(e).__name__}: {e}")
                self._stop.wait(self.LOOK_EVERY)

    def _pump(self) -> None:
        if not (self._ready or self.pending):
            return
        self._producer = self._producer or self._open()
        if not self._ready:
            self._look(self._producer)
        while not self._renew and (value := self._next()):
            try:
                self._producer.produce(self.topic, value, on_delivery=self._delivered)
            except (KafkaException, BufferError) as e:
                with self._lock:
                    self._waiting.appendleft(value)
                    self._flying -= 1
                raise BrokerError("the client takes no more receipts", got=e) from e
        self._producer.poll(0.1 if self._flying else 0)
        if self._renew:
            self._drop_producer()

    def _next(self) -> bytes | None:
        with self._lock:
            if not self._waiting or self._flying >= self.IN_FLIGHT or self._stop.is_set():
                return None
            self._flying += 1
            return self._waiting.popleft()

    def _open(self) -> Producer:
        settings: dict[str, Any] = {
            **client(self.bootstrap),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": 0,
            # Records without a key are spread one by one, so that event time advances in all partitions.
            "sticky.partitioning.linger.ms": 0,
            # The topic existed when the producer was opened: a missing topic was removed.
            "topic.metadata.propagation.max.ms": 3000,
            "error_cb": self._on_error,
        }
        return Producer(settings)

    def _look(self, producer: Producer) -> None:
        """BrokerError until the topic exists: to produce to a missing one would make the broker create it."""
        try:
            topics = producer.list_topics(timeout=3).topics
        except KafkaException as e:
            raise unreachable(self.bootstrap, e.args[0]) from e
        if self.topic not in topics:
            raise BrokerError(
                "the topic of the platform's receipts is missing",
                got=f"no topic {self.topic!r} at {self.bootstrap}",
                hint="penstock topics --apply",
            )
        self._ready = True
        self._well()

    def _drop_producer(self) -> None:
        """Drop the producer after a fatal error, or when the topic was removed."""
        assert self._producer is not None
        self._producer.purge()
        self._producer.flush(0.5)
        with self._lock:
            self._lost += self._flying
            self.failed += self._flying
            self._flying = 0
        self._producer, self._ready, self._renew = None, False, False

    # Called by the client, in this thread

    def _on_error(self, error: KafkaError) -> None:
        self._renew |= error.fatal()
        self._troubled(error.name(), f"the connection to the broker is troubled: {error.str()} at {self.bootstrap}")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        with self._lock:
            self._flying -= 1
            if error is None:
                self.sent += 1
                latency = (message.latency() or 0.0) * 1000
                self._slowest = latency if self._slowest is None else max(self._slowest, latency)
            else:
                self.failed += 1
                self._lost += 1
        if error is None:
            self._well()
            return
        self._renew |= error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
        place = f"topic {message.topic()} partition {message.partition()}"
        self._troubled(error.name(), f"{place}: a receipt was refused: {error.str()}")

    def _troubled(self, kind: str, what: object) -> None:
        """Log an error once until receipts are sent again."""
        if kind not in self._troubles:
            log.error("%s", what)
        self._troubles.add(kind)

    def _well(self) -> None:
        if self._troubles:
            log.info("topic %s: receipts are sent again", self.topic)
        self._troubles.clear()
