"""Folders that are either complete or not there, however a fetch ends."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; whoever comes second waits. The lock falls with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def publish(target: Path, is_current: Callable[[], bool] | None = None) -> Iterator[Path | None]:
    """Fill a folder beside `target` and rename it into place when the block ends well.

    Yields the folder to fill, or None when the target is there already (and `is_current` says it will do).
    """
    current = is_current or (lambda: True)
    if target.exists() and current():
        yield None
        return
    with locked(target.with_name(f".{target.name}.lock")):
        if target.exists() and current():
            yield None
            return
        for stale in target.parent.glob(f".{target.name}.part-*"):
            shutil.rmtree(stale, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.part-", dir=target.parent))
        try:
            yield fresh
            fresh.chmod(0o755)
            if target.exists():
                shutil.rmtree(target)
            fresh.rename(target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
