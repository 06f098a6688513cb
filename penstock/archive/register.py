"""Lets a catalog know a table that lies in the folder of an archive, after the catalog that knew it was lost."""

from __future__ import annotations

import gzip
import json
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import NoSuchTableError, ServerError

from penstock.archive import catalog, file_io
from penstock.archive.state import ArchiveState
from penstock.errors import SinkError, Wait

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from penstock.archive.stream import ArchiveOutput
    from penstock.object_store.bucket import Bucket

STATE, ARCHIVE = "penstock.state", "penstock.archive"
METADATA = re.compile(r"metadata/(\d+)-[0-9a-f-]+(\.gz)?\.metadata\.json$")
UNREADABLE = "unreadable"
ATTEMPTS = 5
COMMIT_TIME = 5.0
"""Seconds after which a commit that has written its metadata has counted, or was refused."""


def metadata_files(bucket: Bucket) -> dict[str, int]:
    """The metadata files in the folder of a table, and their versions."""
    keys = [one.key for one in bucket.list_objects("metadata")]
    return {key: int(match[1]) for key in keys if (match := METADATA.fullmatch(key))}


def metadata_version(location: str) -> int:
    """The version of a metadata file, by its name; 0 for a name of another program."""
    match = METADATA.search(location)
    return int(match[1]) if match else 0


def refuse_unknown_table(bucket: Bucket, archive: str) -> None:
    """SinkError if a folder has a table, of which the catalog of its archive does not know."""
    # Version 0 alone is a table whose making was cut off.
    if any((versions := metadata_files(bucket)).values()):
        # To make one beside it would hide its records, and two catalogs would delete each other's files.
        raise SinkError(
            f"the folder of archive {archive} has a table that the catalog does not know",
            got=bucket.url(max(versions, key=versions.__getitem__)),
            hint=f"if the catalog that knew it is lost: penstock archives register {archive}; if another one knows it, "
            "declare another prefix",
        )


def refuse_older_catalog(bucket: Bucket, table: Table) -> None:
    """Refuse a catalog that was restored from an older copy: what was committed since would be lost, or deleted.

    Args:
        bucket: The folder of the table.
        table: As the catalog names it. It is read again if it seems to be older.

    Raises:
        SinkError: The folder has newer metadata. One version more is of a commit that was refused.
    """
    newest = max(metadata_files(bucket).values(), default=0)
    if newest > metadata_version(table.metadata_location) + 1:
        # Others may have committed between its read and the list.
        table.refresh()
    if newest > (known := metadata_version(table.metadata_location)) + 1:
        raise _older_catalog(table, known, newest)


def refuse_older_state(before: Table, now: Table) -> None:
    """Refuse a catalog that was turned back while a table is open: a writer would go on without what it has committed.

    Args:
        before: The table as it was read or committed last.
        now: The same table.

    Raises:
        SinkError: It is older now.
    """
    known, newest = metadata_version(now.metadata_location), metadata_version(before.metadata_location)
    if newest > known:
        raise _older_catalog(now, known, newest)


def _older_catalog(table: Table, known: int, newest: int) -> SinkError:
    return SinkError(
        f"the catalog names an older state of table {'.'.join(table.name())} than its folder has",
        got=f"version {known} of {newest}",
        hint=f"let it know the newest: penstock archives register {table.properties.get(ARCHIVE, '')}".rstrip(),
    )


