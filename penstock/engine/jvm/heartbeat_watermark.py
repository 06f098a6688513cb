"""Lets heartbeats move the watermark of a query before their batch is planned. Tested with Spark 4.2.0.

Spark moves it when a batch ends, and closes windows in another batch, without records. Where a batch has heartbeats
alone, one does both: `java/HeartbeatWatermarkTracker.java`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.engine.checkpoint.offset_log import TopicOffsets

log = logging.getLogger(__name__)

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"

HeartbeatTime = Callable[[list[tuple["TopicOffsets", "TopicOffsets"]]], int | None]
"""The epoch ms of the heartbeats between the first and next offsets of each source; None if there is another record, or
a partition without a heartbeat."""


def watch(query: StreamingQuery, spark: SparkSession, delay_ms: int, heartbeat_time: HeartbeatTime) -> None:
    """Let the heartbeats of the batches after the present one move the watermark. Called in a batch of the query.

    Args:
        query: The query.
        spark: Its session.
        delay_ms: The delay of its watermark.
        heartbeat_time: Asked for each batch with records, before it is planned.
    """
    jvm: Any = spark._jvm
    execution = query._jsq.streamingQuery()
    callback = _HeartbeatTime(heartbeat_time)
    tracker = jvm.penstock.HeartbeatWatermarkTracker(execution, spark.conf.get(POLICY, "min"), delay_ms, callback)
    getattr(execution, "watermarkTracker_$eq")(tracker)


class _HeartbeatTime:
    def __init__(self, heartbeat_time: HeartbeatTime) -> None:
        self._heartbeat_time = heartbeat_time

    def apply(self, offsets: str) -> int:
        try:
            sources = [(_partitions(start), _partitions(end)) for start, end in json.loads(offsets)]
            return self._heartbeat_time(sources) or 0
        except Exception:
            # The watermark moves one batch later.
            log.exception("the heartbeats of a batch cannot be read")
            return 0

    class Java:
        implements: ClassVar = ["java.util.function.Function"]


def _partitions(offset: dict[str, dict[str, int]]) -> TopicOffsets:
    return {topic: {int(p): at for p, at in parts.items()} for topic, parts in offset.items()}
