"""State of folds whose checkpoint lies in an object store, below `folds/<name>/`.

A worker brings the files of its part that it lacks to a disk of its host, folds there as ever, puts what it made into
the store and says so in `<part>/<batch>-<attempt>.json`. When all have, and before the batch's output is made visible,
the driver puts one object, `<batch>.json`, which names the files of all parts: that is the commit of the state. It is
a conditional write, as those of Spark's logs are: of two drivers the store takes the first, and the other's batch
fails. No object is written over by another attempt, so what a try left that did not end is named by nothing, and is
removed, by whoever opens the state or has kept a batch of it. Who opens it says so first: so one that was paused sees
that parts it looks for may be gone.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.codec.arrow_files import ArrowFile, is_intact
from penstock.engine.checkpoint import s3a
from penstock.engine.checkpoint.recovery import damaged_checkpoint
from penstock.engine.state import keyed_store
from penstock.engine.state.keyed_store import BATCHES_KEPT, DamagedState, PartManifest
from penstock.errors import LeaseLost, PenstockError
from penstock.object_store.bucket import Bucket, ObjectNotFound

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.engine.state.fold import FoldContext
    from penstock.object_store.endpoint import Endpoint

T = TypeVar("T")
# A local property: what the driver tells the tasks of a batch, as JSON.
BATCH_PROPERTY = "penstock.folds"
# Bytes of a file that are held at once.
PIECE = 1 << 23
# Requests of the driver that go out at once.
AT_ONCE = 8
# Files of parts that a disk was found to hold as they were written. A worker is used for many tasks.
VERIFIED: set[str] = set()
ATTEMPT = re.compile(r"(\d+)/(\d+)-([0-9a-f]+)\.json")
VERSION = re.compile(r"(\d+)\.json")
# Who tends the state. In a list it comes behind the parts.
OPENED = "opened-"


@dataclass(frozen=True)
class RemoteState:
    """Where one fold's state lies. cache: a folder for its files on the disk of whoever reads them."""

    endpoint: Endpoint
    bucket: str
    prefix: str
    cache: str

    @cached_property
    def store(self) -> Bucket:
        return Bucket(self.endpoint, self.bucket, self.prefix)

    def __getstate__(self) -> dict[str, Any]:
        # A client is made by each process.
        return {name: value for name, value in self.__dict__.items() if name != "store"}

    def below(self, name: str) -> RemoteState:
        return RemoteState(self.endpoint, self.bucket, f"{self.prefix}/{name}", f"{self.cache}/{name}")

    def said(self, name: str) -> Any:
        """What an object says; Gone if it is not there, Damaged if it cannot be read."""
        return _checked(self.store.get(name), self.store.place(name))

    def brought(self, part: int, files: Iterable[ArrowFile]) -> Path:
        """The folder of a part, with some of its files on this disk; Damaged if one is not as it was written."""
        folder = Path(self.cache, str(part))
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            if _is_here(folder, file):
                continue
            key = f"{part}/{file.name}"
            fresh = folder / f".{file.name}.{uuid.uuid4().hex}"
            try:
                with self.store.opened(key) as source, fresh.open("wb") as out:
                    shutil.copyfileobj(source, out, PIECE)
                fresh.rename(folder / file.name)
            except ObjectNotFound as e:
                raise DamagedState("a file of a stream's state is missing", got=self.store.place(key)) from e
            finally:
                fresh.unlink(missing_ok=True)
            if not _is_here(folder, file):
                raise DamagedState("a file of a stream's state is changed", got=self.store.place(key))
        return folder

    def keep(self, part: int, name: str, before: PartManifest, made: PartManifest) -> None:
        """Put what a part has become, the files first; what neither it nor what it was needs leaves this disk."""
        folder = Path(self.cache, str(part))
        for file in set(made.files) - set(before.files):
            with (folder / file.name).open("rb") as source, self.store.stream(f"{part}/{file.name}") as out:
                shutil.copyfileobj(source, out, PIECE)
            VERIFIED.add(str(folder / file.name))
        self.store.put(f"{part}/{name}", _said(made.told()).encode())
        needed = {file.name for one in (before, made) for file in one.files}
        for path in folder.glob("*.arrow"):
            if path.name not in needed:
                path.unlink(missing_ok=True)
                VERIFIED.discard(str(path))


