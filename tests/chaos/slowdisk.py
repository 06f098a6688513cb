"""A disk that is slow for some processes, by a library that they load first; a C compiler makes it."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.settings import PROJECT

COMPILER = shutil.which("cc")
SOURCE = PROJECT / "tests" / "chaos" / "slow_disk.c"
SIZE = 4096


class SlowDisk:
    """Slows nothing until it is told to. variables: the environment of processes that are to be slow."""

    def __init__(self, folder: Path) -> None:
        assert COMPILER, "a C compiler"
        library, self._told = folder / "slow_disk.so", folder / "slow_disk"
        subprocess.run([COMPILER, "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        self._told.write_bytes(bytes(SIZE))
        self.variables = {"LD_PRELOAD": str(library), "SLOW_DISK": str(self._told)}

    @contextmanager
    def slow(self, folder: Path, *, write_ms: float, sync_ms: float) -> Iterator[None]:
        """Let each write and each sync of a file below a folder take so much longer."""
        path = str(folder.resolve()).encode()
        self._tell(write_ms, sync_ms, path)
        try:
            yield
        finally:
            self._tell(0, 0, path)

    def _tell(self, write_ms: float, sync_ms: float, path: bytes) -> None:
        with self._told.open("r+b") as out, mmap.mmap(out.fileno(), SIZE) as told:
            # The path last where it is new: nothing is slowed while the numbers are nought.
            told[8 : 8 + len(path) + 1] = path + b"\0"
            told[:8] = struct.pack("II", int(write_ms * 1000), int(sync_ms * 1000))
