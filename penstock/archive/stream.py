"""An archive as a stream: its input is the raw records of a topic, its output an object store."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from penstock.errors import DeclarationError
from penstock.model.archive import Archive
from penstock.model.input import RECORD_TIMESTAMP, Input
from penstock.model.lazy_spark import F
from penstock.model.mask import Mask, dropped_columns
from penstock.model.mask_expressions import masked_rows
from penstock.model.output import Delivery, Output
from penstock.model.output_mode import Stateless
from penstock.model.stream import Stream
from penstock.model.topic import Topic, topic_name
from penstock.object_store import endpoint

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD_COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")
TARGET_FILE_BYTES = 128 * 1024 * 1024
"""Size to which small files are joined."""


@dataclass(frozen=True)
class ArchiveOutput(Output):
    """An Iceberg table in a folder of a bucket.

    Attributes:
        table: The name of the table in the catalog.
        topics_read: Topics whose records it keeps.
        wait: Seconds from the end of an hour until it is closed.
        target: Bytes to which small files are joined.
        keep_snapshots: How long snapshots are kept.
        snapshot_interval: The least time between two snapshots that are kept, as far as batches make them.
        mask: Columns that the transform has masked.
        decode: The topic whose schema decodes values; None if they are not decoded.
        partition_by: Decoded fields by which hours are partitioned.
    """

    archive: str
    bucket: str
    prefix: str
    table: str
    topics_read: tuple[str, ...]
    wait: float
    target: int = TARGET_FILE_BYTES
    keep_snapshots: timedelta = timedelta(days=1)
    snapshot_interval: timedelta = timedelta(0)
    mask: tuple[Mask, ...] = ()
    decode: Topic | None = None
    partition_by: tuple[str, ...] = ()

    writer: ClassVar[str] = "penstock.archive.writer:open_archive"
    reader: ClassVar[str] = "penstock.archive.offset_reader:open_topic"
    # A record that is written again is recognised by its offset and left out.
    delivery: ClassVar[Delivery] = "upsert"
    empty_batches: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"bucket:{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def location(self) -> str:
        """The folder of the table."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def keyed(self) -> bool:
        """The key of a row is topic, partition and offset."""
        return True

    @property
    def store(self) -> Hashable:
        return self.name

    def columns(self) -> list[Column]:
        return [F.col(name) for name in (*RECORD_COLUMNS, "event_time")]


@dataclass(frozen=True)
class ArchiveTransform:
    """The transform of an archive: records to its columns, `topic, partition, offset, key, value, timestamp, headers,
    event_time`.

    Attributes:
        mask: Columns that are masked; one that is dropped is NULL.
    """

    mask: tuple[Mask, ...] = ()

    def __call__(self, records: DataFrame) -> DataFrame:
        rows = records.select(*(F.col(f"record.{name}").alias(name) for name in RECORD_COLUMNS), "event_time")
        masked = masked_rows(rows, self.mask)
        dropped = dropped_columns(self.mask)
        return masked.withColumns(
            {one.name: F.lit(None).cast(one.dataType) for one in rows.schema.fields if one.name in dropped}
        )


def output_of(archive: Archive, topic: Topic | None = None) -> ArchiveOutput:
    """Where an archive is kept.

    Args:
        archive: The archive.
        topic: Its topic, to write to an archive that has only the name.

    Raises:
        DeclarationError: The topic's schema does not have what the archive is partitioned by.
    """
    readable = topic or not isinstance(archive.topic, str)
    return ArchiveOutput(
        archive.name, archive.bucket, archive.prefix, archive.table_name, (topic_name(archive.topic),),
        archive.close_delay.total_seconds(), keep_snapshots=archive.keep_snapshots, mask=archive.mask,
        snapshot_interval=archive.every, decode=archive.decoded_topic(topic) if readable else None,
        partition_by=archive.partition_by,
    )  # fmt: skip


def archive_stream(archive: Archive, topics: Mapping[str, Topic] | None = None) -> Stream:
    """The stream that runs an archive.

    Args:
        archive: The archive.
        topics: Declared topics by name.

    Raises:
        DeclarationError: The archive is invalid; with its location in the file.
    """
    name = topic_name(archive.topic)
    topic = (topics or {}).get(name) or (archive.topic if isinstance(archive.topic, Topic) else Topic(name))
    output = output_of(archive, topic)
    try:
        stream = Stream(
            name=archive.name, app=archive.app, inputs={"records": _archive_input(archive, topic)},
            transform=ArchiveTransform(archive.mask),
            output=output, output_mode=Stateless(), every=archive.every.total_seconds(),
        max_records=archive.max_records, )  # fmt: skip
    except DeclarationError as e:
        raise DeclarationError(f"{archive.location}: archive {archive.name}: {e.what}", got=e.got, hint=e.hint) from e
    # `Stream` sets the location to this file.
    object.__setattr__(stream, "location", archive.location)
    return stream


def is_configured() -> bool:
    """Whether an object store is configured. An invalid setting counts as configured: the driver reports it."""
    return endpoint.is_configured()


def _archive_input(archive: Archive, topic: Topic) -> Input:
    return Input(topic, schema="", event_time=archive.event_time or RECORD_TIMESTAMP, max_ahead=None, record=True)
