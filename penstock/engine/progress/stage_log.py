"""Logs the progress of Spark jobs that take minutes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 5.0


@contextmanager
def log_stage_progress(spark: SparkSession, stream: str) -> Iterator[None]:
    """Log every few seconds how many tasks of the active stages are done."""
    done, started_at = threading.Event(), time.monotonic()

    def log_stages() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not done.wait(LOG_INTERVAL_S):
            stages = [info for n in tracker.getActiveStageIds() if (info := tracker.getStageInfo(n))]
            tasks = ", ".join(f"{one.numCompletedTasks} of {one.numTasks}" for one in stages) or "no"
            elapsed = time.monotonic() - started_at
            log.info("stream %s: %.0f s, %s tasks of the present stage are done", stream, elapsed, tasks)

    thread = threading.Thread(target=log_stages, name=f"progress of {stream}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
