"""A data file of the table of an archive."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask


@dataclass(frozen=True)
class ArchiveFile:
    """A data file of the table.

    Attributes:
        key: Below the folder of the table.
        hour: Of its records' event times.
        timestamps: First and last timestamp of its records; None if they are unknown.
        task: How the library reads it, without the rows that another program has deleted of it.
    """

    key: str
    hour: str
    size: int
    rows: int
    timestamps: tuple[datetime, datetime] | None
    task: FileScanTask

    @property
    def spec_id(self) -> int:
        """Of the partitions that it was written for."""
        return int(self.task.file.spec_id)

    @property
    def values(self) -> tuple[Any, ...]:
        """Of the fields by which its hour was partitioned then."""
        partition = self.task.file.partition
        return tuple(partition[n] for n in range(1, len(partition)))

    @property
    def has_deletes(self) -> bool:
        return bool(self.task.delete_files)
