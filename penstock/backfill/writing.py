"""Writes a backfill's rows into their topic: some thousand in a transaction, with the mark of how many there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backfill import rows as given
from penstock.backfill.job import Done, Job
from penstock.kafka.sizes import Message
from penstock.kafka.transactions import TransactionalWriter

HEADER = "penstock.backfill"
"""Of each record: `run/topic/partition/offset`, where the run names the job and what it read, and the rest the row."""
# Rows of one transaction; a pace that is slower takes a second's.
TOGETHER = 20_000
# Of what a pace missed because it waited, so many seconds are made up for.
BURST = 1.0


@dataclass
class Pace:
    """How fast rows may be written. rate: rows a second, 0 for no bound."""

    rate: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _due: float = field(default=0.0, init=False)

    @property
    def together(self) -> int:
        return min(TOGETHER, self.rate) if self.rate else TOGETHER

    def wait(self, count: int) -> None:
        """Return when so many rows may be written."""
        if not self.rate:
            return
        now = self.clock()
        self._due = max(self._due, now - BURST)
        if self._due > now:
            self.sleep(self._due - now)
        self._due += count / self.rate


def write(
    job: Job, done: Done, path: Path, writer: TransactionalWriter, pace: Pace, told: Callable[[int], None]
) -> Done:
    """Write the rows that are not written; told: is asked before each transaction, and may wait, and told how many are.

    LeaseLost if somebody else does the same job meanwhile.
    """
    for table in given.tables(path, done.written, pace.together):
        told(done.written)
        pace.wait(table.num_rows)
        after = done.behind(done.written + table.num_rows)
        writer.commit(_messages(job, done.run, table), after.value())
        done = after
    told(done.written)
    return done


def _messages(job: Job, run: str, rows: pa.Table) -> Iterator[Message]:
    part, number = (rows[name].cast(pa.string()) for name in ("partition", "offset"))
    runs: Any = pa.chunked_array([pa.repeat(run, rows.num_rows)])
    said: Any = pc.binary_join_element_wise(runs, rows["topic"], part, number, "/")
    own = job.replays and job.timestamps == "original"
    # Epoch microseconds; 0 for now.
    micros: Any = rows["timestamp"].cast(pa.int64())
    times: Any = pc.fill_null(micros, 0)
    columns: list[Any] = [said.cast(pa.binary()), rows["key"], rows["value"], times, rows["headers"]]
    for place, key, value, us, headers in zip(*(column.to_pylist() for column in columns), strict=True):
        kept = tuple((h["key"], h["value"]) for h in headers if h["key"] != HEADER) if headers else ()
        yield Message(job.target, key, value, (*kept, (HEADER, place)), timestamp=max(0, us // 1000) if own else 0)