def register(output: ArchiveOutput) -> list[str]:
    """Let the catalog know the tables of an archive by their newest metadata, whatever it knew before.

    A metadata file may be there whose commit was refused; its snapshot is not there then. Of several of the newest
    version that of the newest writer counts, with the most records.

    Args:
        output: The archive.

    Returns:
        The metadata files.

    Raises:
        SinkError: There is no table in the folder.
        Wait: The catalog or the store does not answer, or the archive is written all the time.
    """
    tables, found = catalog.open_catalog(), []
    for name, prefix in ((output.table, output.prefix), (f"{output.table}_hours", f"{output.prefix}_hours")):
        bucket = file_io.open_bucket(output.bucket, prefix)
        if metadata_files(bucket):
            with catalog.errors(f"table {name}"):
                tables.create_namespace_if_not_exists(name.rpartition(".")[0])
                found.append(_register(tables, name, bucket, output.archive))
        elif name == output.table:
            raise SinkError(
                f"there is no table of archive {output.archive}",
                got=bucket.url("metadata"),
                hint="check the bucket and the prefix that it declares",
            )
    return found


def _register(tables: Catalog, name: str, bucket: Bucket, archive: str) -> str:
    """The metadata file by which the catalog knows a table then."""
    before = None
    for _ in range(ATTEMPTS):
        # The catalog is asked first: what is committed behind that is no reason to change it.
        known = _known(tables, name)
        newest = _newest(bucket, archive)
        if known == newest:
            return newest
        # A commit that has just begun has metadata that the catalog does not name yet; if it is refused, its snapshot
        # goes.
        if (known, newest) != before:
            before = known, newest
            time.sleep(COMMIT_TIME)
        elif known not in ("", UNREADABLE) and isinstance(tables, catalog.ControlCatalog):
            if tables.replace_metadata(name, known, newest):
                return newest
        else:
            if known:
                tables.drop_table(name)
                # Nobody commits any more, and what was committed until now is in the folder.
                newest = _newest(bucket, archive)
            tables.register_table(name, newest)
            return newest
    raise Wait(f"table {name} is written all the time", got=known, seconds=COMMIT_TIME)


def _known(tables: Catalog, name: str) -> str:
    """The metadata file by which the catalog knows a table; empty if it does not know it."""
    try:
        return tables.load_table(name).metadata_location
    except NoSuchTableError:
        return ""
    except (SinkError, ServerError, *catalog.DAMAGED):
        # What the catalog names is not there, or damaged; a REST catalog looks itself, and fails.
        return UNREADABLE


def _newest(bucket: Bucket, archive: str) -> str:
    """The newest metadata file in a folder that is whole."""
    versions = metadata_files(bucket)
    for last in sorted(set(versions.values()), reverse=True):
        if same := [key for key, version in versions.items() if version == last and _is_whole(bucket, key)]:
            return bucket.url(max(same, key=partial(_order, bucket)))
    raise SinkError(
        f"no metadata of archive {archive} has its snapshot",
        got=bucket.url(max(versions, default="metadata")),
        hint="restore the folder from a version or backup of the bucket",
    )


def _read(bucket: Bucket, key: str) -> dict[str, Any]:
    """What a metadata file says. ValueError if it is cut off."""
    try:
        data = bucket.get(key)
        found: dict[str, Any] = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    except (EOFError, OSError) as e:
        raise ValueError(f"{key} is cut off") from e
    return found


def _is_whole(bucket: Bucket, key: str) -> bool:
    """Whether the current snapshot of a metadata file is there."""
    try:
        metadata = _read(bucket, key)
        current = metadata.get("current-snapshot-id")
        lists = [one["manifest-list"] for one in metadata.get("snapshots", []) if one["snapshot-id"] == current]
    except (ValueError, KeyError, TypeError):
        return False
    root = bucket.url("")
    return not lists or bucket.size(lists[0].removeprefix(root)) is not None


def _order(bucket: Bucket, key: str) -> tuple[int, int]:
    """The claim of the writer of a metadata file, and the sum of its offsets; zeros for a table without a state."""
    try:
        properties: dict[str, Any] = _read(bucket, key)["properties"]
        state = ArchiveState.read(properties[STATE], bucket.url(key))
    except (ValueError, KeyError, SinkError):
        return 0, 0
    return state.claim[0], sum(sum(offsets.values()) for offsets in state.positions.values())
