"""Folds of a stream: their state lies in its checkpoint, `folds/<name>/<part>`, and is that of a batch.

Spark calls the step of each part in its Python workers and knows of no state. Before a batch is computed the driver
takes back what an earlier try of it left, and says which batch it is and how far time has come; a part then reads what
it was behind the batch before, and writes what it is behind this one. It is brought to the disk with the checkpoint,
before the batch's output is made visible, and a copy of the checkpoint is a copy of the state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from penstock.codec.columnar import EVENT_TIME
from penstock.engine.checkpoint import s3a
from penstock.engine.checkpoint.recovery import damaged_checkpoint
from penstock.engine.jvm.hadoop_fs import HadoopFolder
from penstock.engine.state import fold_query as folds
from penstock.engine.state import keyed_store, object_store
from penstock.engine.state.keyed_store import BATCHES_KEPT, HASH, DamagedState, PartManifest, StatePart
from penstock.engine.state.object_store import BatchInfo, ObjectFoldStore, RemoteState
from penstock.errors import DeclarationError, PenstockError
from penstock.model.output_mode import KeyedState
from penstock.model.schema import quoted
from penstock.settings import executors_here, settings

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import DataFrame, SparkSession

    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.model.fold import Fold
    from penstock.model.stream import Stream

NOW, PART_COLUMN = "now.json", "_part"


@dataclass
class FoldContext:
    """Where the folds of one plan keep their state: in a folder, in an object store, or, without either, nowhere. late:
    whether rows behind the watermark are left out. folds: those that the plan has, by name; keys: the columns that
    their keys are of; frames: what they are given."""

    folder: str
    late: bool
    far: RemoteState | None = field(default=None, kw_only=True)
    folds: dict[str, Fold] = field(default_factory=dict)
    keys: dict[str, StructType] = field(default_factory=dict)
    frames: dict[str, DataFrame] = field(default_factory=dict)

    @property
    def rebuilds(self) -> bool:
        """Whether a state that is lost can be made anew."""
        return not self.far and any(fold.can_rebuild for fold in self.folds.values())


HERE: ContextVar[FoldContext | None] = ContextVar("HERE", default=None)


@contextmanager
def use_checkpoint(stream: Stream, checkpoint: str) -> Iterator[FoldContext]:
    """Let the folds of the transforms that are called in here keep their state in a checkpoint.

    DeclarationError, once there is one, if that is on no disk of this machine's and in no object store.
    """
    known = urlparse(checkpoint)
    late = isinstance(stream.output_mode, KeyedState) and stream.output_mode.grace is not None
    far = object_store.remote_state(checkpoint, _cache(checkpoint)) if s3a.is_object_store(checkpoint) else None
    place = FoldContext(f"{known.path}/folds" if known.scheme in ("", "file") else "", late, far=far)
    before = HERE.set(place)
    try:
        yield place
    finally:
        HERE.reset(before)
    if place.folds and not (place.folder or place.far):
        raise DeclarationError(
            f"stream {stream.name} folds, and the state of that lies in a folder or in an object store",
            got=f"checkpoints in {checkpoint}",
            hint="let PENSTOCK_CHECKPOINTS be a folder, or s3a://bucket/path",
        )


def _cache(checkpoint: str) -> str:
    """A folder for files of state that lies in an object store, on the disk of a worker: that of an executor elsewhere
    is its own."""
    root, _, stream = checkpoint.rpartition("/")
    name = f"folds/{hashlib.sha256(root.encode()).hexdigest()[:12]}/{stream}"
    return str(settings().home / name) if executors_here(settings().spark_master) else name


@contextmanager
def current_context() -> Iterator[FoldContext]:
    """The place that folds keep their state in; without one, one that notes them alone."""
    before = HERE.get()
    place = before or FoldContext("", late=False)
    HERE.set(place)
    try:
        yield place
    finally:
        HERE.set(before)


def apply_fold(fold: Fold, frame: DataFrame) -> DataFrame:
    """A fold's rows for a frame's; without a place for its state, those of a batch without history."""
    names = {name.lower() for name in frame.columns}
    if missing := [name for name in (*fold.key, EVENT_TIME) if name.lower() not in names]:
        raise DeclarationError(
            f"fold {fold.name} lacks columns of its frame",
            got=f"no {', '.join(missing)} among {', '.join(frame.columns)}",
            hint=f"keep its key and {EVENT_TIME} in the frame that it is given",
        )
    place = HERE.get() or FoldContext("", late=False)
    if fold.name in place.folds:
        raise DeclarationError(
            f"a transform has fold {fold.name} twice", hint="give each a name of its own, or unite the rows before"
        )
    folds.check_queries(fold, to_arrow_schema(frame.schema, timezone="UTC"))
    place.folds[fold.name], place.keys[fold.name] = fold, frame.select(*fold.key).schema
    place.frames[fold.name] = frame
    sent = partition_by_key(fold, frame)
    layout = DataType.fromDDL(", ".join(f"{quoted(f.name)} {f.type.ddl}" for f in fold.output_fields))
    assert isinstance(layout, StructType)
    folder = f"{place.folder}/{fold.name}" if place.folder and frame.isStreaming else ""
    far = place.far.below(fold.name) if place.far and frame.isStreaming else None
    records = to_arrow_schema(sent.schema, timezone="UTC")
    return sent.mapInArrow(FoldTask(fold, folder, place.late, records, _parts(frame), far), layout)


def partition_by_key(fold: Fold, frame: DataFrame) -> DataFrame:
    """Rows with the hash of their key and the number of their part; each part is one task's."""
    count = _parts(frame)
    # As Spark shuffles by these columns.
    part = F.pmod(F.hash(*fold.key), F.lit(count))
    return frame.select("*", F.xxhash64(*fold.key).alias(HASH), part.alias(PART_COLUMN)).repartition(count, *fold.key)


