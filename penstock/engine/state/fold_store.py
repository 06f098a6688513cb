"""The state of a stream's folds in its checkpoint, below `folds/<name>/`, as its driver commits it batch by batch.

A worker reads the files of its part, folds, writes new files and a manifest of the part,
`<part>/<batch>-<attempt>.json`. When all workers have, and before the batch's output is made visible, the driver
creates one file, `<batch>.json`, which names the files of all parts: that is the commit of the state. It is created
only where there is none, as the entries of Spark's logs are: of two drivers the first one commits, and the other's
batch fails. No file is overwritten by another attempt, so what an attempt left that was not committed is named by
nothing. It is removed when the state is opened or a batch is committed. A driver that opens the state first writes an
owner file: so a driver that was paused sees that another one has opened the state and may have removed parts.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.engine.checkpoint import s3a
from penstock.engine.checkpoint.recovery import damaged_checkpoint
from penstock.engine.jvm import bridge
from penstock.engine.jvm.hadoop_fs import HadoopFolder
from penstock.engine.state.state_files import LocalStateFiles, StateFiles, files_of, for_each, parts_text, state_files
from penstock.engine.state.state_part import DamagedState, PartManifest
from penstock.errors import LeaseLost, PenstockError

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.engine.state.fold import FoldContext

# The local property with which the driver passes `FoldBatch` to the tasks of a batch, as JSON.
BATCH_PROPERTY = "penstock.folds"
# How many batches back a state stays readable: a checkpoint is at most one older than its marker.
BATCHES_KEPT = 3
ATTEMPT = re.compile(r"(\d+)/(\d+)-([0-9a-f]+)\.json")
VERSION = re.compile(r"(\d+)\.json")
OWNER = "opened-"


@dataclass(frozen=True)
class FoldBatch:
    """What the tasks of a batch need to know.

    Attributes:
        batch: The number of the batch.
        attempt: An id of this attempt to compute it.
        watermark: Epoch ms; rows up to it are late.
        time: Epoch ms that event time has reached; keys are due up to it.
    """

    batch: int
    attempt: str
    watermark: int
    time: int

    @classmethod
    def of_task(cls, task: TaskContext, fold: str) -> FoldBatch:
        """The batch that a task is of.

        Raises:
            PenstockError: The fold is computed outside its batch.
        """
        number, text = task.getLocalProperty("streaming.sql.batchId"), task.getLocalProperty(BATCH_PROPERTY)
        batch = cls(**json.loads(str(text))) if text else None
        if number is None or batch is None or int(str(number)) != batch.batch:
            raise PenstockError(
                f"fold {fold} is computed outside its batch",
                got=f"batch {number}, and the state is prepared for batch {batch.batch if batch else None}",
                hint="leave its frame out of broadcast hints and subqueries",
            )
        return batch

    def manifest_before(self, files: StateFiles, part: int) -> PartManifest:
        """The manifest of a part after the batch before this one."""
        return files.load_parts(self.batch - 1).get(str(part), PartManifest()) if self.batch else PartManifest()

    @property
    def manifest_name(self) -> str:
        return f"{self.batch}-{self.attempt}.json"


class LateRows(NamedTuple):
    """The rows of a batch that folds left out as late.

    Attributes:
        exist: Whether there are any; of records or of rows of folds.
        of_folds: How many there are of folds that read the rows of another.
    """

    exist: bool = False
    of_folds: int = 0


def begin_batch(spark: SparkSession, batch: PlannedBatch) -> str:
    """Tell the tasks of this thread's jobs which batch they are of; the id of the attempt."""
    attempt = uuid.uuid4().hex
    context = FoldBatch(batch.batch_id, attempt, batch.watermark_ms, batch.plan.watermark_ms)
    spark.sparkContext.setLocalProperty(BATCH_PROPERTY, json.dumps(asdict(context)))
    return attempt


def fold_store(stream: str, spark: SparkSession, checkpoint: str) -> FoldStore:
    """The state of a stream's folds, wherever its checkpoint lies."""
    if s3a.is_object_store(checkpoint):
        return FoldStore(stream, spark, checkpoint, HadoopFolder(spark, checkpoint).create)
    files = state_files(checkpoint, "")
    local = files if isinstance(files, LocalStateFiles) else LocalStateFiles("")
    return FoldStore(stream, spark, checkpoint, lambda name, text: local.create(name.removeprefix("folds/"), text))


