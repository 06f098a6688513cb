"""The state of one part of a fold: Arrow files that are never changed, sorted by a hash of the key.

A part is what one task folds. Its manifest names its files, oldest first. A file that has a hash has all keys of that
hash, so the newest file that has it counts. Two files are merged where the older one is not twice as long as the newer:
so there are few files, each row is rewritten a logarithmic number of times, and a key is found by one search in each.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_files import ArrowFile, describe_file, read_mapped
from penstock.errors import PenstockError

HASH, DELETED = "_hash", "_deleted"
# Rows of one record batch of a file: text of more would not fit into an Arrow array.
PIECE = 1_000_000

Hashes = npt.NDArray[np.int64]


class DamagedState(PenstockError):
    """State that is not what was written."""


@dataclass(frozen=True)
class PartManifest:
    """A part after a batch.

    Attributes:
        files: Its files, oldest first.
        keys: How many keys it has.
        late: Rows of the batch that were late.
    """

    files: tuple[ArrowFile, ...] = ()
    keys: int = 0
    late: int = 0

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> PartManifest:
        fields = dict(content)
        return cls(tuple(ArrowFile(**file) for file in fields.pop("files")), **fields)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def with_checksum(body: str) -> str:
    """A line of text with its checksum."""
    return f"{body}\n{zlib.crc32(body.encode())}\n"


def without_checksum(text: str) -> str:
    """The line; ValueError if its checksum is wrong."""
    body, _, crc = text.partition("\n")
    if zlib.crc32(body.encode()) != int(crc):
        raise ValueError("its checksum is wrong")
    return body


class StatePart:
    """One part, as one batch reads and changes it."""

    def __init__(self, folder: Path, layout: pa.Schema, before: PartManifest) -> None:
        """Nothing is read yet.

        Args:
            folder: Holds the files of `before`; new files are written there.
            layout: `_hash`, the key's columns and the state's columns.
            before: The part after the batch before.
        """
        self._folder, self._before = folder, before
        self._layout = layout.append(pa.field(DELETED, pa.bool_()))

    def find(self, hashes: Hashes) -> pa.Table:
        """The rows of some hashes, which are sorted and unique."""
        tables = []
        for file in reversed(self._before.files):
            table = self._read(file)
            file_hashes = _hashes(table)
            first, last = (np.searchsorted(file_hashes, hashes, side) for side in ("left", "right"))
            counts = last - first
            if (is_hit := counts > 0).any():
                tables.append(table.take(_ranges(first[is_hit], counts[is_hit])))
                hashes = hashes[~is_hit]
        rows = pa.concat_tables(tables) if tables else self._layout.empty_table()
        return rows.filter(pc.invert(rows[DELETED])).drop_columns([DELETED])

    def due(self, field: str, moment: int) -> pa.Table:
        """The rows whose timer field is up to a time, epoch ms."""
        tables: list[pa.Table] = []
        newer: list[pa.Table] = []
        for file in reversed(self._before.files):
            table = self._read(file)
            rows = table.filter(pc.less_equal(table[field], pa.scalar(moment, pa.int64())))
            for other in newer if len(rows) else ():
                rows = rows.filter(pa.array(~_among(rows, other)))
            tables.append(rows)
            newer.append(table)
        return pa.concat_tables(tables or [self._layout.empty_table()]).drop_columns([DELETED])

    def change(
        self, rows: pa.Table, deleted: Hashes, was: int, late: int, drop_expired: Callable[[pa.Table], pa.Table]
    ) -> PartManifest:
        """Write the new state of some hashes.

        Args:
            rows: The rows of all keys of these hashes.
            deleted: Those of the hashes that have no rows any more.
            was: How many keys these hashes had.
            late: How many rows of the batch were late.
            drop_expired: Removes the rows of expired keys.

        Returns:
            The part after the batch.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        alive = rows.append_column(DELETED, pa.array(np.zeros(len(rows), np.bool_))).cast(self._layout)
        none = {name: pa.nulls(len(deleted), self._layout.field(name).type) for name in self._layout.names}
        none |= {HASH: pa.array(deleted), DELETED: pa.array(np.ones(len(deleted), np.bool_))}
        changed = sort_by_hash(pa.concat_tables([alive, pa.table(none, schema=self._layout)]))
        keys = self._before.keys + len(rows) - was
        files = [*self._before.files, *([self._written(changed)] if len(changed) else [])]
        written = set(files) - set(self._before.files)
        while len(files) > 1 and files[-2].rows < 2 * files[-1].rows:
            older, newer = (self._read(file) for file in files[-2:])
            merged_rows = sort_by_hash(pa.concat_tables([older.filter(pa.array(~_among(older, newer))), newer]))
            if len(files) == 2:
                # No older file is left that deletions must hide.
                not_deleted = merged_rows.filter(pc.invert(merged_rows[DELETED]))
                merged_rows = sort_by_hash(drop_expired(not_deleted))
                keys -= len(not_deleted) - len(merged_rows)
            files[-2:] = [self._written(merged_rows)]
            written.add(files[-1])
        for merged in written - set(files):
            (self._folder / merged.name).unlink()
        return PartManifest(tuple(files), keys, late)

    def _read(self, file: ArrowFile) -> pa.Table:
        """The rows of a file. A field that the fold did not have when it was written is NULL."""
        table = read_mapped(self._folder / file.name)
        if table.schema.names == self._layout.names:
            return table
        existing = set(table.schema.names)
        columns = [table[f.name] if f.name in existing else pa.nulls(len(table), f.type) for f in self._layout]
        return pa.table(columns, names=self._layout.names)

    def _written(self, rows: pa.Table) -> ArrowFile:
        path = self._folder / f"{uuid4().hex}.arrow"
        with path.open("wb") as out, pa.ipc.new_file(out, self._layout) as writer:
            writer.write_table(rows.combine_chunks(), max_chunksize=PIECE)
        return describe_file(path, len(rows))


