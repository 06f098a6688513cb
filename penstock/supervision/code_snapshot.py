"""Snapshots of a project's code: which files belong to one, its digest, its archive, and its copy on a host.

A snapshot has all files that streams may read, as a project's modules may import any other and read any file beside
them. It has not what is no code (`EXCLUDED`, `EXCLUDED_AT_TOP`, and the setting `release_exclude`), and not Penstock
itself, which belongs to the environment as Spark does.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from penstock.errors import HostError, ReleaseRefused
from penstock.host import files
from penstock.settings import LIBRARY, settings

Walk = Iterator[tuple[str, list[str], list[str]]]
CodeFiles = Mapping[str, bytes]
"""Content by path in the project, with slashes."""

MAX_BYTES = 64 * 1024 * 1024
"""Of all files of a snapshot, which is stored in the control database and sent to executors."""
EXCLUDED = (".*", "__pycache__", "*.pyc", "*.egg-info", "node_modules")
EXCLUDED_AT_TOP = ("build", "dags", "dist", "docs", "plugins", "tests", "*.md")
READS = 5
"""Times that files are read until two reads agree."""
READ_AGAIN_AFTER = 0.5
"""Seconds; an editor writes its files within less."""
LOCK = ".lock"
UNUSED_S = 3600.0
"""Age from which a copy is removed that no release needs."""
FIXED_TIME = (1980, 1, 1, 0, 0, 0)


class ExecutableFile(bytes):
    """Content of a file that its owner may execute, such as a script that a stream runs. Other bits of its mode depend
    on the umask of whoever checked it out."""


def digest_of(content: CodeFiles) -> str:
    """The digest of paths and contents, and of which files their owner may execute."""
    digest = hashlib.sha256()
    for path, data in sorted(content.items()):
        _add(digest, path, data)
    return digest.hexdigest()


def disk_digest(project: Path) -> str:
    """The digest of a project's files as they are on the disk now; those that cannot be read are left out."""
    digest = hashlib.sha256()
    for name, path in sorted(_project_paths(project, os.walk)):
        with suppress(OSError):
            _add(digest, name, _read_file(path))
    return digest.hexdigest()


def _add(digest: hashlib._Hash, path: str, data: bytes) -> None:
    mark = "x" if isinstance(data, ExecutableFile) else ""
    digest.update(f"{path}\0{len(data)}{mark}\0".encode(errors="surrogateescape"))
    digest.update(data)


def _read_file(path: Path) -> bytes:
    data = path.read_bytes()
    return ExecutableFile(data) if path.stat().st_mode & stat.S_IXUSR else data


def read_project(project: Path) -> CodeFiles:
    """The files of a project, of one moment: they are read until two reads agree.

    Raises:
        ReleaseRefused: There is no project, a file cannot be read, the files are too large, or they keep changing.
    """
    content = _read(project)
    for _ in range(READS):
        # Somebody who writes one file after another would otherwise be met between two of them.
        time.sleep(READ_AGAIN_AFTER)
        previous, content = content, _read(project)
        if content == previous:
            return content
    changing = ", ".join(changed_paths(previous, content)[:5])
    raise ReleaseRefused("files of the project are being changed", got=changing, hint="release when they are complete")


def _read(project: Path) -> CodeFiles:
    if not any((project / folder).is_dir() for folder in ("jobs", "sql")):
        hint = "see that its disk is there, and let PENSTOCK_PROJECT name the folder that holds them"
        raise ReleaseRefused("there is no project: neither jobs/ nor sql/ is a folder there", got=project, hint=hint)
    content: dict[str, bytes] = {}
    size = 0
    try:
        for name, path in sorted(_project_paths(project)):
            _check_name(name)
            with suppress(FileNotFoundError):
                size += path.stat().st_size
                if size <= MAX_BYTES:
                    content[name] = _read_file(path)
    except OSError as e:
        hint = "let the user that Penstock runs as read it, or exclude it"
        raise ReleaseRefused(f"{e.filename} cannot be read", got=e.strerror, hint=hint) from e
    if size > MAX_BYTES:
        raise ReleaseRefused(
            f"the project has more than {MAX_BYTES >> 20} MiB of files that streams may read",
            got=f"{size >> 20} MiB; {_largest(project)}",
            hint="keep data elsewhere, or exclude it by release_exclude in [tool.penstock] of pyproject.toml",
        )
    return content


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as e:
        hint = "give it a name in UTF-8, or exclude it"
        raise ReleaseRefused("the name of a file is not UTF-8", got=ascii(name), hint=hint) from e


def _largest(project: Path) -> str:
    sizes = []
    for name, path in _project_paths(project, os.walk):
        with suppress(OSError):
            sizes.append((path.stat().st_size, name))
    return ", ".join(f"{name} has {size >> 20} MiB" for size, name in sorted(sizes, reverse=True)[:3])