class FoldStore:
    """The state of a stream's folds, as its driver opens and commits it.

    Attributes:
        size: Keys and bytes of the state after the last batch; None before it.
        late_rows: Of the batch that was committed last.
    """

    def __init__(self, stream: str, spark: SparkSession, checkpoint: str, create: Callable[[str, str], bool]) -> None:
        """Nothing is read before `open`.

        Args:
            stream: The name of the stream.
            spark: The session whose jobs fold.
            checkpoint: The URI of its checkpoint.
            create: Writes a text to a name below the checkpoint if there is no such file; whether there was none.
        """
        self._stream, self._spark, self._checkpoint, self._create = stream, spark, checkpoint, create
        self._folds: dict[str, StateFiles] = {}
        # By fold, batch and part: the manifests that are kept.
        self._manifests: dict[str, dict[int, dict[str, PartManifest]]] = {}
        # Folds that read the rows of another.
        self._later: set[str] = set()
        self._attempt, self._owner = "", ""
        self.late_rows = LateRows()
        self.size: tuple[int, int] | None = None

    def open(self, context: FoldContext, last_commit: int) -> None:
        """Open the state of a plan's folds.

        Args:
            context: Names the folds.
            last_commit: The last batch that was committed; -1 for none.

        Raises:
            Blocked: The state is damaged.
        """
        self._folds, self._manifests = {}, {}
        self._later = {
            name
            for name, frame in (context.frames.items() if len(context.folds) > 1 else ())
            if any(function.startswith("fold ") for function in bridge.arrow_functions(frame))
        }
        self._owner = f"{OWNER}{uuid.uuid4().hex}"
        for name, fold in context.folds.items():
            root = state_files(self._checkpoint, "")
            assert root is not None
            files = root.below(name)
            try:
                self._manifests[name] = self._open(files, last_commit)
            except DamagedState as e:
                restores = files.rebuildable and fold.can_rebuild
                what = f"the state of fold {name}: {e}"
                raise damaged_checkpoint(self._stream, what, restores=restores) from e
            self._folds[name] = files

    def _open(self, files: StateFiles, last_commit: int) -> dict[int, dict[str, PartManifest]]:
        """The manifests that are kept, once the last one's files are checked; all other files are removed."""
        files.write(self._owner, b"")
        sizes = files.sizes()
        batches = [n for n in range(max(0, last_commit - BATCHES_KEPT), last_commit + 1) if f"{n}.json" in sizes]
        if last_commit >= 0 and last_commit not in batches:
            got = files.location(f"{last_commit}.json")
            raise DamagedState("the manifest of a stream's state is missing", got=got)
        manifests = {n: files.load_parts(n) for n in batches}
        if last_commit >= 0:
            files.check(files_of(manifests[last_commit]))
        named = {self._owner, *(f"{n}.json" for n in batches)}
        named |= {key for parts in manifests.values() for key in files_of(parts)}
        for_each(files.delete, sizes.keys() - named)
        return manifests

    def begin_batch(self, batch: PlannedBatch) -> None:
        """Prepare the state for a batch, before its rows are computed."""
        if self._folds:
            self._attempt = begin_batch(self._spark, batch)

    def commit_batch(self, batch: PlannedBatch) -> None:
        """Commit the state of a batch whose rows are computed.

        Raises:
            LeaseLost: Another driver has opened the state, or has committed the batch.
        """
        self.late_rows, keys, size = LateRows(), 0, 0
        for name, files in self._folds.items():
            sizes = files.sizes()
            if [key for key in sizes if key.startswith(OWNER)] != [self._owner]:
                raise self._lost(batch, files.location(""))
            attempts = {key: match for key in sizes if (match := ATTEMPT.fullmatch(key))}
            parts_of_attempt = {key: match[1] for key, match in attempts.items() if match[3] == self._attempt}
            changed = dict(
                zip(
                    parts_of_attempt.values(), map(PartManifest.of, for_each(files.load, parts_of_attempt)), strict=True
                )
            )
            manifests = self._manifests[name]
            parts = {**manifests.get(batch.batch_id - 1, {}), **changed}
            if not self._create(f"folds/{name}/{batch.batch_id}.json", parts_text(parts)):
                raise self._lost(batch, files.location(f"{batch.batch_id}.json"))
            late = sum(manifest.late for manifest in changed.values())
            of_folds = late if name in self._later else 0
            self.late_rows = LateRows(self.late_rows.exist or late > 0, self.late_rows.of_folds + of_folds)
            keys += sum(manifest.keys for manifest in parts.values())
            size += sum(file.size for file in files_of(parts).values())
            manifests[batch.batch_id] = parts
            expired = [n for n in manifests if not batch.batch_id - BATCHES_KEPT <= n <= batch.batch_id]
            unused = {key for n in expired for key in files_of(manifests.pop(n))}
            needed = {key for parts in manifests.values() for key in files_of(parts)}
            versions = [key for key in sizes if (match := VERSION.fullmatch(key)) and int(match[1]) in expired]
            # Attempts at later batches are of a driver that has taken over.
            finished = [key for key, match in attempts.items() if int(match[2]) <= batch.batch_id]
            for_each(files.delete, [*versions, *finished, *(unused - needed)])
        if self._folds:
            self.size = keys, size

    def _lost(self, batch: PlannedBatch, location: str) -> LeaseLost:
        return LeaseLost(
            f"stream {self._stream}: another driver keeps its state, so that of batch {batch.batch_id} is not kept",
            got=location,
            hint="nothing: this one gives way, or runs the batch again if it is the other that has lost its lease",
        )
