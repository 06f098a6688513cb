"""The partitions that a backfill has changed: Airflow gets an event for each of them, so that its DAGs run again."""

from __future__ import annotations

import logging
from datetime import datetime

from penstock.catalog import Catalog
from penstock.control.repositories.partitions import PartitionRepository
from penstock.model.partition import partition_start

log = logging.getLogger(__name__)

CHUNK = 1000
"""Partitions of one transaction."""


def emit_changed_partitions(
    catalog: Catalog, control: PartitionRepository, target: str, begin: datetime | None, end: datetime
) -> int:
    """Record events for the closed partitions of an interval, if the target is the output of a stream that has any.

    A run that is repeated records them again.

    Args:
        catalog: The project.
        control: The control database.
        target: The topic that was written.
        begin: Start of the interval; None for all that is recorded.
        end: End of the interval, exclusive.

    Returns:
        How many events are due by this.
    """
    count = 0
    for stream in catalog.streams.values():
        if (partitions := stream.partitions) is None or target not in stream.output_names:
            continue
        if begin is None:
            keys = [key for key in control.partition_revisions(stream.name) if partition_start(key) < end]
        else:
            keys = partitions.overlapping(begin, end)
        parts = (keys[start : start + CHUNK] for start in range(0, len(keys), CHUNK))
        new = sum(control.renew_partitions(stream.name, part) for part in parts)
        if new:
            log.info("stream %s: %d partitions have changed, and get an event", stream.name, new)
        count += new
    return count
