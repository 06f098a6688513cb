"""Folders that are complete or absent, and files and folders that only their owner may read."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import HostError

# What a home may hold; Spark makes one of them where it runs.
HOME_ENTRIES = frozenset(
    {
        "airflow",
        "backfills",
        "heartbeat.secret",
        "captures",
        "checkpoints",
        "folds",
        "kafka",
        "logs",
        "mariadb",
        "releases",
        "run",
    }
    | {"elasticsearch", "influxdb", "mongodb", "s3", "s3.secret", "schema_registry", "spark-warehouse", "tables", "tmp"}
    | {"cluster", "kafka.id", "kafka-1", "kafka-2", "kafka-3", "spark", "spark.secret"}
    | {"crowds", "fleets", "views", "views.token"}
)


_changing_umask = threading.Lock()
_umasks: list[int] = []
"""The mode masks before each block of `owner_only` that has not ended; the first is the process's own."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; others wait. The lock is released if the process ends.

    Raises:
        HostError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("w")
    except OSError as e:
        hint = f"let the user that Penstock runs as write to {path.parent}"
        raise HostError("a lock file cannot be written", got=e, hint=hint) from e
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def owner_only() -> Iterator[None]:
    """Let only the owner read files that this process and its children create meanwhile.

    The mode mask is the process's: while another thread is in such a block, it stays as it is.
    """
    with _changing_umask:
        _umasks.append(os.umask(0o077))
    try:
        yield
    finally:
        with _changing_umask:
            before = _umasks.pop()
            if not _umasks:
                os.umask(before)


def walk(folder: Path | str, *, followlinks: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """As os.walk, which passes over a folder that it cannot list as if it were empty.

    Args:
        folder: The folder.
        followlinks: Whether links to folders are followed.

    Raises:
        OSError: A folder cannot be listed. One that is gone meanwhile is passed over.
    """

    def fail(e: OSError) -> None:
        if not isinstance(e, FileNotFoundError):
            raise e

    return os.walk(folder, followlinks=followlinks, onerror=fail)


def make_private(home: Path) -> None:
    """Create a home that only its owner may enter, or remove the access of others from an existing one.

    A folder with other entries than those of a home is left as it is.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = home.stat()
    if not status.st_mode & 0o077 or status.st_uid != os.geteuid() or is_shared(home):
        return
    # Closed last, so that a walk that was cut off is made again.
    for folder, _, names in os.walk(home, topdown=False):
        for path in (Path(folder, name) for name in [*names, "."]):
            with suppress(OSError):  # gone meanwhile, or another's
                mode = path.lstat().st_mode
                if not stat.S_ISLNK(mode) and mode & 0o077:
                    path.chmod(stat.S_IMODE(mode) & 0o700)


def is_shared(home: Path) -> bool:
    """Whether a home has other entries than those of a home."""
    return any(path.name not in HOME_ENTRIES for path in home.iterdir())


def remove_home(home: Path) -> list[str]:
    """Remove the entries of a home, and the home unless it has others; returns the names of those."""
    others = []
    for path in sorted(home.iterdir()):
        if path.name not in HOME_ENTRIES:
            others.append(path.name)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not others:
        home.rmdir()
    return others


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone may read, complete or not at all."""
    fresh = path.with_name(f".{path.name}.part")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    fresh.rename(path)


@contextmanager
def publish(target: Path, is_current: Callable[[], bool] | None = None) -> Iterator[Path | None]:
    """Fill a folder next to `target`, and rename it to `target` when the block ends without an error.

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
