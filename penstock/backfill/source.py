"""What a backfill reads, brought to the disk file by file and held against what the source says of it.

Every file has the columns of an archive (`penstock.archive.parquet`). One that is there whole has its final name, so a
run that is taken up again fetches only what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive import parquet
from penstock.archive.layout import Span
from penstock.backfill.skipped_records import SkippedRecords

OnFile = Callable[[int], None]
"""Is told of each file that is there, with its records."""


class BackfillSource(Protocol):
    """files, rows: how many there are, 0 if that is not known before they are read. spans: what is read, by place; the
    whole of it, or nothing before `fetch`. ids: the broker's ids of the topics that were archived. nothing: what to say
    if there is no record. left_out: what cannot be read, known behind `fetch`."""

    files: int
    rows: int
    spans: Mapping[str, Span]
    ids: Mapping[str, str]
    nothing: str
    left_out: SkippedRecords

    def fetch(self, folder: Path, told: OnFile) -> list[Path]:
        """Bring it to the disk."""


def write_file(path: Path, rows: pa.Table) -> None:
    """Write a file, which has its name only once it is whole."""
    made = path.with_suffix(".part")
    pq.write_table(rows, made, compression="lz4", row_group_size=parquet.ROW_GROUP_ROWS)
    made.replace(path)