def _project_paths(project: Path, walk: Callable[..., Walk] = files.walk) -> Iterator[tuple[str, Path]]:
    """Path in the project and path on the disk of each file. Links are followed.

    walk: `files.walk`, which fails at a folder that cannot be listed, or `os.walk`, which passes over it.
    """
    s, library = settings(), LIBRARY / "penstock"
    others = {path.resolve() for path in (s.home, s.cache, s.checkpoint_folder, library) if path}
    at_top = (*EXCLUDED, *EXCLUDED_AT_TOP, *(files.HOME_ENTRIES if s.home.resolve() == project.resolve() else ()))
    for folder, names, file_names in walk(project, followlinks=True):
        here = Path(folder)
        inside = here.relative_to(project)
        real = here.resolve()
        # A link may lead back to a folder above.
        is_loop = here.is_symlink() and real in {above.resolve() for above in here.parents}
        if inside.parts and (is_loop or real in others or (here / "pyvenv.cfg").exists()):
            names.clear()
            continue

        def is_code(name: str, inside: Path = inside) -> bool:
            path = (inside / name).as_posix()
            own = EXCLUDED if inside.parts else at_top
            return not any(fnmatch(name, pattern) for pattern in own) and not any(
                fnmatch(path, p) for p in s.release_exclude
            )

        names[:] = sorted(filter(is_code, names))
        for name in filter(is_code, file_names):
            if (here / name).is_file():
                yield (inside / name).as_posix(), here / name


def changed_paths(before: CodeFiles, after: CodeFiles) -> list[str]:
    """Paths of files that differ or that only one of two has, sorted."""

    def differs(path: str) -> bool:
        old, new = before.get(path), after.get(path)
        return old != new or isinstance(old, ExecutableFile) != isinstance(new, ExecutableFile)

    return sorted(filter(differs, before.keys() | after.keys()))


def pack(content: CodeFiles) -> bytes:
    """An archive of files, the same for the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(content.items()):
            info = zipfile.ZipInfo(path, FIXED_TIME)
            info.external_attr = (0o700 if isinstance(data, ExecutableFile) else 0o600) << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def unpack(archive: bytes) -> CodeFiles | None:
    """The files of an archive; None if it is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            return {
                info.filename: (ExecutableFile if info.external_attr >> 16 & stat.S_IXUSR else bytes)(opened.read(info))
                for info in opened.infolist()
            }
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, zlib.error, NotImplementedError):
        return None


def folder_of(digest: str) -> Path:
    """Where this host has its copy of a snapshot."""
    return settings().home / "releases" / digest


def is_copied(digest: str) -> bool:
    """Whether this host has a complete copy of a snapshot: every file is read."""
    return digest_of(read_copy(digest)) == digest


def read_copy(digest: str) -> CodeFiles:
    """The files of this host's copy of a snapshot; none if there is no copy."""
    folder, content = folder_of(digest), dict[str, bytes]()
    for path in folder.rglob("*"):
        # Python writes its bytecode beside the modules.
        with suppress(OSError):
            if "__pycache__" not in path.parts and path.is_file():
                content[path.relative_to(folder).as_posix()] = _read_file(path)
    return content


def write_copy(digest: str, content: CodeFiles) -> None:
    """Write this host's copy of a snapshot, whole or not at all; a damaged one is replaced.

    The disk is not waited for: whoever uses a copy verifies it first, and the control database has the files.

    Raises:
        ReleaseRefused: It cannot be written.
    """
    folder = folder_of(digest)
    with clear_errors(folder.parent), files.owner_only():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(folder.with_name(LOCK)):
            if is_copied(digest):
                return
            fresh = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
            try:
                for path, data in content.items():
                    _write_file(fresh / path, data)
                if folder.exists():
                    folder.rename(fresh / ".replaced")
                fresh.rename(folder)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
                shutil.rmtree(folder / ".replaced", ignore_errors=True)


@contextmanager
def clear_errors(folder: Path) -> Iterator[None]:
    """Turn the error of a folder that cannot be written into ReleaseRefused."""
    try:
        yield
    except HostError as e:
        raise ReleaseRefused(e.what, got=e.got, hint=e.hint) from e
    except OSError as e:
        hint = f"let the user that Penstock runs as write to {folder}, and see that its disk has space"
        raise ReleaseRefused("this host's copy of a snapshot cannot be written", got=e, hint=hint) from e


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    # A copy is not edited; an edit would be noticed at the next start.
    path.chmod(0o500 if isinstance(data, ExecutableFile) else 0o400)


def archive_copy(digest: str) -> Path:
    """A file with the archive of this host's copy of a snapshot.

    Raises:
        ReleaseRefused: It cannot be written.
    """
    path = folder_of(digest).with_suffix(".zip")
    with clear_errors(path.parent):
        content = unpack(path.read_bytes()) if path.exists() else None
        # A loss of power may leave it without content.
        if content is None or digest_of(content) != digest:
            fresh = path.with_name(f"{path.name}.{os.getpid()}")
            fresh.write_bytes(pack(read_copy(digest)))
            fresh.rename(path)
    return path


def prune_copies(keep: set[str]) -> None:
    """Remove this host's copies of other snapshots, and what aborted copies have left; what cannot be removed stays."""
    with suppress(OSError):
        for path in (settings().home / "releases").iterdir():
            if (
                path.name.partition(".")[0] in keep
                or path.name == LOCK
                or time.time() - path.stat().st_mtime < UNUSED_S
            ):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
