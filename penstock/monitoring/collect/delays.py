"""Emission delays: a Prometheus histogram of the time from when a row was due until it was written.

Committed records are read from the end of the topics. The broker's timestamp is the time at which a record was written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from threading import Event, Thread

import orjson
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition
from prometheus_client import Histogram

from penstock.errors import BrokerError
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.client import client_config

NAME = "penstock_emission_delay_seconds"
BUCKETS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 300)
# Seconds between two checks for new topics and partitions.
LOOK_EVERY = 30.0

log = logging.getLogger(__name__)


class Delays:
    """fields: by topic, the field of its JSON values with the time at which the row was due, epoch ms."""

    def __init__(self, bootstrap: str, fields: Mapping[str, str]) -> None:
        self._bootstrap, self._fields = bootstrap, fields
        self._stop = Event()
        self.histogram = Histogram(
            NAME, "From when a row was due until it was written.", ("topic",), buckets=BUCKETS, registry=None
        )

    def start(self) -> None:
        if self._fields:
            Thread(target=self._read, name="delays", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def take(self, topic: str, value: bytes, at: int) -> None:
        """Count a record that was written at a time, epoch ms. A record without a due time is not counted."""
        try:
            due = int(orjson.loads(value)[self._fields[topic]])
        except (ValueError, KeyError, TypeError):
            return
        self.histogram.labels(topic).observe(max(0, at - due) / 1000)

    def _read(self) -> None:
        consumer = Consumer(
            {
                **client_config(self._bootstrap),
                "group.id": "penstock.delays",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "latest",
                # A row is small; the default would be 64 MB.
                "queued.max.messages.kbytes": 1024,
                "log_level": 0,
            }
        )
        assigned: set[tuple[str, int]] | None = None
        assign_at = float("-inf")
        while not self._stop.is_set():
            try:
                if time.monotonic() >= assign_at:
                    assigned, assign_at = self._assigned(consumer, assigned), time.monotonic() + LOOK_EVERY
                message = consumer.poll(0.5)
                if message is not None and message.error() is None:
                    self.take(message.topic() or "", _bytes(message.value()), message.timestamp()[1])
            except Exception:
                log.exception("emission delays cannot be measured; trying again in %g s", LOOK_EVERY)
                assign_at = time.monotonic() + LOOK_EVERY
                self._stop.wait(LOOK_EVERY)
        consumer.close()

    def _assigned(self, consumer: Consumer, assigned: set[tuple[str, int]] | None) -> set[tuple[str, int]] | None:
        """Assign partitions: the first time from their end, later new ones from their beginning."""
        try:
            counts = partition_counts(admin(self._bootstrap), self._bootstrap)
        except BrokerError as e:
            log.debug("delays are not measured: %s", e)
            return assigned
        existing = {(t, p) for t in self._fields if t in counts for p in range(counts[t])}
        begin = OFFSET_END if assigned is None else OFFSET_BEGINNING
        if new := existing - (assigned or set()):
            consumer.incremental_assign([TopicPartition(*one, begin) for one in new])
        return existing | (assigned or set())


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
