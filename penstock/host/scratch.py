"""A folder for what a process needs only while it lives, removed behind it however it ended."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from penstock.host.files import locked

LOCK = ".lock"


def process_folder(root: Path) -> Path:
    """A folder of this process's own in `root`. Those of processes that are gone are removed: a killed JVM leaves its
    shuffle files and unpacked libraries.

    The lock that tells falls with the process; those it starts do not have it.
    """
    with locked(root / LOCK):
        for folder in root.iterdir():
            if folder.is_dir() and not _held(folder / LOCK):
                shutil.rmtree(folder, ignore_errors=True)
        mine = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
        fcntl.flock(os.open(mine / LOCK, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
    atexit.register(shutil.rmtree, mine, ignore_errors=True)
    return mine


def _held(lock: Path) -> bool:
    try:
        with lock.open("r+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
