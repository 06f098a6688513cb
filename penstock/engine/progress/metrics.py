"""The progress of a running stream: counts, rates, lag."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from penstock.control import ProgressRow
from penstock.engine.progress.violation_counts import add_violations
from penstock.kafka.admin import PartitionOffsets

RATE_WINDOW_S = 15.0
# Seconds without progress of a committed reader after which a transaction is reported as open.
OPEN_TRANSACTION_S = 10.0
# A batch that runs longer than so many seconds has more than heartbeats.
LONG_BATCH_S = 1.0
# Lag that lasts so many seconds, which is two measurements, is more than a heartbeat between two batches.
BACKLOG_S = 6.0
# Of Spark's names of the parts of a batch.
BATCH_PARTS: Mapping[str, Sequence[str]] = {
    "offsets_ms": ("latestOffset", "getBatch"),
    "planning_ms": ("queryPlanning",),
    "processing_ms": ("addBatch",),
    "checkpoint_ms": ("walCommit", "commitOffsets"),
}
EPOCH = "1970-01-01T00:00:00.000Z"


class Rate:
    """The rate of a count over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, count: int) -> float:
        """Take a new count; the rate per second."""
        now = time.monotonic()
        self._samples.append((now, count))
        while len(self._samples) > 2 and now - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.popleft()
        since, before = self._samples[0]
        return round((count - before) / (now - since), 1) if now > since else 0.0


class StreamMetrics:
    """A stream's row of progress, shared by the threads that commit, report and reconcile."""

    def __init__(self, row: ProgressRow) -> None:
        self.row = row
        self._lock = threading.Lock()
        self._read, self._written, self._retried = Rate(), Rate(), Rate()
        # Partitions with records that a committed reader does not get: how far it gets, and since when.
        self._open: dict[tuple[str, int], tuple[int, float]] = {}
        self._behind_since: float | None = None
        self.last_progress = ("", -1)

    def set(self, **values: Any) -> None:
        """Set columns of the row."""
        with self._lock:
            for key, value in values.items():
                setattr(self.row, key, value)

    def increment(self, **counts: int) -> None:
        """Add to columns of the row."""
        with self._lock:
            for key, count in counts.items():
                setattr(self.row, key, getattr(self.row, key) + count)

    def add_violations(self, violations: Mapping[str, int]) -> None:
        """Add the violations of a committed batch, by rule."""
        with self._lock:
            self.row.expectations = add_violations(self.row.expectations, violations, int(time.time() * 1000))

    def add_progress(self, progress: dict[str, Any]) -> bool:
        """Take one progress of the query; whether it is of a batch that ended."""
        with self._lock:
            self.last_progress = progress["timestamp"], progress["batchId"]
            # The progress of an idle query is of the batch that it would run next.
            if progress["batchId"] < 0 or "addBatch" not in progress["durationMs"]:
                return False
            row = self.row
            metrics = [m for m in progress.get("observedMetrics", {}).values() if "beats" in m]
            records = _record_count(metrics, progress["numInputRows"])
            # A heartbeat is no record.
            row.rows_in += records - sum(m["beats"] for m in metrics)
            ended: bool = progress["batchId"] != row.batch_id
            if ended:
                row.batch_id = progress["batchId"]
                durations = progress["durationMs"]
                row.batch_ms = int(durations.get("triggerExecution", 0))
                for part, names in BATCH_PARTS.items():
                    setattr(row, part, sum(int(durations.get(name, 0)) for name in names))
                row.batch_at = epoch_ms(progress["timestamp"]) + row.batch_ms
            if watermark := epoch_ms(progress.get("eventTime", {}).get("watermark", EPOCH)):
                row.watermark = watermark
            if progress["stateOperators"]:
                row.state_rows = sum(o["numRowsTotal"] for o in progress["stateOperators"])
                row.state_bytes = sum(o["memoryUsedBytes"] for o in progress["stateOperators"])
            return ended

    def set_lag(
        self,
        offsets: dict[str, dict[int, int]],
        ends: PartitionOffsets,
        stable: PartitionOffsets = MappingProxyType({}),
    ) -> None:
        """Set the lag, in records.

        Args:
            offsets: next offsets of the stream; without any, nothing is known.
            ends: the ends of the partitions.
            stable: how far a committed reader gets, measured before `ends`.
        """
        if not offsets:
            return
        now = time.monotonic()
        hidden = {partition: at for partition, at in stable.items() if ends.get(partition, at) > at}
        since_by_partition = {partition: self._open.get(partition, (at, now)) for partition, at in hidden.items()}
        self._open = {
            partition: offset_and_time if offset_and_time[0] == hidden[partition] else (hidden[partition], now)
            for partition, offset_and_time in since_by_partition.items()
        }
        open_transactions = {
            partition: at for partition, (at, since) in self._open.items() if now - since >= OPEN_TRANSACTION_S
        }
        lags = {
            topic: _sum(max(0, ends[topic, p] - at) if (topic, p) in ends else None for p, at in parts.items())
            for topic, parts in offsets.items()
        }
        topics = {
            topic: {
                "lag": lags[topic],
                "offsets": {str(p): at for p, at in parts.items()},
                "open": {str(p): open_transactions[topic, p] for p in parts if (topic, p) in open_transactions},
            }
            for topic, parts in offsets.items()
        }
        lag = _sum(lags.values())
        self._behind_since = (self._behind_since or now) if lag else None
        self.set(topics=topics, lag=lag)

    def snapshot(self, busy_for: float = 0.0) -> ProgressRow:
        """A copy of the row, with rates over the last seconds. busy_for: seconds since the present batch began."""
        with self._lock:
            self.row.rows_per_s = self._read.update(self.row.rows_in)
            if (store := self.row.store) is not None:
                rates = {
                    "written_per_s": self._written.update(store.get("written", 0)),
                    "retried_per_s": self._retried.update(store.get("retried", 0)),
                }
                self.row.store = {**store, **rates}
            if self.row.state in ("idle", "running"):
                # Rows are counted when their batch ends.
                at_work = bool(self.row.lag) and busy_for > LONG_BATCH_S
                backlog = self._behind_since is not None and time.monotonic() - self._behind_since > BACKLOG_S
                self.row.state = "running" if self.row.rows_per_s or at_work or backlog else "idle"
            return replace(self.row)


def _sum(parts: Iterable[int | None]) -> int | None:
    """The sum; None if a part is not known."""
    values = list(parts)
    return None if None in values else sum(part for part in values if part is not None)


def epoch_ms(iso: str) -> int:
    """Epoch ms of a time in a query's progress; 0 for a watermark that is not there yet."""
    return int(datetime.fromisoformat(iso).timestamp() * 1000)


def _record_count(metrics: Sequence[Mapping[str, int]], read: int) -> int:
    """How many records a batch had. read: what Spark counts, which is each record once for each branch of the plan."""
    values = [m["values"] for m in metrics if "values" in m]
    counts = values + [m["rows"] for m in metrics if "rows" in m]
    # Counts of values leave out tombstones; without other counts each record was read once.
    return sum(counts) if len(values) < len(counts) == len(metrics) else read
