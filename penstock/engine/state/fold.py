"""Folds of a stream: state by key, computed in Spark's Python workers and kept in the stream's checkpoint.

Rows are shuffled by key into parts, and each task folds one part. Spark knows of no state: a task reads the state of
its part after the batch before, and writes the state after this batch (`fold_store`). It is brought to the disk with
the checkpoint, before the batch's output is made visible, and a copy of the checkpoint is a copy of the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType, TimestampType

from penstock.codec.columnar import EVENT_TIME
from penstock.engine.checkpoint.local_folders import local_folder
from penstock.engine.state import fold_query
from penstock.engine.state.fold_check import check_queries
from penstock.engine.state.fold_store import FoldBatch
from penstock.engine.state.state_files import StateFiles, state_files
from penstock.engine.state.state_part import HASH, PartManifest, StatePart
from penstock.errors import DeclarationError
from penstock.model.output_mode import KeyedState
from penstock.model.types import quoted
from penstock.settings import executors_here, settings

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import DataFrame

    from penstock.model.fold import Fold
    from penstock.model.stream import Stream

PART_COLUMN = "_part"
# How lines of `state_lines` begin that say the type of a column of the key; 0.2 had none.
KEY_LINE = "key of fold "


@dataclass
class FoldContext:
    """The folds of one plan, and where they keep their state.

    Attributes:
        late: Whether rows up to the watermark are left out.
        files: The state's files; None where folds keep no state.
        folds: The plan's folds, by name.
        keys: The key columns of each fold.
        frames: The input frame of each fold.
    """

    late: bool
    files: StateFiles | None = field(default=None, kw_only=True)
    folds: dict[str, Fold] = field(default_factory=dict)
    keys: dict[str, StructType] = field(default_factory=dict)
    frames: dict[str, DataFrame] = field(default_factory=dict)

    @property
    def can_rebuild(self) -> bool:
        """Whether a state that is lost can be rebuilt."""
        return (self.files is None or self.files.rebuildable) and any(fold.can_rebuild for fold in self.folds.values())


# A fold is called inside the user's transform, a pure function of its frames that passes nothing on: so the context is
# bound to the thread while a transform is called, by `_bind` alone.
_CONTEXT: ContextVar[FoldContext | None] = ContextVar("fold_context", default=None)


@contextmanager
def _bind(context: FoldContext) -> Iterator[FoldContext]:
    """Let the folds of transforms that are called in this block use a context."""
    token = _CONTEXT.set(context)
    try:
        yield context
    finally:
        _CONTEXT.reset(token)


@contextmanager
def use_checkpoint(stream: Stream, checkpoint: str) -> Iterator[FoldContext]:
    """Let the folds of transforms that are called in this block keep their state in a checkpoint.

    Raises:
        DeclarationError: There is a fold, and the checkpoint is neither on a local disk nor in an object store.
    """
    late = isinstance(stream.output_mode, KeyedState) and stream.output_mode.grace is not None
    context = FoldContext(late, files=state_files(checkpoint, _cache(checkpoint)))
    with _bind(context):
        yield context
    if context.folds and context.files is None:
        raise DeclarationError(
            f"stream {stream.name} has a fold, whose state lies in a folder or in an object store",
            got=f"checkpoints in {checkpoint}",
            hint="let PENSTOCK_CHECKPOINTS be a folder, or s3a://bucket/path",
        )


def _cache(checkpoint: str) -> str:
    """A local folder for state files of an object store; an executor on another host uses one in its work folder."""
    root, _, stream = checkpoint.rpartition("/")
    name = f"{local_folder('folds', root)}/{stream}"
    return str(settings().home / name) if executors_here(settings().spark_master) else name


def current_context() -> AbstractContextManager[FoldContext]:
    """Bind the present context; where there is none, one without state that records the folds."""
    return _bind(_CONTEXT.get() or FoldContext(late=False))


def apply_fold(fold: Fold, frame: DataFrame) -> DataFrame:
    """A fold's rows for the rows of a frame. A frame that does not stream is folded without state."""
    names = Counter(frame.columns)
    if repeated := [name for name, count in names.items() if count > 1]:
        raise DeclarationError(
            f"{fold.location}: fold {fold.name} gets columns of one name",
            got=", ".join(repeated),
            hint="give each column of the frame a name of its own",
        )
    if missing := [name for name in (*fold.key, EVENT_TIME) if name not in names]:
        raise DeclarationError(
            f"{fold.location}: fold {fold.name} lacks columns of its frame",
            got=f"no {', '.join(missing)} among {', '.join(frame.columns)}",
            hint=f"keep its key, written as there, and {EVENT_TIME} in the frame; a fold's rows have no {EVENT_TIME}: "
            "select it of a field",
        )
    if (kind := frame.schema[EVENT_TIME].dataType) != TimestampType():
        raise DeclarationError(
            f"{fold.location}: fold {fold.name} gets an {EVENT_TIME} that is no TIMESTAMP",
            got=kind.simpleString().upper(),
            hint=f"take the {EVENT_TIME} of a topic, or make one of a field: timestamp_millis(at) AS {EVENT_TIME}",
        )
    context = _CONTEXT.get() or FoldContext(late=False)
    if fold.name in context.folds:
        raise DeclarationError(
            f"{fold.location}: a transform has fold {fold.name} twice",
            hint="give each a name of its own, or unite the rows before",
        )
    check_queries(fold, to_arrow_schema(frame.schema, timezone="UTC"))
    context.folds[fold.name], context.keys[fold.name] = fold, frame.select(*fold.key).schema
    context.frames[fold.name] = frame
    sent = partition_by_key(fold, frame)
    output = DataType.fromDDL(", ".join(f"{quoted(f.name)} {f.type.ddl}" for f in fold.output_fields))
    assert isinstance(output, StructType)
    files = context.files.below(fold.name) if context.files and frame.isStreaming else None
    records = to_arrow_schema(sent.schema, timezone="UTC")
    return sent.mapInArrow(FoldTask(fold, files, context.late, records, _parts(frame)), output)


