"""Heartbeats: events that carry clock time, so that windows close when nobody sends.

A beat goes to every partition of a topic that a stream with final windows reads, at the moment one of its readers'
windows is due (end plus grace), and at the topic's slow cadence otherwise. It carries the sender's clock as it is then,
never a later time, and is written behind whatever the partition holds, so it passes nothing written before it. It
proves that it is ours: `records/heartbeat.py`.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

from penstock.catalog import Windowed
from penstock.control import Control
from penstock.declare.promises import Due
from penstock.declare.topic import Topic
from penstock.errors import BrokerError, ControlError
from penstock.kafka.admin import admin, partitions
from penstock.records.heartbeat import BEAT_HEADER, BEAT_KEY, signer

log = logging.getLogger(__name__)

# Partitions may be added; asking at every beat would cost a request each.
METADATA_EVERY = 30.0
DELIVERY_TIMEOUT = 10.0
# No later than this, whatever is due: a changed clock is noticed.
LONGEST_WAIT = 30.0


def next_beat(topic: Topic, readers: list[Due], after_ms: int) -> int:
    """Epoch ms of the first moment later than `after_ms` at which the topic needs a beat."""
    due = [reader.next(after_ms) for reader in readers]
    if topic.beat_every:
        due.append(after_ms + int(topic.beat_every * 1000))
    return min(due)


class Beater:
    """Sends every topic's beats when they are due. Not thread-safe; `close` when done.

    windowed: as `Catalog.windowed` gives it. control: where each beat is noted, or None.
    """

    def __init__(
        self, windowed: Windowed, control: Control | None, bootstrap: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._windowed = windowed
        self._control = control
        self._bootstrap = bootstrap
        self._clock = clock
        self._sender = socket.gethostname()
        self._signer = signer()
        self._next: dict[str, int] = {}
        self._partitions: dict[str, int] = {}
        self._partitions_at = float("-inf")
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                # All partitions' beats in one request, so that a reader meets them in one batch.
                "linger.ms": 5,
                "delivery.timeout.ms": int(DELIVERY_TIMEOUT * 1000),
                "client.id": "penstock.heartbeat",
            }
        )

    def run_once(self) -> float:
        """Send the beats that are due; seconds until the next one.

        Raises BrokerError if a beat did not arrive; it is due again at once, with the time of then.
        """
        now = self._now()
        due = [name for name in self._windowed if self._next.get(name, 0) <= now]
        if due:
            self._send(due)
        if not self._next:
            return LONGEST_WAIT
        return max(0.0, min(min(self._next.values()) / 1000 - self._clock(), LONGEST_WAIT))

    def _send(self, names: list[str]) -> None:
        self._refresh()
        failed: list[str] = []
        sent: dict[str, tuple[int, int]] = {}
        for name in names:
            count = self._partitions.get(name, 0)
            at = self._now()
            for partition in range(count):
                self._producer.produce(
                    name,
                    key=BEAT_KEY,
                    value=self._signer.value(name, partition, at),
                    timestamp=at,
                    partition=partition,
                    headers=[(BEAT_HEADER, b"1")],
                    on_delivery=lambda e, m: failed.append(f"{m.topic()}[{m.partition()}]: {e}") if e else None,
                )
            sent[name] = (at, count)
        unsent = self._producer.flush(DELIVERY_TIMEOUT + 1)
        if failed or unsent:
            self._partitions_at = float("-inf")
            raise BrokerError("heartbeats did not arrive", got="; ".join(failed) or f"{unsent} unanswered")
        for name, (at, count) in sent.items():
            topic, readers = self._windowed[name]
            self._next[name] = next_beat(topic, readers, at)
            self._note(name, at, count)

    def _note(self, name: str, at: int, count: int) -> None:
        if self._control is None:
            return
        try:
            self._control.beat_sent(name, at, count, self._sender)
        except ControlError as e:
            # The beat itself is out; only its trace on the operator page is missing.
            log.warning("the heartbeat of %s was sent but not noted: %s", name, e)

    def _refresh(self) -> None:
        if time.monotonic() - self._partitions_at < METADATA_EVERY:
            return
        try:
            self._partitions = partitions(admin(self._bootstrap), self._bootstrap)
        except KafkaException as e:
            raise BrokerError("the broker's topics could not be listed", got=e.args[0]) from e
        self._partitions_at = time.monotonic()

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def close(self) -> None:
        self._producer.flush(1)