def _is_here(folder: Path, file: ArrowFile) -> bool:
    """Whether a file is on this disk as it was written; it is looked through once by each process."""
    path = folder / file.name
    if str(path) in VERIFIED and path.exists():
        return True
    if is_intact(folder, file):
        VERIFIED.add(str(path))
        return True
    return False


def remote_state(path: str, cache: str) -> RemoteState:
    """Of a checkpoint in an object store."""
    store = s3a.store_below(f"{path}/folds")
    return RemoteState(store.endpoint, store.bucket, store.prefix, cache)


@dataclass(frozen=True)
class BatchInfo:
    """What a task is told. times: the watermark, and how far time has come, epoch ms. before: the object that says what
    the parts were; empty for nothing."""

    batch: int
    attempt: str
    watermark: int
    time: int
    before: str

    @classmethod
    def of(cls, task: TaskContext, fold: str) -> BatchInfo:
        """PenstockError if the fold is computed outside its batch."""
        number, said = task.getLocalProperty("streaming.sql.batchId"), task.getLocalProperty(BATCH_PROPERTY)
        told = cls(**json.loads(str(said))) if said else None
        if number is None or told is None or int(str(number)) != told.batch:
            raise PenstockError(
                f"fold {fold} is computed outside its batch",
                got=f"batch {number}, and the state is made ready for batch {told.batch if told else None}",
                hint="leave its frame out of broadcast hints and subqueries",
            )
        return told

    def was(self, far: RemoteState, part: int) -> PartManifest:
        """What a part was behind the batch before."""
        if not self.before:
            return PartManifest()
        found = far.said(self.before)["parts"].get(str(part))
        return PartManifest.of(found) if found else PartManifest()

    def name(self) -> str:
        return f"{self.batch}-{self.attempt}.json"


