"""What a fold keeps of each key, in Arrow files that are never changed, sorted by a hash of the key.

Of each part, which is what one task folds, a folder holds a manifest for each batch that changed it, `<batch>.json`,
and the files that these name, oldest first. A file that has a hash has all keys of that hash, so the newest file that
has it is the one that counts. Two files become one where the older is not twice as long as the newer: so there are few,
each row is written again a logarithm of times, and to find a key is a search in each.

A batch that runs again reads the manifest before it once more and writes its own anew.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_files import ArrowFile, describe_file, is_intact, read_mapped
from penstock.errors import PenstockError

HASH, DELETED = "_hash", "_gone"
# How many batches back a state stays readable: a checkpoint is at most one older than its mark.
BATCHES_KEPT = 3
# Rows of one piece of a file: text of more would not fit into an array of Arrow's.
PIECE = 1_000_000

Hashes = npt.NDArray[np.int64]


class DamagedState(PenstockError):
    """State that cannot be what was written."""


@dataclass(frozen=True)
class PartManifest:
    """A part behind a batch. keys: how many are kept; late: rows of the batch that came too late."""

    files: tuple[ArrowFile, ...] = ()
    keys: int = 0
    late: int = 0

    @classmethod
    def read(cls, path: Path) -> PartManifest:
        """Damaged if it cannot be read."""
        try:
            return cls.of(json.loads(without_checksum(path.read_text())))
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise DamagedState("a manifest of a stream's state cannot be read", got=f"{path}: {e}") from e

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> PartManifest:
        """What was told of it."""
        found = dict(told)
        return cls(tuple(ArrowFile(**file) for file in found.pop("files")), **found)

    def told(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, path: Path) -> None:
        write_file(path, with_checksum(json.dumps(self.told())))


def with_checksum(body: str) -> str:
    """A line of text with its checksum."""
    return f"{body}\n{zlib.crc32(body.encode())}\n"


def without_checksum(text: str) -> str:
    """The line; ValueError if its checksum is another."""
    body, _, crc = text.partition("\n")
    if zlib.crc32(body.encode()) != int(crc):
        raise ValueError("its checksum is another")
    return body


def write_file(path: Path, text: str, *, sync: bool = False) -> None:
    """Put a text in the place of a file, whole or not at all. sync: also where the power fails."""
    fresh = path.with_name(f".{path.name}.{uuid4().hex}")
    with fresh.open("w") as out:
        out.write(text)
        out.flush()
        if sync:
            os.fsync(out.fileno())
    fresh.rename(path)


class StatePart:
    """One part's folder, as one batch finds it. layout: `_hash`, the key's columns and what is kept; before: what it
    was behind the batch before."""

    def __init__(self, folder: Path, layout: pa.Schema, before: PartManifest) -> None:
        self._folder, self._before = folder, before
        self._layout = layout.append(pa.field(DELETED, pa.bool_()))

    def find(self, hashes: Hashes) -> pa.Table:
        """The rows of some hashes, which are sorted and of which none comes twice."""
        found = []
        for file in reversed(self._before.files):
            table = self._read(file)
            known = _hashes(table)
            first, behind = (np.searchsorted(known, hashes, side) for side in ("left", "right"))
            counts = behind - first
            if (hit := counts > 0).any():
                found.append(table.take(_ranges(first[hit], counts[hit])))
                hashes = hashes[~hit]
        rows = pa.concat_tables(found) if found else self._layout.empty_table()
        return rows.filter(pc.invert(rows[DELETED])).drop_columns([DELETED])

    def due(self, field: str, moment: int) -> pa.Table:
        """The rows whose field says a time up to this one."""
        found: list[pa.Table] = []
        newer: list[pa.Table] = []
        for file in reversed(self._before.files):
            table = self._read(file)
            rows = table.filter(pc.less_equal(table[field], pa.scalar(moment, pa.int64())))
            for other in newer if len(rows) else ():
                rows = rows.filter(pa.array(~_among(rows, other)))
            found.append(rows)
            newer.append(table)
        return pa.concat_tables(found or [self._layout.empty_table()]).drop_columns([DELETED])

    def change(
        self, rows: pa.Table, gone: Hashes, was: int, late: int, ended: Callable[[pa.Table], pa.Table]
    ) -> PartManifest:
        """Write what is kept of all keys of some hashes, and say what the part then is; of `gone` there are none any
        more.

        was: how many keys these hashes had. ended: rows without those that may be forgotten.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        alive = rows.append_column(DELETED, pa.array(np.zeros(len(rows), np.bool_))).cast(self._layout)
        none = {name: pa.nulls(len(gone), self._layout.field(name).type) for name in self._layout.names}
        none |= {HASH: pa.array(gone), DELETED: pa.array(np.ones(len(gone), np.bool_))}
        fresh = sort_by_hash(pa.concat_tables([alive, pa.table(none, schema=self._layout)]))
        keys = self._before.keys + len(rows) - was
        files = [*self._before.files, *([self._written(fresh)] if len(fresh) else [])]
        made = set(files) - set(self._before.files)
        while len(files) > 1 and files[-2].rows < 2 * files[-1].rows:
            older, newer = (self._read(file) for file in files[-2:])
            both = sort_by_hash(pa.concat_tables([older.filter(pa.array(~_among(older, newer))), newer]))
            if len(files) == 2:
                # Nothing older is left that what is gone must hide.
                kept = both.filter(pc.invert(both[DELETED]))
                both = sort_by_hash(ended(kept))
                keys -= len(kept) - len(both)
            files[-2:] = [self._written(both)]
            made.add(files[-1])
        for passing in made - set(files):
            (self._folder / passing.name).unlink()
        return PartManifest(tuple(files), keys, late)

    def _read(self, file: ArrowFile) -> pa.Table:
        """The rows of a file. A field that the fold did not keep when it was written is NULL."""
        table = read_mapped(self._folder / file.name)
        if table.schema.names == self._layout.names:
            return table
        there = set(table.schema.names)
        columns = [table[f.name] if f.name in there else pa.nulls(len(table), f.type) for f in self._layout]
        return pa.table(columns, names=self._layout.names)

    def _written(self, rows: pa.Table) -> ArrowFile:
        path = self._folder / f"{uuid4().hex}.arrow"
        with path.open("wb") as out, pa.ipc.new_file(out, self._layout) as writer:
            writer.write_table(rows.combine_chunks(), max_chunksize=PIECE)
        return describe_file(path, len(rows))


