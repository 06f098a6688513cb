"""Probes of the platform's services: control database, HTTP endpoints, Kafka, streams."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from confluent_kafka import KafkaException

from penstock.control import Control
from penstock.errors import ControlError
from penstock.kafka.admin import admin, end_offsets
from penstock.kafka.client import client_config, unreachable
from penstock.monitoring.collect.samples import MIB, Deltas
from penstock.monitoring.dashboard import snapshot
from penstock.monitoring.dashboard.faults import page_address
from penstock.monitoring.dashboard.platform_status import PlatformStatusCache
from penstock.monitoring.dashboard.states import HEALTHY_STATES

Pair = tuple[str, float | None]

log = logging.getLogger("penstock.monitoring.collect.meter")


def _ms(since: float) -> float:
    return (time.perf_counter() - since) * 1000


class ControlDatabaseProbe:
    """Round trips to the control database."""

    name = "database"

    def __init__(self, control: Control) -> None:
        self.control = control

    def measure(self) -> Iterator[Pair]:
        try:
            self.control.now()  # the pool may have to connect first
            at = time.perf_counter()
            self.control.now()
            waited, at = _ms(at), time.perf_counter()
            snapshot.read(self.control)
            queried = _ms(at)
        except ControlError:
            yield "dbErrors", 1
            raise
        yield "dbWaitTime", waited
        yield "dbQueryTime", queried
        yield "dbErrors", 0


class HttpProbe:
    """Latency of GETs.

    endpoints: URL by name. optional: endpoints that may not exist: a 404 is neither a sample nor a failure.
    Any status below 500 is a success: an endpoint that asks for a sign-in is up.
    """

    name = "http"
    TIMEOUT = 5.0

    def __init__(self, endpoints: Mapping[str, str], *, optional: frozenset[str] = frozenset()) -> None:
        self.endpoints, self.optional = endpoints, optional

    def measure(self) -> Iterator[Pair]:
        failures = []
        for name, url in self.endpoints.items():
            at = time.perf_counter()
            try:
                status = get(url, self.TIMEOUT)
                latency = _ms(at)
                if status == 404 and name in self.optional:
                    continue
                succeeded = status < 500
                if succeeded:
                    yield f"httpTime.{name}", latency
                else:
                    failures.append(f"{url} answered {status}")
            except (OSError, HTTPException) as e:
                succeeded = False
                failures.append(f"{url}: {type(e).__name__}: {e}")
            yield f"httpErrors.{name}", float(not succeeded)
        if failures:
            raise ConnectionError("; ".join(failures))


def get(url: str, timeout: float) -> int:
    """The status of a GET of an http:// URL. OSError or HTTPException.

    The standard library is used because another client would be a tenth of the meter's memory, and would use the
    proxies of the environment.
    """
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=timeout)
    try:
        connection.request("GET", parts.path or "/")
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


class KafkaProbe:
    """The cluster's topics, partitions and growth."""

    name = "kafka"
    TIMEOUT = 5.0

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._ends: Deltas[tuple[str, int]] = Deltas()

    def measure(self) -> Iterator[Pair]:
        client = admin(self.bootstrap)
        try:
            metadata = client.list_topics(timeout=self.TIMEOUT)
            topics = {name: t for name, t in metadata.topics.items() if not name.startswith("__")}
            partitions = [p for t in topics.values() for p in t.partitions.values()]
            yield "kafkaTopics", len(topics)
            yield "kafkaPartitions", len(partitions)
            yield "kafkaUnderReplicated", sum(p.leader < 0 or len(p.isrs) < len(p.replicas) for p in partitions)
            led = [(name, n) for name, t in topics.items() for n, p in t.partitions.items() if p.leader >= 0]
            ends = end_offsets(client, led, self.bootstrap)
            span, grown = self._ends.of({at: float(end) for at, end in ends.items()})
            yield "kafkaAppendRate", sum(grown.values()) / span if span else None
        except KafkaException as e:
            admin.cache_clear()
            raise unreachable(self.bootstrap, e.args[0]) from e


def client(bootstrap: str) -> dict[str, str | int | float | bool]:
    """Settings of a Kafka client that waits for the broker; its user reports errors."""
    return {
        **client_config(bootstrap, "penstock.metrics"),
        "log_level": 2,
        "reconnect.backoff.max.ms": 5000,
        "socket.keepalive.enable": "true",
    }


class StreamsProbe:
    """Reports of the drivers about their streams; old reports give no samples."""

    name = "streams"

    def __init__(self, status_cache: PlatformStatusCache) -> None:
        self.status_cache = status_cache
        self._batches: dict[str, int | None] = {}

    def measure(self) -> Iterator[Pair]:
        now = self.status_cache.read()
        yield "streamsWanted", sum(s.desired == "on" for s in now.streams)
        yield "streamsRunning", sum(s.state in HEALTHY_STATES for s in now.streams)
        for s in now.streams:
            if s.reported_age_ms is None or s.reported_age_ms > now.limits.fresh_ms:
                continue
            if self._batches.get(s.name) != s.batch_id:
                yield f"batchTime.{s.name}", s.batch_ms
            self._batches[s.name] = s.batch_id
            yield f"rowsPerSecond.{s.name}", s.rows_per_s
            yield f"lag.{s.name}", s.lag
            yield f"watermarkAge.{s.name}", None if s.watermark_age_ms is None else s.watermark_age_ms / 1000
            yield f"stateRows.{s.name}", s.state_rows
            yield f"stateSize.{s.name}", None if s.state_bytes is None else s.state_bytes / MIB


class FaultsProbe:
    """Notes the faults of the platform in the control database, and logs their begin and end."""

    name = "faults"

    def __init__(self, status_cache: PlatformStatusCache, page_url: str = "") -> None:
        self.status_cache, self.page_url = status_cache, page_url

    def measure(self) -> Iterator[Pair]:
        faults = self.status_cache.read().view.faults
        begun, ended = self.status_cache.control.note_faults(faults)
        for fault in begun:
            link = f" ({self.page_url}{page_address(fault)})" if self.page_url else ""
            # What it concerns is one text, by which alerts differ.
            log.warning("fault: %s is %s: %s%s", f"{fault.kind} {fault.name}", fault.state, fault.reason, link)
        for row in ended:
            log.info("over: %s %s is no longer %s", row.kind, row.name, row.state)
        yield "faults", len(faults)


class SenderProbe:
    """The meter's own sending. produced: slowest acknowledgement (ms) and dropped receipts since the call before."""

    name = "sender"

    def __init__(self, produced: Callable[[], tuple[float | None, int]]) -> None:
        self.produced = produced

    def measure(self) -> Iterator[Pair]:
        slowest, dropped = self.produced()
        yield "kafkaProduceTime", slowest
        yield "receiptsDropped", dropped
