"""Which of the requested executors an app waits for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from penstock.engine.jvm import bridge
from penstock.settings import ExecutorResources, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
# Checks until an executor that was started must be there.
MAX_CHECKS_WHILE_STARTING = 60


class ExecutorWatch:
    """Watches the executors of a driver's app."""

    def __init__(self, spark: SparkSession, app: str) -> None:
        self._spark, self._request = spark, settings().executor_resources(app)
        self._master = str(spark.sparkContext.master)
        self._id = str(spark.sparkContext.applicationId)
        self._end = threading.Event()
        self.missing: str | None = None
        """None if there are executors, empty while they start, otherwise what the app waits for."""
        if not self._master.startswith("local"):
            self.missing = ""
            # In a thread: a master that hangs answers after minutes.
            threading.Thread(target=self._watch, name="executors", daemon=True).start()

    def close(self) -> None:
        self._end.set()

    def _watch(self) -> None:
        coming = 0
        while not self._end.is_set():
            try:
                if bridge.executor_count(self._spark):
                    self.missing, coming = None, 0
                else:
                    # The last text is kept until the master has answered.
                    self.missing = self.missing or ""
                    missing = self._missing()
                    coming = 0 if missing else coming + 1
                    failing = "they start and end, or do not reach the driver: see their logs"
                    never = f"{describe_request(self._request)}; {failing}"
                    self.missing = missing if coming < MAX_CHECKS_WHILE_STARTING else never
            except Exception as e:  # no answer, or that of another Spark version: the watch goes on
                if self._end.is_set():
                    return
                unknown = f"{describe_request(self._request)}; {self._master} does not say what is free"
                if unknown != self.missing:
                    log.warning("%s: %s", unknown, e)
                self.missing = unknown
            self._end.wait(CHECK_INTERVAL_S)

    def _missing(self) -> str:
        import httpx  # most drivers compute themselves and need no client

        # Of several masters, one of which leads, the first is asked.
        request, url = describe_request(self._request), urlparse(self._master.split(",")[0])
        if url.scheme != "spark" or not url.hostname or not url.port:
            return f"{request} of {self._master}"
        workers = []
        for page in bridge.worker_page_urls(self._spark, url.hostname, url.port):
            try:
                workers.append(httpx.get(f"{page}/json/", timeout=5).json())
            except (httpx.HTTPError, ValueError):
                return f"{request}; worker {page} of {self._master} does not say what is free"
        if any(executor["appid"] == self._id for worker in workers for executor in worker["executors"]):
            return ""
        return f"{request}; {self._master} has {describe_free_resources(workers, self._request)}"


def describe_request(request: ExecutorResources) -> str:
    """The requested resources, as text."""
    each = request.executor_cores or 1
    return f"waits for executors: {request.cores} cores, {each} with {request.memory} each"


def describe_free_resources(workers: Sequence[dict[str, object]], request: ExecutorResources) -> str:
    """What workers have left, as their pages tell it, memory in MiB; and the way out, if none will ever do."""
    if not workers:
        return "no live workers"
    free = [
        (int(str(w["cores"])) - int(str(w["coresused"])), int(str(w["memory"])) - int(str(w["memoryused"])))
        for w in workers
    ]
    listed = ", ".join(f"{cores} cores and {memory} MiB free" for cores, memory in free)
    largest = max(int(str(w["cores"])) for w in workers)
    never = f": no worker has {request.executor_cores} cores at all" if largest < (request.executor_cores or 1) else ""
    return f"{len(workers)} workers with {listed}{never}"
