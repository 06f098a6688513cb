"""Where the files of one fold's state lie: in a folder of the checkpoint, or in an object store."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlparse

from penstock.codec.arrow_files import ArrowFile, is_intact
from penstock.engine.checkpoint import s3a
from penstock.engine.state import state_part
from penstock.engine.state.state_part import DamagedState, PartManifest
from penstock.host.files import walk
from penstock.object_store.bucket import Bucket, ObjectNotFound

if TYPE_CHECKING:
    from penstock.object_store.endpoint import Endpoint

T = TypeVar("T")
# Bytes of a file that are held at once.
PIECE = 1 << 23
# Requests of the driver that go out at once.
AT_ONCE = 8
# Cached files whose checksum was verified. A worker process is used for many tasks.
VERIFIED: set[str] = set()


class StateFiles(ABC):
    """The files of one fold's state. Keys are paths below the fold's folder: `<batch>.json`, `<part>/<file>`."""

    rebuildable: bool
    """Whether `penstock streams rebuild` can put a state here."""

    @abstractmethod
    def below(self, name: str) -> StateFiles:
        """The files of a folder below this one."""

    @abstractmethod
    def location(self, key: str) -> str:
        """How a file is named in a message."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """All files, by key, with their sizes in bytes."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Read a file.

        Raises:
            DamagedState: The file does not exist.
        """

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Write a file, whole or not at all."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete a file; a file that does not exist is no error."""

    @abstractmethod
    def check(self, files: Mapping[str, ArrowFile]) -> None:
        """Check that files, by key, are as they were written.

        Raises:
            DamagedState: A file is missing or changed.
        """

    @abstractmethod
    def fetch(self, part: int, files: Iterable[ArrowFile]) -> Path:
        """Return a local folder that holds some files of a part; a part's new files are written there too.

        Raises:
            DamagedState: A file is missing or changed.
        """

    @abstractmethod
    def publish(self, part: int, name: str, before: PartManifest, manifest: PartManifest) -> None:
        """Store what a batch made of a part: its new files first, then the manifest, under `<part>/<name>`."""

    def load(self, key: str) -> Any:
        """Read a JSON file that carries a checksum.

        Raises:
            DamagedState: The file is missing or its checksum is wrong.
        """
        text = self.read(key)
        with suppress(ValueError):
            return json.loads(state_part.without_checksum(text.decode()))
        raise DamagedState("a manifest of a stream's state cannot be read", got=self.location(key))

    def load_parts(self, batch: int) -> dict[str, PartManifest]:
        """The manifests of all parts after a batch, by part."""
        key = f"{batch}.json"
        try:
            return {part: PartManifest.of(one) for part, one in self.load(key)["parts"].items()}
        except (KeyError, TypeError, AttributeError) as e:
            raise DamagedState("a manifest of a stream's state cannot be read", got=self.location(key)) from e


def to_text(content: Any) -> str:
    """The text that `StateFiles.load` reads."""
    return state_part.with_checksum(json.dumps(content))


def parts_text(parts: Mapping[str, PartManifest]) -> str:
    """The text of `<batch>.json`."""
    return to_text({"parts": {part: one.to_dict() for part, one in parts.items()}})


def files_of(parts: Mapping[str, PartManifest]) -> dict[str, ArrowFile]:
    """The files of some parts, by key."""
    return {f"{part}/{file.name}": file for part, one in parts.items() for file in one.files}


def for_each(work: Callable[[str], T], keys: Iterable[str]) -> list[T]:
    """The results of some requests, in order; several are sent at once."""
    if not (requested := list(keys)):
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(requested)), "folds") as pool:
        return list(pool.map(work, requested))


@dataclass(frozen=True)
class LocalStateFiles(StateFiles):
    """State in a folder. `Checkpoint.sync` brings it to the disk before a batch's output is visible."""

    folder: str
    rebuildable = True

    def below(self, name: str) -> LocalStateFiles:
        return LocalStateFiles(f"{self.folder}/{name}")

    def location(self, key: str) -> str:
        return f"{self.folder}/{key}"

    def sizes(self) -> dict[str, int]:
        sizes = {}
        for folder, _, names in walk(self.folder):
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):
                    sizes[str(path.relative_to(self.folder))] = path.stat().st_size
        return sizes

    def read(self, key: str) -> bytes:
        try:
            return Path(self.folder, key).read_bytes()
        except FileNotFoundError as e:
            raise DamagedState("a file of a stream's state is missing", got=self.location(key)) from e

    def write(self, key: str, data: bytes) -> None:
        with self._temporary(key, data) as path:
            path.rename(Path(self.folder, key))

    def create(self, key: str, text: str) -> bool:
        """Write a file, whole or not at all, if there is none; whether there was none."""
        with self._temporary(key, text.encode()) as path:
            try:
                os.link(path, Path(self.folder, key))
            except FileExistsError:
                return False
        return True

    @contextmanager
    def _temporary(self, key: str, data: bytes) -> Iterator[Path]:
        target = Path(self.folder, key)
        target.parent.mkdir(parents=True, exist_ok=True)
        path = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        path.write_bytes(data)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def delete(self, key: str) -> None:
        Path(self.folder, key).unlink(missing_ok=True)

    def check(self, files: Mapping[str, ArrowFile]) -> None:
        for key, file in files.items():
            if not is_intact(Path(self.folder, key).parent, file):
                raise DamagedState("a file of a stream's state is missing or changed", got=self.location(key))

    def fetch(self, part: int, files: Iterable[ArrowFile]) -> Path:  # noqa: ARG002
        return Path(self.folder, str(part))

    def publish(self, part: int, name: str, before: PartManifest, manifest: PartManifest) -> None:  # noqa: ARG002
        self.write(f"{part}/{name}", to_text(manifest.to_dict()).encode())