def manifest_before(folder: Path, batch: int) -> PartManifest:
    """What a part was behind the batch before one; Damaged if that cannot be read."""
    before = [n for n in versions(folder) if n < batch]
    return PartManifest.read(folder / f"{before[-1]}.json") if before else PartManifest()


def write_part(folder: Path, layout: pa.Schema, batch: int, tables: Iterable[pa.Table]) -> PartManifest:
    """Write a part behind a batch as one file, of rows that come sorted by hash; it is on the disk then.

    layout: `_hash`, the key's columns and what is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, rows = folder / f"{uuid4().hex}.arrow", 0
    whole = layout.append(pa.field(DELETED, pa.bool_()))
    with path.open("wb") as out:
        with pa.ipc.new_file(out, whole) as writer:
            for table in tables:
                alive = table.append_column(DELETED, pa.array(np.zeros(len(table), np.bool_))).cast(whole)
                writer.write_table(alive.combine_chunks(), max_chunksize=PIECE)
                rows += len(table)
        out.flush()
        os.fsync(out.fileno())
    made = PartManifest((describe_file(path, rows),), rows)
    made.write(folder / f"{batch}.json")
    return made


def newest(folder: Path) -> Iterator[PartManifest]:
    """What the parts of a state are now; Damaged if that cannot be read."""
    for part in parts(folder):
        if there := versions(part):
            yield PartManifest.read(part / f"{there[-1]}.json")


def versions(folder: Path) -> list[int]:
    """The batches that changed a part, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit())


def parts(folder: Path) -> Iterator[Path]:
    """The folders of a state's parts."""
    return (path for path in sorted(folder.glob("*")) if path.is_dir() and path.name.isdigit())


def check_files(folder: Path, files: Iterable[ArrowFile]) -> None:
    """Damaged if a file of a part is not as it was written."""
    for file in files:
        if not is_intact(folder, file):
            raise DamagedState("a file of a stream's state is missing or changed", got=str(folder / file.name))


def _hashes(table: pa.Table) -> Hashes:
    pieces = [piece.to_numpy() for piece in table[HASH].chunks]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _ranges(first: npt.NDArray[Any], counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The numbers `first` and those behind it, so many of each."""
    before = np.cumsum(counts) - counts
    return np.repeat(first - before, counts) + np.arange(counts.sum())


def _among(older: pa.Table, newer: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows of the one have a hash of the other; both are sorted."""
    of, known = _hashes(older), _hashes(newer)
    if not len(known):
        return np.zeros(len(of), np.bool_)
    places = np.minimum(np.searchsorted(known, of), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[places] == of
    return found


def sort_by_hash(rows: pa.Table) -> pa.Table:
    return rows.take(np.argsort(_hashes(rows), kind="stable"))


def prune(folder: Path, batch: int, keep: int) -> None:
    """Forget what a part was behind a batch and later, and long before it. `keep` batches before it stay readable."""
    found = versions(folder)
    for later in (n for n in found if n >= batch):
        (folder / f"{later}.json").unlink()
    before = [n for n in found if n < batch]
    # What the oldest batch that may run again reads is the newest before it.
    base = max((n for n in before if n < batch - keep), default=-1)
    for old in (n for n in before if n < base):
        (folder / f"{old}.json").unlink()
    named = {file.name for n in before if n >= base for file in PartManifest.read(folder / f"{n}.json").files}
    for path in folder.iterdir():
        if path.suffix == ".arrow" and path.name not in named:
            path.unlink()
        elif path.name.startswith(".") and path.is_file():
            path.unlink(missing_ok=True)
