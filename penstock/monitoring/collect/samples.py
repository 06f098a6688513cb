"""Receipts: metrics of the platform as records, with their names and units.

A metric has a name in camelCase, such as `dbWaitTime`; a metric of several things has the name of one after a dot, such
as `cpu.broker` or `lag.orders`. Units are milliseconds, seconds, MiB, and shares from 0 to 1. `METRICS` lists all
metrics; others are not sent.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import orjson

RECEIPTS = "receipts"
MIB = 1024 * 1024
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Metric:
    """name: as sent, with a placeholder such as `<part>`; unit and meaning: for people."""

    name: str
    unit: str
    meaning: str


METRICS = (
    Metric("cpu.<part>", "cores", "CPU seconds used per second: 1 is one core, ended children included"),
    Metric("memory.<part>", "MiB", "resident memory; pages shared by its processes count for each"),
    Metric("memoryPss.<part>", "MiB", "proportional memory: shared pages are divided among those that share them"),
    Metric("processes.<part>", "count", "processes of the part"),
    Metric("cpuBusy", "share", "machine: CPU time neither idle nor waiting for a disk"),
    Metric("cpuWait", "share", "machine: CPU time idle while waiting for a disk (iowait)"),
    Metric("cpuSteal", "share", "machine: CPU time taken by the hypervisor"),
    Metric("memoryAvailable", "MiB", "machine: memory that can be had without swapping"),
    Metric("diskBusy.<disk>", "share", "time the disk had work"),
    Metric("diskWaitTime.<disk>", "ms", "mean time of a read or write, its queue included; sent if there was one"),
    Metric("diskFree", "MiB", "free space where the platform keeps its data"),
    Metric("dbWaitTime", "ms", "round trip of a trivial query to the control database, one pooled connection"),
    Metric("dbQueryTime", "ms", "round trip of the query behind every figure of the streams"),
    Metric("dbErrors", "count", "1 if the control database refused or did not answer, else 0"),
    Metric("httpTime.<endpoint>", "ms", "time of a GET: `airflow` is its health endpoint, `page` the operator page"),
    Metric("httpErrors.<endpoint>", "count", "1 if the GET failed, timed out or answered 5xx, else 0"),
    Metric("kafkaProduceTime", "ms", "slowest acknowledgement (acks=all) of a receipt since the sample before"),
    Metric(
        "kafkaAppendRate",
        "offsets/s",
        "growth of what a committed reader can read, over all but the broker's internal topics",
    ),
    Metric("kafkaTopics", "count", "topics, without the broker's internal ones"),
    Metric("kafkaPartitions", "count", "partitions of those topics"),
    Metric("kafkaUnderReplicated", "count", "partitions with a replica out of sync, or without a leader"),
    Metric("streamsRunning", "count", "streams that are running or idle"),
    Metric("faults", "count", "faults of apps, streams, captures, sinks, backfills and replacements"),
    Metric("streamsWanted", "count", "streams whose desired state is on"),
    Metric("batchTime.<stream>", "ms", "duration of the last batch; sent when there was a new one"),
    Metric("rowsPerSecond.<stream>", "rows/s", "rows read per second, as the driver reports it"),
    Metric("lag.<stream>", "records", "records in the inputs that are not read yet"),
    Metric("watermarkAge.<stream>", "s", "how far the watermark is behind the clock"),
    Metric("stateRows.<stream>", "count", "rows of state"),
    Metric("stateSize.<stream>", "MiB", "memory of the state store"),
    Metric("probeErrors.<probe>", "count", "1 if the probe failed, else 0; its reason is in the meter's log"),
    Metric("receiptsDropped", "count", "receipts given up since the sample before, as the broker was away too long"),
)

# A view of an instance is a stream `visits@1`. Colons separate the parts of keys of summaries.
_METRIC_NAME = re.compile("|".join(re.sub(r"<\w+>", r"[A-Za-z0-9_.@-]+", re.escape(m.name)) for m in METRICS))


@dataclass(frozen=True, slots=True)
class Sample:
    """A value, measured at `at_ms` (epoch ms UTC)."""

    metric: str
    value: float
    at_ms: int


class Probe(Protocol):
    """Measures one thing. The meter catches, logs and counts its errors."""

    name: str

    def measure(self) -> Iterable[tuple[str, float | None]]:
        """Pairs of metric and value; None and NaN mean unknown."""
        ...


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def usable(pairs: Iterable[tuple[str, float | None]], at_ms: int) -> Iterator[Sample]:
    """The pairs with a finite number, as samples. ValueError for a metric that METRICS does not list."""
    for metric, value in pairs:
        if not _METRIC_NAME.fullmatch(metric):
            raise ValueError(f"metric {metric!r} is not listed in METRICS")
        if value is not None and math.isfinite(value):
            yield Sample(metric, float(value), at_ms)


def receipt(environment: str, sample: Sample) -> bytes:
    """The sample as the JSON `{"environment", "metric", "value", "timestamp"}`."""
    return orjson.dumps(
        {
            "environment": environment,
            "metric": sample.metric,
            "value": sample.value,
            "timestamp": sample.at_ms,
        }
    )


class Deltas(Generic[K]):
    """Growth of counters between two calls, by the monotonic clock."""

    # Over a much shorter span the resolution of the clock dominates.
    SHORTEST = 0.5

    def __init__(self) -> None:
        self._at = 0.0
        self._seen: dict[K, float] = {}

    def of(self, counters: Mapping[K, float], at: float | None = None) -> tuple[float, dict[K, float]]:
        """Seconds since the call before, and the growth of each counter since; (0, {}) if that is too recent.

        A counter that shrank was reset: its growth is its present value.
        """
        at = time.monotonic() if at is None else at
        span = at - self._at
        if self._seen and span < self.SHORTEST:
            return 0.0, {}
        before, self._seen, self._at = self._seen, dict(counters), at
        grown = {k: v - before[k] if v >= before[k] else v for k, v in counters.items() if k in before}
        return (span, grown) if before else (0.0, {})
