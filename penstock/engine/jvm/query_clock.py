"""A clock for streaming queries that moves only when it is told to. Tested with Spark 4.2.0.

A query asks its trigger clock for the time of each batch: what is ahead of the present, and how far a batch may move
the watermark, follow from it. Spark's public API has no way to set it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.java_gateway import ensure_callback_server_started

from penstock.engine.jvm.polling_delay import EXECUTION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class QueryClock:
    """The clock of the queries of some sessions.

    Args:
        spark: Any session.
        at_ms: Its time, epoch ms.
    """

    def __init__(self, spark: SparkSession, at_ms: int) -> None:
        session: Any = spark
        self._jvm = session._jvm
        self._clock = self._jvm.org.apache.spark.util.ManualClock(at_ms)
        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]

    def set(self, at_ms: int) -> None:
        """Move it; a running batch keeps the time that it began with."""
        self._clock.setTime(at_ms)

    def drive(self, session: SparkSession) -> None:
        """Let the queries that are started in a session from now on have this clock."""
        streams = session._jsparkSession.streams()
        field = self._jvm.java.lang.Class.forName(EXECUTION).getDeclaredField("triggerClock")
        field.setAccessible(True)
        setter = _ClockSetter(streams, field, self._clock)
        streams.addListener(self._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(setter))


class _ClockSetter:
    """Sets the clock of a query when it starts: Spark waits for that before the first batch.

    PySpark's own listener cannot read the progress of a batch that took no time.
    """

    def __init__(self, streams: Any, field: Any, clock: Any) -> None:
        self._streams, self._field, self._clock = streams, field, clock

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self._field.set(self._streams.get(event.id()).streamingQuery(), self._clock)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