def _parts(frame: DataFrame) -> int:
    return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)


def state_lines(stream: Stream, found: FoldContext) -> list[str]:
    """What the folds of a plan keep."""
    return [
        f"fold {name} in {stream.shuffle_partitions} parts by {', '.join(one.key)}: {f.name}: {f.type}"
        for name, one in found.folds.items()
        for f in one.state_fields
    ]


@dataclass(frozen=True)
class FoldTask:
    """What a worker does with the rows of its parts. folder, far: of the fold; without either there is no state.
    records: the columns that come; parts: how many there are."""

    fold: Fold
    folder: str
    late: bool
    records: pa.Schema
    parts: int
    far: RemoteState | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = list(batches)
        table = pa.Table.from_batches(held, None if held else self.records).combine_chunks()
        numbers = table[PART_COLUMN].to_numpy()
        for number in self._numbers(np.unique(numbers)):
            rows = table.filter(pa.array(numbers == number)).drop_columns([PART_COLUMN])
            yield from self._folded(number, rows).to_batches()

    def _numbers(self, found: npt.NDArray[np.int32]) -> list[int]:
        """The parts that have something to do in this task; where keys may be due, also one without rows."""
        numbers: list[int] = found.tolist()
        if not (self.fold.timer_field and (self.folder or self.far)):
            return numbers
        own = _task().partitionId() % self.parts
        # State comes of rows: so a plan that counts its tasks otherwise fails before anything is due.
        if strange := [n for n in numbers if n != own]:
            raise DeclarationError(
                f"fold {self.fold.name} has keys that are due, and its plan does not say which part a task has",
                got=f"rows of part {strange[0]} in task {own} of {self.parts}",
                hint="unite, cross and coalesce frames before the fold, not behind it",
            )
        return [own]

    def _folded(self, number: int, rows: pa.Table) -> pa.Table:
        layout = folds.state_schema(self.fold, rows.schema)
        if self.far:
            told = BatchInfo.of(_task(), self.fold.name)
            before = told.was(self.far, number)
            rows, made = self._changed(
                rows, StatePart(self.far.brought(number, before.files), layout, before), told.watermark, told.time
            )
            if made:
                self.far.keep(number, told.name(), before, made)
            return rows
        if not self.folder:
            return folds.run_fold(self.fold, rows, lambda _: layout.empty_table(), 0, late=False).rows
        batch, watermark, time = self._now()
        folder = Path(self.folder, str(number))
        rows, made = self._changed(
            rows, StatePart(folder, layout, keyed_store.manifest_before(folder, batch)), watermark, time
        )
        if made:
            made.write(folder / f"{batch}.json")
        return rows

    def _changed(
        self, rows: pa.Table, part: StatePart, watermark: int, time: int
    ) -> tuple[pa.Table, PartManifest | None]:
        """The fold's rows for those of a part, and what the part is then, if it is another."""
        due = part.due(self.fold.timer_field, time) if self.fold.timer_field else None
        if not len(rows) and not due:
            return folds.output_schema(self.fold).empty_table(), None
        found = folds.run_fold(self.fold, rows, part.find, watermark, late=self.late, due=due, time=time)
        made = part.change(
            found.kept, found.gone, found.was, found.late, lambda rows: folds.drop_ended(self.fold, rows, watermark)
        )
        return found.rows, made

    def _now(self) -> tuple[int, int, int]:
        """The batch, its watermark and how far time has come, epoch ms."""
        number = _task().getLocalProperty("streaming.sql.batchId")
        said = json.loads(Path(self.folder, NOW).read_text())
        if number is None or int(str(number)) != said["batch"]:
            raise PenstockError(
                f"fold {self.fold.name} is computed outside its batch",
                got=f"batch {number}, and the state is made ready for batch {said['batch']}",
                hint="leave its frame out of broadcast hints and subqueries",
            )
        return said["batch"], said["watermark"], said["time"]