class ObjectFoldStore:
    """The state of a stream's folds in an object store, as its driver tends it; the calls are those of `Folds`."""

    def __init__(self, stream: str, spark: SparkSession, path: str, create: Callable[[str, str], bool]) -> None:
        """create: puts a text under a name of the checkpoint where there is nothing; whether there was nothing."""
        self._stream, self._spark, self._path, self._create = stream, spark, path, create
        self._folds: dict[str, RemoteState] = {}
        # Behind which batch, and what each part was behind it and those before that are still kept.
        self._known: dict[str, dict[int, dict[str, PartManifest]]] = {}
        self._attempt, self._late, self._opened = "", False, ""
        self.kept: tuple[int, int] | None = None
        """The keys and the bytes that are kept, since the last batch."""

    def open(self, found: FoldContext, done: int) -> None:
        """Take up what is there, for the folds of a plan; Blocked if it is not whole. done: the last batch that ended,
        -1 for none."""
        self._folds, self._known = {}, {}
        self._opened = f"{OPENED}{uuid.uuid4().hex}"
        for name in found.folds:
            of = remote_state(self._path, "").below(name)
            try:
                self._known[name] = self._whole(of, done)
            except DamagedState as e:
                raise damaged_checkpoint(self._stream, f"the state of fold {name}: {e}") from e
            self._folds[name] = of

    def _whole(self, of: RemoteState, done: int) -> dict[int, dict[str, PartManifest]]:
        """What is kept, once it is seen to be whole behind the last batch that ended; the rest of it is removed."""
        of.store.put(self._opened, b"")
        there = {one.key: one.size for one in of.store.objects("")}
        wanted = [n for n in range(max(0, done - BATCHES_KEPT), done + 1) if f"{n}.json" in there]
        if done >= 0 and done not in wanted:
            raise DamagedState(
                "what says how far a stream's state has come is missing", got=of.store.place(f"{done}.json")
            )
        known = {n: _parts(of.said(f"{n}.json")) for n in wanted}
        for key, size in _files(known[done]).items() if done >= 0 else ():
            if there.get(key) != size:
                raise DamagedState("a file of a stream's state is missing or changed", got=of.store.place(key))
        named = {self._opened, *(f"{n}.json" for n in wanted)}
        named |= {key for parts in known.values() for key in _files(parts)}
        _each(of.store.delete, there.keys() - named)
        return known

    def begin(self, batch: PlannedBatch) -> None:
        """Make the state ready for a batch, as it was behind the one before."""
        if not self._folds:
            return
        self._attempt = uuid.uuid4().hex
        before = f"{batch.batch_id - 1}.json" if batch.batch_id else ""
        told = BatchInfo(batch.batch_id, self._attempt, batch.watermark_ms, batch.plan.watermark_ms, before)
        self._spark.sparkContext.setLocalProperty(BATCH_PROPERTY, json.dumps(told.__dict__))

    def keep(self, batch: PlannedBatch) -> None:
        """Bring what a batch made of the state, which is computed, to the store as one."""
        self._late, keys, size = False, 0, 0
        for name, of in self._folds.items():
            there = [one.key for one in of.store.objects("")]
            if [key for key in there if key.startswith(OPENED)] != [self._opened]:
                raise self._lost(batch, of.store.place(""))
            said = {key: found for key in there if (found := ATTEMPT.fullmatch(key))}
            mine = {key: found[1] for key, found in said.items() if found[3] == self._attempt}
            made = dict(zip(mine.values(), map(PartManifest.of, _each(of.said, mine)), strict=True))
            known = self._known[name]
            parts = {**known.get(batch.batch_id - 1, {}), **made}
            state = _said({"parts": {part: one.told() for part, one in parts.items()}})
            if not self._create(f"folds/{name}/{batch.batch_id}.json", state):
                raise self._lost(batch, of.store.place(f"{batch.batch_id}.json"))
            self._late |= any(one.late for one in made.values())
            keys += sum(one.keys for one in parts.values())
            size += sum(_files(parts).values())
            known[batch.batch_id] = parts
            old = [n for n in known if not batch.batch_id - BATCHES_KEPT <= n <= batch.batch_id]
            gone = {key for n in old for key in _files(known.pop(n))}
            needed = {key for parts in known.values() for key in _files(parts)}
            unnamed = [key for key in there if (found := VERSION.fullmatch(key)) and int(found[1]) in old]
            # Those of later batches are of a driver that has come in this one's place.
            tried = [key for key, found in said.items() if int(found[2]) <= batch.batch_id]
            _each(of.store.delete, [*unnamed, *tried, *(gone - needed)])
        if self._folds:
            self.kept = keys, size

    def _lost(self, batch: PlannedBatch, place: str) -> LeaseLost:
        return LeaseLost(
            f"stream {self._stream}: another driver keeps its state, so that of batch {batch.batch_id} is not kept",
            got=place,
            hint="nothing: this one gives way, or runs the batch again if it is the other that has lost its lease",
        )

    def late(self, _: PlannedBatch) -> bool:
        """Whether rows of a batch, whose state is kept, came too late."""
        return self._late


def _parts(said: Mapping[str, Any]) -> dict[str, PartManifest]:
    return {part: PartManifest.of(one) for part, one in said["parts"].items()}


def _files(parts: Mapping[str, PartManifest]) -> dict[str, int]:
    """The keys and sizes of the files of some parts."""
    return {f"{part}/{file.name}": file.size for part, one in parts.items() for file in one.files}


def _said(what: Any) -> str:
    return keyed_store.with_checksum(json.dumps(what))


def _checked(text: bytes, place: str) -> Any:
    with suppress(ValueError):
        return json.loads(keyed_store.without_checksum(text.decode()))
    raise DamagedState("a manifest of a stream's state cannot be read", got=place)


def _each(work: Callable[[str], T], keys: Iterable[str]) -> list[T]:
    """What some requests give, in order."""
    if not (wanted := list(keys)):
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(wanted)), "folds") as pool:
        return list(pool.map(work, wanted))
