"""Arrow files that are written once, never changed, and verified by size and checksum."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa


@dataclass(frozen=True)
class ArrowFile:
    name: str
    rows: int
    size: int
    crc: int


def describe_file(path: Path, rows: int) -> ArrowFile:
    """Describes a file that was just written."""
    return ArrowFile(path.name, rows, path.stat().st_size, _crc(path))


def is_intact(folder: Path, file: ArrowFile) -> bool:
    """Returns whether a file has the size and checksum with which it was written."""
    path = folder / file.name
    try:
        return (path.stat().st_size, _crc(path)) == (file.size, file.crc)
    except OSError:
        return False


def read_mapped(path: Path) -> pa.Table:
    """Returns the rows of a file, memory-mapped."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
    return crc
