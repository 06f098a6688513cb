"""Writes a backfill's rows to their topic, some thousand per transaction, with the marker of their number."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backfill import transform as given
from penstock.backfill.job import BackfillJob, BackfillMarker
from penstock.kafka.limits import HEADER_OVERHEAD, RECORD_OVERHEAD, Headers, ProducerBatch, producer_timestamp
from penstock.kafka.transactions import TransactionalWriter

ROW_HEADER = "penstock.backfill"
"""Header of each record: `run/topic/partition/offset`, which identifies the run and the row."""
# Rows of one transaction; with a lower rate those of one second.
ROWS_PER_TRANSACTION = 20_000
# Seconds of unused rate that may be caught up.
BURST_SECONDS = 1.0


@dataclass
class RateLimiter:
    """Limits the write rate to `rate` rows per second; 0 for no limit."""

    rate: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _due: float = field(default=0.0, init=False)

    @property
    def batch_rows(self) -> int:
        return min(ROWS_PER_TRANSACTION, self.rate) if self.rate else ROWS_PER_TRANSACTION

    def acquire(self, count: int) -> None:
        """Wait until `count` rows may be written."""
        if not self.rate:
            return
        now = self.clock()
        self._due = max(self._due, now - BURST_SECONDS)
        if self._due > now:
            self.sleep(self._due - now)
        self._due += count / self.rate


def write_rows(
    job: BackfillJob,
    marker: BackfillMarker,
    path: Path,
    writer: TransactionalWriter,
    limiter: RateLimiter,
    on_progress: Callable[[int], None],
) -> BackfillMarker:
    """Write the rows that are not written yet.

    Args:
        job: The job.
        marker: Its marker.
        path: The file of rows.
        writer: The producer.
        limiter: Limits the rate.
        on_progress: Called before each transaction with the number of written rows; it may wait.

    Raises:
        LeaseLost: Another process runs the same job.
    """
    for table in given.read_rows(path, marker.written, limiter.batch_rows):
        on_progress(marker.written)
        limiter.acquire(table.num_rows)
        next_marker = marker.with_written(marker.written + table.num_rows)
        writer.commit(_producer_batch(job, marker.run, table), next_marker.value())
        marker = next_marker
    on_progress(marker.written)
    return marker


def _producer_batch(job: BackfillJob, run: str, rows: pa.Table) -> ProducerBatch:
    partitions, offsets = (rows[name].cast(pa.string()) for name in ("partition", "offset"))
    runs: Any = pa.chunked_array([pa.repeat(run, rows.num_rows)])
    row_ids: Any = pc.binary_join_element_wise(runs, rows["topic"], partitions, offsets, "/").cast(pa.binary())
    row_id_texts = row_ids.to_pylist()
    sizes = (
        _byte_lengths(rows["key"])
        + _byte_lengths(rows["value"])
        + _byte_lengths(row_ids)
        + RECORD_OVERHEAD
        + len(ROW_HEADER)
        + HEADER_OVERHEAD
    )
    record_headers = None
    if rows["headers"].null_count < rows.num_rows:
        record_headers, header_sizes = _record_headers(rows["headers"])
        sizes = sizes + header_sizes

    def headers() -> Iterator[Headers]:
        if record_headers is None:
            return ([(ROW_HEADER, row_id)] for row_id in row_id_texts)
        return (
            [*headers_of_record, (ROW_HEADER, row_id)]
            for headers_of_record, row_id in zip(record_headers(), row_id_texts, strict=True)
        )

    times = [0] * rows.num_rows
    if job.replays and job.timestamps == "original":
        stamps: Any = rows["timestamp"].cast(pa.int64())
        micros = pc.fill_null(stamps, -1)
        times = [producer_timestamp(micros_of_row) for micros_of_row in (_to_int64(micros) // 1000).tolist()]
    return ProducerBatch(job.target, rows["key"].to_pylist(), rows["value"].to_pylist(), headers, times, sizes)


def _record_headers(column: Any) -> tuple[Callable[[], Iterator[Headers]], npt.NDArray[np.int64]]:
    """The records' own headers, and their sizes in bytes."""
    lists = column.combine_chunks()
    names, values = lists.flatten().flatten()
    bounds, sizes = (
        _prefix_sums(_to_int64(pc.list_value_length(lists))),
        _prefix_sums(_byte_lengths(names) + _byte_lengths(values) + HEADER_OVERHEAD),
    )
    firsts, lasts = bounds[:-1].tolist(), bounds[1:].tolist()
    names, values = names.to_pylist(), values.to_pylist()

    def headers_of_records() -> Iterator[Headers]:
        for first, last in zip(firsts, lasts, strict=True):
            pairs = zip(names[first:last], values[first:last], strict=True)
            yield [pair for pair in pairs if pair[0] != ROW_HEADER]

    return headers_of_records, sizes[bounds[1:]] - sizes[bounds[:-1]]


def _byte_lengths(column: Any) -> npt.NDArray[np.int64]:
    """The length of each value in bytes."""
    return _to_int64(pc.binary_length(column))


def _to_int64(column: Any) -> npt.NDArray[np.int64]:
    """Values as int64, 0 for NULL."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0))


def _prefix_sums(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum before each number, and the total."""
    return np.concatenate(([0], np.cumsum(numbers)))
