"""Keeps the tables of archives small: old snapshots are expired, and objects that no snapshot needs are deleted.

Joining small files is part of closing an hour (`penstock.archive.hour_closer`). pyiceberg 0.12.0 expires snapshots in
the metadata and leaves their objects, so these are found by listing the folder of the table.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

from penstock.archive import catalog, file_io
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.register import refuse_older_catalog
from penstock.errors import Wait

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from penstock.archive.stream import ArchiveOutput
    from penstock.object_store.bucket import Bucket

log = logging.getLogger(__name__)

ORPHAN_AGE = timedelta(days=1)
"""Objects that are younger may be of a commit that has not ended, or of a reader of a snapshot that was expired."""


@dataclass(frozen=True)
class Maintained:
    """What was removed from a table: snapshots, and objects with their bytes."""

    table: str
    snapshots: int
    objects: int
    bytes: int


def maintain(output: ArchiveOutput, now: datetime | None = None) -> list[Maintained]:
    """Expire the snapshots of an archive's tables that are older than it keeps them, and delete what only they needed.

    Args:
        output: The archive.
        now: By default the present time.

    Raises:
        SinkError: The catalog or the store refuses.
        Wait: One of them does not answer, or the table is changed all the time.
    """
    at, found = now or datetime.now(UTC), []
    ClosedHours.of(output).join_files(at.replace(hour=0, minute=0, second=0, microsecond=0))
    for name in (output.table, f"{output.table}_hours"):
        with catalog.errors(f"table {name}"):
            try:
                table = catalog.open_catalog().load_table(name)
            except NoSuchTableError:
                continue
            refuse_older_catalog(_bucket_of(table), table)
            before = len(table.metadata.snapshots)
            _expire(table, at - output.keep_snapshots)
            deleted = _delete_orphans(table, at - ORPHAN_AGE)
            found.append(Maintained(name, before - len(table.metadata.snapshots), *deleted))
    return found


def _bucket_of(table: Table) -> Bucket:
    """The folder of a table."""
    bucket, _, prefix = table.location().removeprefix("s3://").partition("/")
    return file_io.open_bucket(bucket, prefix)


def _expire(table: Table, before: datetime) -> None:
    old = [s for s in table.metadata.snapshots if s.timestamp_ms < before.timestamp() * 1000]
    if not old:
        return
    try:
        # The library takes a time without a zone for one of UTC.
        table.maintenance.expire_snapshots().older_than(before.replace(tzinfo=None)).commit()
    except (CommitFailedException, ValueError) as e:
        # Somebody else has expired them.
        raise Wait(f"table {'.'.join(table.name())} was changed meanwhile", got=str(e)[:200], seconds=1.0) from e


def _delete_orphans(table: Table, before: datetime) -> tuple[int, int]:
    """Delete the objects below the folder of a table that no snapshot needs.

    Returns:
        How many, and their bytes.
    """
    location = f"{table.location()}/"
    bucket = _bucket_of(table)
    listed = [one for folder in ("data", "metadata") for one in bucket.list_objects(folder)]
    # The clock of this host may be ahead of the store's.
    before = min(before, max((one.changed_at for one in listed), default=before) - ORPHAN_AGE)
    objects = [one for one in listed if one.changed_at < before]
    # Behind the list: what was committed meanwhile is needed.
    table.refresh()
    needed = {path.removeprefix(location) for path in _paths(table)} if objects else set()
    orphans = [one for one in objects if one.key not in needed]
    for one in orphans:
        bucket.delete(one.key)
    if orphans:
        log.info("table %s: deleted %d objects that no snapshot needs", ".".join(table.name()), len(orphans))
    return len(orphans), sum(one.size for one in orphans)


def _paths(table: Table) -> set[str]:
    """The locations of all objects that a table needs."""
    metadata = table.metadata
    paths = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    paths |= {file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)}
    manifests: dict[str, Any] = {}
    for snapshot in metadata.snapshots:
        paths.add(snapshot.manifest_list)
        manifests |= {manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        paths.add(path)
        paths |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    return paths
