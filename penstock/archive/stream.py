"""An archive as a stream: the raw records of its topic as input, and the object store as output."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from penstock.errors import DeclarationError, SinkError
from penstock.model.archive import Archive
from penstock.model.input import RECORD_TIMESTAMP, Input
from penstock.model.lazy_spark import F
from penstock.model.output import Delivery, Output
from penstock.model.output_mode import Stateless
from penstock.model.stream import Stream
from penstock.model.topic import Topic, topic_name
from penstock.object_store import endpoint

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD_COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")
# Bytes of a file that many are joined to.
TARGET_FILE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class ArchiveOutput(Output):
    """A place in a bucket. topics_read: whose records it keeps; wait: seconds after its end until an hour is closed;
    target: bytes of a file that small ones are joined to."""

    archive: str
    bucket: str
    prefix: str
    topics_read: tuple[str, ...]
    wait: float
    target: int = TARGET_FILE_BYTES

    writer: ClassVar[str] = "penstock.archive.writer:open_archive"
    # What is given twice is left out the second time, by its offsets.
    delivery: ClassVar[Delivery] = "upsert"
    empty_batches: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"bucket:{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def keyed(self) -> bool:
        """By topic, partition and offset."""
        return True

    @property
    def store(self) -> Hashable:
        return self.name

    def columns(self) -> list[Column]:
        return [F.col(name) for name in (*RECORD_COLUMNS, "event_time")]


def transform(records: DataFrame) -> DataFrame:
    """`topic, partition, offset, key, value, timestamp, headers, event_time`: the records as they came."""
    return records.select(*(F.col(f"record.{name}").alias(name) for name in RECORD_COLUMNS), "event_time")


def archive_stream(archive: Archive, topics: Mapping[str, Topic] | None = None) -> Stream:
    """The stream that runs it. topics: as the project declares them. DeclarationError with its place in the file."""
    name = topic_name(archive.topic)
    topic = (topics or {}).get(name) or (archive.topic if isinstance(archive.topic, Topic) else Topic(name))
    output = ArchiveOutput(archive.name, archive.bucket, archive.prefix, (name,), archive.close_delay.total_seconds())
    try:
        found = Stream(
            name=archive.name, app=archive.app, inputs={"records": _archive_input(archive, topic)}, transform=transform,
            output=output, output_mode=Stateless(), every=archive.every.total_seconds(),
        max_records=archive.max_records, )  # fmt: skip
    except DeclarationError as e:
        raise DeclarationError(f"{archive.location}: archive {archive.name}: {e.what}", got=e.got, hint=e.hint) from e
    # Not this file, but the declaration's.
    object.__setattr__(found, "location", archive.location)
    return found


def is_configured() -> bool:
    """Whether it is known where the object store is; where that cannot be read, its driver says why."""
    try:
        return endpoint.find_endpoint() is not None
    except SinkError:
        return True


def _archive_input(archive: Archive, topic: Topic) -> Input:
    return Input(topic, event_time=archive.event_time or RECORD_TIMESTAMP, max_ahead=None, record=True)
