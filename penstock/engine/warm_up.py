"""Prepares a session for streams: what their first batch loads and compiles, it then has."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.engine.operations.stream_preview import StreamPreview
from penstock.engine.session import session_for
from penstock.settings import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.model.stream import Stream

log = logging.getLogger(__name__)


def warm_up(spark: SparkSession, stream: Stream, is_over: Callable[[], bool]) -> bool:
    """Preview a stream until it has read a batch, which leaves no trace; whether it has read one.

    Args:
        spark: The session.
        stream: The stream.
        is_over: Whether to end without a batch.
    """
    batches: list[object] = []
    run = StreamPreview(stream, session_for(spark, stream), settings().bootstrap, "newest", batches.append)
    try:
        with run.running() as plan:
            while any(plan.reads.values()) and not batches and not is_over() and run.wait(0.2):
                pass
    except Exception as e:
        # A project's own code may raise anything.
        log.info("the session is not warmed up by stream %s: %s", stream.name, e)
    return bool(batches)
