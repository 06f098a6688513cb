"""What declares partitions: the streams and archives whose closed windows and hours Airflow is told of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from penstock.catalog.catalog import Catalog
from penstock.model.output_mode import EmitFinal
from penstock.model.partition import Partitions


@dataclass(frozen=True)
class PartitionedStream:
    """A stream with partitions.

    Attributes:
        delay: How far its windows may be behind its watermark, because another stateful step precedes them.
    """

    name: str
    partitions: Partitions
    delay: timedelta = timedelta(0)


@dataclass(frozen=True)
class PartitionedArchive:
    """An archive whose closed hours are partitions."""

    name: str
    table: str


Partitioned = PartitionedStream | PartitionedArchive


def partitioned(catalog: Catalog) -> list[Partitioned]:
    """What declares partitions, and runs."""
    found: list[Partitioned] = []
    for stream in catalog.streams.values():
        if (partitions := stream.partitions) and isinstance(stream.output_mode, EmitFinal):
            found.append(PartitionedStream(stream.name, partitions, stream.output_mode.record_retention))
    for archive in catalog.archives.values():
        if archive.partition and archive.name in catalog.streams:
            found.append(PartitionedArchive(archive.name, archive.table_name))
    return found
