"""The sources of backfills: they fetch records into verified local files.

Files have the columns of an archive (`penstock.archive.parquet`). A complete file has its final name, so a run that is
resumed fetches only what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive import records
from penstock.archive.state import Span
from penstock.backfill.skipped_records import SkippedRecords

OnFile = Callable[[int], None]
"""Called for each file with its number of records."""


class BackfillSource(Protocol):
    """The source of a backfill.

    Attributes:
        files: Number of files; 0 if unknown before `fetch`.
        rows: Number of records; 0 if unknown before `fetch`.
        spans: The records by `topic/partition`; may be empty before `fetch`.
        ids: Ids of the archived topics.
        empty_text: The message if there are no records.
        skipped_records: Records that cannot be read, known after `fetch`.
    """

    files: int
    rows: int
    spans: Mapping[str, Span]
    ids: Mapping[str, str]
    empty_text: str
    skipped_records: SkippedRecords

    def fetch(self, folder: Path, on_file: OnFile) -> list[Path]:
        """Write the records to files of a folder, and return these."""


def write_file(path: Path, rows: pa.Table) -> None:
    """Write a file, which gets its name when it is complete."""
    part = path.with_suffix(".part")
    pq.write_table(rows, part, compression="lz4", row_group_size=records.ROW_GROUP_ROWS)
    part.replace(path)
