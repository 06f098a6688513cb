"""Runs a SELECT of a declaration in Spark, over views that have the names of its topics."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.model.checks.spark_plan import nodes, replaced_plan
from penstock.model.types import quoted

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

# Two statements in one session must not see each other's views.
LOCK = threading.Lock()
LINES = re.compile(r"\(line (\d+), pos (\d+)\)")


@contextmanager
def temporary_views(frames: Mapping[str, DataFrame]) -> Iterator[SparkSession]:
    """The session of some frames, which are views in it under the names of their topics."""
    spark = next(iter(frames.values())).sparkSession
    with LOCK:
        for topic, frame in frames.items():
            frame.createOrReplaceTempView(quoted(topic))
        try:
            yield spark
        finally:
            for topic in frames:
                spark.catalog.dropTempView(topic)


def select_nodes(rows: DataFrame) -> list[Any]:
    """The nodes of a SELECT's plan, without what its views do."""
    plan = nodes(replaced_plan(rows), lambda node: node.nodeName() == "View")
    return [node for node in plan if node.nodeName() != "View"]


def error_offset(sql: str, e: PySparkException) -> int | None:
    """The offset of the character of a statement at which Spark puts an error; None if it does not say."""
    starts = [context.startIndex() for context in e.getQueryContext() or () if context.contextType().name == "SQL"]
    if starts and starts[0] >= 0:
        return int(starts[0])
    if match := LINES.search(str(e)):
        return sum(len(line) + 1 for line in sql.split("\n")[: int(match[1]) - 1]) + int(match[2])
    return None


def error_text(e: PySparkException) -> str:
    """Spark's error without the text of the statement."""
    return str(e.getMessage()).split("\n")[0].split(" SQLSTATE:")[0]