def _task() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context


def fold_store(stream: str, spark: SparkSession, checkpoint: str) -> Folds | ObjectFoldStore:
    """The state of a stream's folds, wherever its checkpoint lies."""
    if not s3a.is_object_store(checkpoint):
        return Folds(stream, checkpoint)
    return ObjectFoldStore(stream, spark, checkpoint, HadoopFolder(spark, checkpoint).create)


class Folds:
    """The state of a stream's folds, as its driver tends it."""

    def __init__(self, stream: str, checkpoint: str) -> None:
        self._stream = stream
        self._root = Path(urlparse(checkpoint).path, "folds")
        self._names: tuple[str, ...] = ()
        self._first: dict[str, int] = {}
        self.kept: tuple[int, int] | None = None
        """The keys and the bytes that are kept, since the last batch."""

    def open(self, found: FoldContext, done: int) -> None:
        """Take up what is there, for the folds of a plan; Blocked if it is not whole. done: the last batch that ended,
        -1 for none."""
        self._names = tuple(found.folds)
        for name in self._names:
            folder = self._root / name
            try:
                self._first[name] = self._whole(folder, done) if done >= 0 else -1
            except DamagedState as e:
                restores = found.folds[name].can_rebuild
                raise damaged_checkpoint(self._stream, f"the state of fold {name}: {e}", restores=restores) from e
            folder.mkdir(parents=True, exist_ok=True)

    def _whole(self, folder: Path, done: int) -> int:
        """The batch behind which a state began, once it is seen to be whole behind the last that ended."""
        try:
            said = json.loads((folder / NOW).read_text())
            # An earlier form named one version of each part, and not where the state began.
            known = {part: b if isinstance(b, list) else [b] for part, b in said["parts"].items()}
            first = int(said.get("first", -1))
        except (OSError, ValueError, KeyError, AttributeError) as e:
            raise DamagedState("the manifest of a stream's state cannot be read", got=f"{folder}: {e}") from e
        if done < first:
            raise DamagedState("a stream's state is of a later batch", got=f"{folder}: from batch {first}, not {done}")
        for part, batches in known.items():
            # What is told may be of a batch more than has ended, and what a part was before is there still: a power
            # cut took the end of that batch.
            wanted = max((n for n in batches if n <= done), default=-1)
            there = [n for n in keyed_store.versions(folder / part) if n <= done]
            if max(there, default=-1) < wanted:
                raise DamagedState("a part of a stream's state is missing", got=f"{folder / part} of batch {wanted}")
            # Those before it are read no more, and a power cut may have brought one back whose files are gone.
            for version in there[-1:]:
                keyed_store.check_files(folder / part, PartManifest.read(folder / part / f"{version}.json").files)
        return first

    def begin(self, batch: PlannedBatch) -> None:
        """Make the state ready for a batch, as it was behind the one before."""
        for name in self._names:
            folder, known = self._root / name, {}
            for part in keyed_store.parts(folder):
                keyed_store.prune(part, batch.batch_id, BATCHES_KEPT)
                if found := keyed_store.versions(part):
                    known[part.name] = found
            said = {
                "batch": batch.batch_id, "watermark": batch.watermark_ms, "time": batch.plan.watermark_ms,
                "parts": known, "first": self._first[name],
            }  # fmt: skip
            keyed_store.write_file(folder / NOW, json.dumps(said), sync=True)

    def keep(self, batch: PlannedBatch) -> None:
        """What a batch made of the state lies where it belongs."""

    def late(self, batch: PlannedBatch) -> bool:
        """Whether rows of a batch, which is computed, came too late."""
        if not self._names:
            return False
        found = {
            part: keyed_store.versions(part) for name in self._names for part in keyed_store.parts(self._root / name)
        }
        now = {part: PartManifest.read(part / f"{there[-1]}.json") for part, there in found.items() if there}
        self.kept = sum(one.keys for one in now.values()), sum(f.size for one in now.values() for f in one.files)
        return any(one.late for part, one in now.items() if found[part][-1] == batch.batch_id)
