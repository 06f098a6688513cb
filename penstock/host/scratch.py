"""A temporary folder of one process, removed after the process has ended in any way."""

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

    A folder is in use while its lock is held; the lock ends with the process, and child processes do not have it.
    """
    with locked(root / LOCK):
        for other in root.iterdir():
            if other.is_dir() and not _is_locked(other / LOCK):
                shutil.rmtree(other, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
        fcntl.flock(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _is_locked(lock: Path) -> bool:
    try:
        with lock.open("r+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
