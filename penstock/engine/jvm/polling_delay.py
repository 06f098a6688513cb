"""How often a query that finds no records asks the broker for new ones. Tested with Spark 4.2.0.

Each question costs the driver and the broker two milliseconds of CPU time together, for each stream and as long as it
runs. So the delay between two questions grows with the time without a batch: a record waits for at most a twentieth of
the silence before it, and no longer than `LONGEST_MS`; of a stream that declares the time between two batches, for at
most a tenth of it, and a second. While a heartbeat is due that closes windows, it is as if there were no silence.
Spark reads its setting once, when a query starts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.model.output_mode import millis

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from penstock.model.output_mode import HeartbeatSchedule

EXECUTION = "org.apache.spark.sql.execution.streaming.runtime.StreamExecution"
# Of a query that has just run a batch; the setting of the session.
SHORTEST_MS = 100
LONGEST_MS = 500
# Of the silence, and the step by which the delay changes: each change is a call of the JVM.
SHARE, STEP_MS = 20, 100
SHARE_OF_EVERY, LONGEST_OF_EVERY_MS = 10, 1000
# From so long before a heartbeat is due, which is longer than until the next adjustment, to so long after that. Where
# heartbeats are due more often than each `RARE_MS`, it would always be so.
BEFORE_MS, AFTER_MS, RARE_MS = 3000, 1000, 10_000


class PollingDelay:
    """The delay between two polls of a query. One that `PENSTOCK_SPARK_CONF` sets for all queries stays.

    Args:
        query: It runs.
        every: Seconds between batches that are not full; 0 if they begin at once.
        schedule: When heartbeats are due, if the query waits for them.
    """

    def __init__(self, query: StreamingQuery, every: float = 0.0, schedule: HeartbeatSchedule | None = None) -> None:
        self._execution: Any = query._jsq.streamingQuery()
        self._ms, self._schedule = self.current_ms(), schedule
        self._fixed = self._ms != SHORTEST_MS
        self._shortest_ms = min(max(SHORTEST_MS, every * 1000 / SHARE_OF_EVERY), LONGEST_OF_EVERY_MS)
        self._longest_ms = max(LONGEST_MS, self._shortest_ms)
        java_class = self._execution.getClass().forName(EXECUTION)
        self._field = java_class.getDeclaredField("pollingDelayMs")
        self._field.setAccessible(True)

    def current_ms(self) -> int:
        """The delay that the query has at present."""
        return int(self._execution.pollingDelayMs())

    def adjust(self, silent_for: float) -> None:
        """Adjust it to the time since the last batch, in seconds."""
        silent_for = 0.0 if self._awaits_heartbeat(int(time.time() * 1000)) else silent_for
        ms = int(min(max(silent_for * 1000 / SHARE, self._shortest_ms), self._longest_ms)) // STEP_MS * STEP_MS
        if ms != self._ms and not self._fixed:
            self._field.setLong(self._execution, ms)
            self._ms = ms

    def _awaits_heartbeat(self, now_ms: int) -> bool:
        schedule = self._schedule
        if schedule is None or millis(schedule.interval) < RARE_MS:
            return False
        return schedule.next(now_ms - AFTER_MS) <= now_ms + BEFORE_MS
