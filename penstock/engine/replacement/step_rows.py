"""The rows of a new version, in files beside its checkpoint: a Parquet file of each step and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.model.stream import Stream

EARLIER_STEP = -1
"""Stands for the step of rows that a version has written before the one that now runs replaced it."""
SCHEMA = pa.schema({"key": pa.binary(), "value": pa.binary()})


class StepRows:
    """Rows of the steps of a new version: `key BINARY, value BINARY`, in the order in which they would be written.

    Args:
        folder: Where the files are, a folder of each output.
        stream: The stream.
    """

    max_records = 0
    """Records of a step at most; 0 for no limit of its own."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        self._folder = folder
        self._numbers = {output.name: n for n, output in enumerate(stream.outputs.values())}

    def write(self, step: int, rows: Mapping[str, pa.Table]) -> None:
        """Write the rows of a step by output, in place of those of an earlier attempt."""
        for name, number in self._numbers.items():
            table = rows.get(name, SCHEMA.empty_table()).select(SCHEMA.names).cast(SCHEMA)
            folder = self._folder / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            fresh = folder / f"{step}.fresh"
            pq.write_table(table, fresh)
            fresh.replace(folder / f"{step}.parquet")

    def files(self, output: str) -> dict[int, Path]:
        """The files of an output by step, in order; those without rows are left out."""
        paths = {int(path.stem): path for path in (self._folder / str(self._numbers[output])).glob("*.parquet")}
        return {n: paths[n] for n in sorted(paths) if pq.read_metadata(paths[n]).num_rows}
