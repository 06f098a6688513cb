"""The rows that the first batch of a new version writes besides its own: those in which it differs from the version
before, in files of its checkpoint. Beside them are the rows of the version before, which going back writes again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.stream import Stream

FOLDER, EARLIER = "cut-rows", "earlier"


def write(checkpoint: str, stream: Stream, rows: Mapping[str, pa.Table], earlier: Mapping[str, pa.Table]) -> None:
    """Write rows by output, `key BINARY, value BINARY`, in place of earlier ones.

    Args:
        checkpoint: Of the new version.
        stream: The new version.
        rows: What its first batch writes.
        earlier: The newest row of each key of the version before.
    """
    folder = Path(urlparse(checkpoint).path, FOLDER)
    # Those of a process that was killed may be of an earlier moment.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, output in enumerate(stream.outputs.values()):
        if output.name in rows:
            pq.write_table(rows[output.name], folder / f"{number}.parquet")
    if earlier:
        (folder / EARLIER).mkdir()
    for name, table in earlier.items():
        pq.write_table(table, folder / EARLIER / f"{name}.parquet")


def read_earlier(checkpoint: str) -> dict[str, pa.Table]:
    """The rows of the version before, by output."""
    paths = Path(urlparse(checkpoint).path, FOLDER, EARLIER).glob("*.parquet")
    return {path.stem: pq.read_table(path) for path in paths}


def read(checkpoint: str, stream: Stream, batch: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The rows, by output, before those of a batch, with whose columns they are returned."""
    folder, merged = Path(urlparse(checkpoint).path, FOLDER), dict(batch)
    for number, output in enumerate(stream.outputs.values()):
        if (path := folder / f"{number}.parquet").exists():
            rows = pq.read_table(path)
            own = batch.get(output.name, rows.slice(0, 0))
            # A row has headers where the batch has trace contexts.
            merged[output.name] = pa.concat_tables([rows, own], promote_options="permissive").select(own.column_names)
    return merged
