"""The columns, partitions and properties of the table of an archive, and a fault of pyiceberg 0.12.0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

HEADER = StructType(NestedField(10, "key", StringType()), NestedField(11, "value", BinaryType()))
SCHEMA = Schema(
    NestedField(1, "topic", StringType(), doc="topic of the record"),
    NestedField(2, "partition", IntegerType(), doc="its partition"),
    NestedField(3, "offset", LongType(), doc="its offset"),
    NestedField(4, "key", BinaryType()),
    NestedField(5, "value", BinaryType(), doc="null for a tombstone"),
    NestedField(6, "timestamp", TimestamptzType(), doc="the record's own time"),
    NestedField(7, "headers", ListType(9, HEADER, element_required=False)),
    NestedField(8, "event_time", TimestamptzType(), doc="event time by the archive's declaration"),
)
PARTITIONS = PartitionSpec(PartitionField(8, 1000, HourTransform(), "hour"))
COMMON_PROPERTIES = {
    "format-version": "2",
    # The library would commit again on top of what another writer has changed.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Of the table of records, and of that of closed hours."""
PROPERTIES = {
    **COMMON_PROPERTIES,
    "write.parquet.compression-codec": "zstd",
    # Keys and values are not repeated in metadata, which more people may read.
    "write.metadata.metrics.default": "none",
    **{
        f"write.metadata.metrics.column.{name}": "full"
        for name in ("topic", "partition", "offset", "timestamp", "event_time")
    },
}


def thread_safe(change: Any) -> Any:
    """Let each look for the manifests that name removed files have a state of its own: the library shares one among
    threads, which then miss a manifest now and then, and refuses the commit (ValidationException)."""
    build = change._build_manifest_evaluator

    def evaluator(spec: int) -> Callable[[Any], bool]:
        def matches(manifest: Any) -> bool:
            found: bool = build(spec)(manifest)
            return found

        return matches

    change._build_manifest_evaluator = evaluator
    return change