def write_part(folder: Path, layout: pa.Schema, tables: Iterable[pa.Table]) -> PartManifest:
    """Write a part as one file, of rows that come sorted by hash; it is on the disk then.

    Args:
        folder: Where the file is written.
        layout: `_hash`, the key's columns and the state's columns.
        tables: The rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, rows = folder / f"{uuid4().hex}.arrow", 0
    columns = layout.append(pa.field(DELETED, pa.bool_()))
    with path.open("wb") as out:
        with pa.ipc.new_file(out, columns) as writer:
            for table in tables:
                alive = table.append_column(DELETED, pa.array(np.zeros(len(table), np.bool_))).cast(columns)
                writer.write_table(alive.combine_chunks(), max_chunksize=PIECE)
                rows += len(table)
        out.flush()
        os.fsync(out.fileno())
    return PartManifest((describe_file(path, rows),), rows)


def _hashes(table: pa.Table) -> Hashes:
    pieces = [piece.to_numpy() for piece in table[HASH].chunks]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _ranges(first: npt.NDArray[Any], counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Ranges of numbers: each begins with one of `first` and has as many as `counts` says."""
    before = np.cumsum(counts) - counts
    return np.repeat(first - before, counts) + np.arange(counts.sum())


def _among(older: pa.Table, newer: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows of the older table have a hash of the newer one; both are sorted."""
    hashes, newer_hashes = _hashes(older), _hashes(newer)
    if not len(newer_hashes):
        return np.zeros(len(hashes), np.bool_)
    positions = np.minimum(np.searchsorted(newer_hashes, hashes), len(newer_hashes) - 1)
    is_contained: npt.NDArray[np.bool_] = newer_hashes[positions] == hashes
    return is_contained


def sort_by_hash(rows: pa.Table) -> pa.Table:
    return rows.take(np.argsort(_hashes(rows), kind="stable"))
