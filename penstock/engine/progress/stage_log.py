"""Tells the log how far Spark is with work that takes minutes."""

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
    """Tell the log now and then how far Spark is."""
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not done.wait(LOG_INTERVAL_S):
            stages = [info for n in tracker.getActiveStageIds() if (info := tracker.getStageInfo(n))]
            how = ", ".join(f"{one.numCompletedTasks} of {one.numTasks}" for one in stages) or "no"
            log.info("stream %s: %.0f s, %s tasks of the present step are done", stream, time.monotonic() - began, how)

    thread = threading.Thread(target=tell, name=f"progress of {stream}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
