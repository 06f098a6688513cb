"""The driver of one app: a Spark application that runs the app's streams until it drains.

spark-submit starts it: `driver.py --app APP --incarnation ID`. See `penstock.supervision.lifecycle` for its life.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn

from penstock.control import Control, ProgressRow
from penstock.engine.executor_code import send_code
from penstock.engine.executor_wait import ExecutorWatch
from penstock.engine.host_memory import lacking_memory
from penstock.engine.jvm import bridge
from penstock.engine.progress import batch_spans
from penstock.engine.query.stream_run import StreamRun
from penstock.engine.session import open_session
from penstock.engine.shared_session import SharedSession, attach
from penstock.engine.warm_up import warm_up
from penstock.lineage.emitter import open_emitter
from penstock.settings import settings
from penstock.supervision.lifecycle import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Seconds in which the last events and spans may be sent, of a driver that drains, and events of one that ends at once.
LAST_EVENTS_S = 3.0
ABORT_S = 0.5


class ContextStopped(Exception):
    """Spark stopped its context, as when the master of its cluster has dropped the app."""


class StreamDriver(Driver):
    """Runs one app's streams in one Spark session, in a JVM of its own or in one that apps share."""

    HEALTH_SUBJECT = "the JVM"
    _spark: SparkSession | None = None
    _shared: SharedSession | None = None
    _executors: ExecutorWatch | None = None

    def __init__(self, app: str, incarnation: str, control: Control) -> None:
        self._emitter = open_emitter()
        # The JVM starts while the declarations are read and the leases taken.
        pool = ThreadPoolExecutor(1, "session")
        self._opening = pool.submit(self._open_session, app, incarnation)
        pool.shutdown(wait=False)
        super().__init__(app, incarnation, control)

    def _open_session(self, app: str, incarnation: str) -> SparkSession:
        if not settings().is_together(app):
            return open_session(app)
        self._shared = attach(incarnation)
        return self._shared.spark

    def open(self) -> None:
        self._spark = self._opening.result()
        if self._shared is not None:
            # The JVM writes there why it ended.
            self._log = self._shared.log
        send_code(self._spark)
        self._executors = ExecutorWatch(self._spark, self.app)

    def unmet_resources(self) -> str | None:
        return self._executors.missing if self._executors else None

    def warm_up(self, is_over: Callable[[], bool]) -> None:
        assert self._spark is not None
        for stream in map(self.catalog.stream, self._names):
            # Nobody knows how long it takes to read the tables of a stream.
            if not (stream.tables or is_over()):
                warm_up(self._spark, stream, is_over)

    def standby_obstacle(self) -> str:
        assert self._spark is not None
        if not str(self._spark.sparkContext.master).startswith("local"):
            return "its cluster would have to run both drivers"
        if not any(run.active for run in self._runs.values()):
            return "none of its streams runs"
        return lacking_memory(heap=self._shared is None)

    def create_run(self, name: str, figures: ProgressRow) -> StreamRun:
        assert self._spark is not None
        stream, s = self.catalog.stream(name), settings()
        # What a broken file declares is unknown, so the commit markers are asked instead.
        upstream_streams = None if self._broken_files else self.catalog.upstream_streams(stream)
        return StreamRun(
            stream,
            self._spark,
            s.bootstrap,
            s.checkpoint_root,
            figures,
            self._control,
            out_of_memory=self._ended_without_memory is not None,
            upstream_streams=upstream_streams,
            emitter=self._emitter,
        )

    def _die(self, reason: str, code: int) -> NoReturn:
        self._abort_lineage(reason)
        if self._emitter is not None:
            self._emitter.close(ABORT_S)
        super()._die(reason, code)

    def _drain(self) -> None:
        if self._why is None:
            self._abort_lineage("the driver failed")
        super()._drain()

    def _abort_lineage(self, reason: str) -> None:
        for run in self._runs.values():
            if isinstance(run, StreamRun):
                run.lineage.aborted(reason)

    def health_check(self) -> None:
        """A paused JVM leaves this call waiting; then the leases expire, and the supervisor gets no liveness report."""
        assert self._spark is not None
        if not bridge.is_alive(self._spark):
            raise ContextStopped

    def close(self) -> None:
        if self._executors is not None:
            self._executors.close()
        if self._shared is not None:
            self._shared.close()
        elif self._spark is not None:
            self._spark.stop()
        if self._emitter is not None:
            self._emitter.close(LAST_EVENTS_S)
        batch_spans.flush(LAST_EVENTS_S)


if __name__ == "__main__":
    sys.exit(StreamDriver.main())