def partition_by_key(fold: Fold, frame: DataFrame) -> DataFrame:
    """Shuffle rows by key, with the hash of the key and the number of the part; each part is one task's."""
    count = _parts(frame)
    # As Spark shuffles by these columns.
    part = F.pmod(F.hash(*fold.key), F.lit(count))
    return frame.select("*", F.xxhash64(*fold.key).alias(HASH), part.alias(PART_COLUMN)).repartition(count, *fold.key)


def _parts(frame: DataFrame) -> int:
    return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)


def state_lines(stream: Stream, context: FoldContext) -> list[str]:
    """What the folds of a plan keep in state, a line for each column; keys of another type have other hashes."""
    state_fields = [
        f"fold {name} in {stream.shuffle_partitions} parts by {', '.join(one.key)}: {f.name}: {f.type}"
        for name, one in context.folds.items()
        for f in one.state_fields
    ]
    key_columns = [
        f"{KEY_LINE}{name}: {column.name}: {column.dataType.simpleString()}"
        for name, key in context.keys.items()
        for column in key.fields
    ]
    return [*state_fields, *key_columns]


@dataclass(frozen=True)
class FoldTask:
    """Folds the rows of one task, in a Python worker.

    Attributes:
        fold: What is computed.
        files: The files of its state; None for no state.
        late: Whether rows up to the watermark are left out.
        records: The columns that come in.
        parts: The number of parts.
    """

    fold: Fold
    files: StateFiles | None
    late: bool
    records: pa.Schema
    parts: int

    @property
    def __name__(self) -> str:
        """Its name in Spark's plans."""
        return f"fold {self.fold.name}"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        received = list(batches)
        table = pa.Table.from_batches(received, None if received else self.records).combine_chunks()
        numbers = table[PART_COLUMN].to_numpy()
        for number in self._part_numbers(np.unique(numbers)):
            rows = table.filter(pa.array(numbers == number)).drop_columns([PART_COLUMN])
            yield from self._fold_part(number, rows).to_batches()

    def _part_numbers(self, with_rows: npt.NDArray[np.int32]) -> list[int]:
        """The parts to fold in this task; where keys may be due, also a part without rows."""
        numbers: list[int] = with_rows.tolist()
        if not (self.fold.timer_field and self.files):
            return numbers
        task_part = _task().partitionId() % self.parts
        # State comes of rows: so a plan that numbers its tasks differently fails before anything is due.
        if others := [n for n in numbers if n != task_part]:
            raise DeclarationError(
                f"fold {self.fold.name} has keys that are due, and its plan does not say which part a task has",
                got=f"rows of part {others[0]} in task {task_part} of {self.parts}",
                hint="unite, cross and coalesce frames before the fold, not behind it",
            )
        return [task_part]

    def _fold_part(self, number: int, rows: pa.Table) -> pa.Table:
        columns = fold_query.state_schema(self.fold, rows.schema)
        if self.files is None:
            return fold_query.run_fold(self.fold, rows, lambda _: columns.empty_table(), 0, late=False).rows
        batch = FoldBatch.of_task(_task(), self.fold.name)
        before = batch.manifest_before(self.files, number)
        part = StatePart(self.files.fetch(number, before.files), columns, before)
        rows, manifest = self._change(rows, part, batch)
        if manifest:
            self.files.publish(number, batch.manifest_name, before, manifest)
        return rows

    def _change(self, rows: pa.Table, part: StatePart, batch: FoldBatch) -> tuple[pa.Table, PartManifest | None]:
        """The fold's rows for the rows of a part, and the part's new manifest, if it changed."""
        due = part.due(self.fold.timer_field, batch.time) if self.fold.timer_field else None
        if not len(rows) and not due:
            return fold_query.output_schema(self.fold).empty_table(), None
        result = fold_query.run_fold(
            self.fold, rows, part.find, batch.watermark, late=self.late, due=due, time=batch.time
        )
        manifest = part.change(
            result.state,
            result.deleted,
            result.previous_keys,
            result.late,
            lambda rows: fold_query.drop_expired(self.fold, rows, batch.watermark),
        )
        return result.rows, manifest


def _task() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context