@dataclass(frozen=True)
class RemoteStateFiles(StateFiles):
    """State in an object store. cache: a folder for its files on the disk of the reader."""

    endpoint: Endpoint
    bucket: str
    prefix: str
    cache: str
    rebuildable = False

    @cached_property
    def store(self) -> Bucket:
        return Bucket(self.endpoint, self.bucket, self.prefix)

    def __getstate__(self) -> dict[str, Any]:
        # A client is made by each process.
        return {name: value for name, value in self.__dict__.items() if name != "store"}

    def below(self, name: str) -> RemoteStateFiles:
        return RemoteStateFiles(self.endpoint, self.bucket, f"{self.prefix}/{name}", f"{self.cache}/{name}")

    def location(self, key: str) -> str:
        return self.store.url(key)

    def sizes(self) -> dict[str, int]:
        return {one.key: one.size for one in self.store.list_objects("")}

    def read(self, key: str) -> bytes:
        try:
            return self.store.get(key)
        except ObjectNotFound as e:
            raise DamagedState("a file of a stream's state is missing", got=self.location(key)) from e

    def write(self, key: str, data: bytes) -> None:
        self.store.put(key, data)

    def delete(self, key: str) -> None:
        self.store.delete(key)

    def check(self, files: Mapping[str, ArrowFile]) -> None:
        """Compare sizes only: `fetch` verifies checksums."""
        sizes = self.sizes()
        for key, file in files.items():
            if sizes.get(key) != file.size:
                raise DamagedState("a file of a stream's state is missing or changed", got=self.location(key))

    def fetch(self, part: int, files: Iterable[ArrowFile]) -> Path:
        folder = Path(self.cache, str(part))
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            if _is_cached(folder, file):
                continue
            key = f"{part}/{file.name}"
            fresh = folder / f".{file.name}.{uuid.uuid4().hex}"
            try:
                with self.store.open_input(key) as source, fresh.open("wb") as out:
                    shutil.copyfileobj(source, out, PIECE)
                fresh.rename(folder / file.name)
            except ObjectNotFound as e:
                raise DamagedState("a file of a stream's state is missing", got=self.location(key)) from e
            finally:
                fresh.unlink(missing_ok=True)
            if not _is_cached(folder, file):
                raise DamagedState("a file of a stream's state is changed", got=self.location(key))
        return folder

    def publish(self, part: int, name: str, before: PartManifest, manifest: PartManifest) -> None:
        folder = Path(self.cache, str(part))
        for file in set(manifest.files) - set(before.files):
            with (folder / file.name).open("rb") as source, self.store.open_output(f"{part}/{file.name}") as out:
                shutil.copyfileobj(source, out, PIECE)
            VERIFIED.add(str(folder / file.name))
        self.write(f"{part}/{name}", to_text(manifest.to_dict()).encode())
        # The cache keeps what this batch and the one before it need.
        needed = {file.name for one in (before, manifest) for file in one.files}
        for path in folder.glob("*.arrow"):
            if path.name not in needed:
                path.unlink(missing_ok=True)
                VERIFIED.discard(str(path))


def _is_cached(folder: Path, file: ArrowFile) -> bool:
    """Whether a file is in the cache as it was written; each process verifies its checksum once."""
    path = folder / file.name
    if str(path) in VERIFIED and path.exists():
        return True
    if is_intact(folder, file):
        VERIFIED.add(str(path))
        return True
    return False


def state_files(checkpoint: str, cache: str) -> StateFiles | None:
    """The state files of a checkpoint's folds; None if the checkpoint is neither local nor in an object store.

    Args:
        checkpoint: The URI of a stream's checkpoint.
        cache: A local folder for files of an object store.
    """
    if s3a.is_object_store(checkpoint):
        store = s3a.store_below(f"{checkpoint}/folds")
        return RemoteStateFiles(store.endpoint, store.bucket, store.prefix, cache)
    location = urlparse(checkpoint)
    return LocalStateFiles(f"{location.path}/folds") if location.scheme in ("", "file") else None
