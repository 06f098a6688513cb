"""The columns, partitions and properties of the table of an archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform, IdentityTransform
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

from penstock.errors import SinkError

if TYPE_CHECKING:
    from pyiceberg.table import Table

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
DECODED = "decoded"
"""The column of decoded fields, a STRUCT. It is there from the first writer on that decodes."""
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
BOUNDED = ("topic", "partition", "offset", "timestamp", "event_time")
"""Columns whose bounds are in the table's metadata: keys and values are not repeated there, where more people read."""
PROPERTIES = {
    **COMMON_PROPERTIES,
    "write.parquet.compression-codec": "zstd",
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in BOUNDED},
}


def check_form(table: Table, name: str) -> None:
    """SinkError if another program has changed the columns or the partitions: files would be misplaced."""
    schema, (hour, *others) = table.schema(), table.spec().fields or (None,)
    has_columns = {(f.field_id, f.name) for f in SCHEMA.fields} <= {(f.field_id, f.name) for f in schema.fields}
    names = decoded_names(schema)
    decoded = [isinstance(f.transform, IdentityTransform) and f.source_id in names for f in others]
    if not has_columns or hour is None or (hour.source_id, str(hour.transform)) != (8, "hour") or not all(decoded):
        raise SinkError(
            f"another program has changed the columns or the partitions of table {name}",
            got=f"columns {', '.join(field.name for field in schema.fields)}; partitions {table.spec()}",
            hint="undo the change; give other partitions to a table of your own that is filled from this one",
        )


def decoded_names(schema: Schema) -> dict[int, str]:
    """The names of the decoded fields by their ids."""
    kinds = [field.field_type for field in schema.fields if field.name == DECODED]
    return {field.field_id: field.name for kind in kinds if isinstance(kind, StructType) for field in kind.fields}
