"""Rebuild of a fold's checkpoint: its state is computed from the stream's output, or from its inputs, as of the batch
of the commit marker.

It is built in its own folder, `<stream>.rebuilding`, and becomes a pending reset when it is complete and
flushed: the next start activates it, as any reset, in place of the old checkpoint. A rebuild that is killed
before changes nothing.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlparse

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.codec.columnar import coalesce_batches
from penstock.engine.checkpoint import ownership, s3a
from penstock.engine.checkpoint import plan_fingerprint as plans
from penstock.engine.checkpoint.layout import RESET_FILE, move_durably
from penstock.engine.checkpoint.offset_log import BatchPlan, by_topic, commit_entry
from penstock.engine.error_text import root_message
from penstock.engine.jvm.bridge import BatchExecution
from penstock.engine.jvm.hadoop_fs import HadoopFolder
from penstock.engine.operations.rebuild_from_inputs import InputFold, input_rows
from penstock.engine.operations.reset import Reset
from penstock.engine.progress.stage_log import log_stage_progress
from penstock.engine.query import decode, source
from penstock.engine.state import fold as folding
from penstock.engine.state import fold_query, state_part
from penstock.engine.state.restore_query import RECORD_COLUMNS, RestoreQuery, check_unique_keys
from penstock.engine.state.restore_rules import RESET_HINT, restorable_fold, restore_query_of
from penstock.engine.state.state_files import LocalStateFiles, files_of, parts_text
from penstock.engine.state.state_part import HASH, DamagedState, PartManifest
from penstock.errors import BrokerError, PenstockError
from penstock.kafka.admin import admin, first_offsets, partition_counts, topic_config, topic_ids
from penstock.kafka.commit_marker import read_commit_marker, stable_end_offsets
from penstock.model.types import quoted
from penstock.tables.topic_snapshot import check_tombstones_kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.state.fold import FoldContext
    from penstock.kafka.commit_marker import TopicAndPartition
    from penstock.model.fold import Fold
    from penstock.model.output import CommitMarker
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# Records that a worker holds at once.
PIECE = 250_000
WRITTEN_COLUMNS = "part STRING, manifest STRING"


class StateSize(NamedTuple):
    keys: int
    bytes: int


@dataclass(frozen=True)
class RebuildResult:
    """What a rebuild did.

    Attributes:
        before: The size of the old state; None if it cannot be read.
        after: The size of the new state.
        records: How many records were read.
        left_out: How many of them count for nothing, as they are dead letters or would be.
        seconds: How long it took.
        batch: The batch that the state is of.
        ends: The next offsets of the inputs.
        folder: Where the checkpoint waits for the stream's start.
    """

    before: StateSize | None
    after: StateSize
    records: int
    left_out: int
    seconds: float
    batch: int
    ends: TopicOffsets
    folder: str


@dataclass(frozen=True)
class PartWriter:
    """Writes the state of one part in a worker; its rows come sorted by hash and key."""

    fold: Fold
    layout: pa.Schema
    folder: str
    watermark: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None or not first.num_rows:
            return
        part = first[folding.PART_COLUMN][0].as_py()
        manifest = state_part.write_part(Path(self.folder, str(part)), self.layout, self._sorted_tables(first, batches))
        yield pa.RecordBatch.from_pydict({"part": [str(part)], "manifest": [json.dumps(manifest.to_dict())]})

    def _sorted_tables(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        def all_batches() -> Iterator[pa.RecordBatch]:
            yield first
            yield from rest

        for table in check_unique_keys(
            (batch.drop_columns([folding.PART_COLUMN]) for batch in coalesce_batches(all_batches())), self.fold.key
        ):
            rows = table.select(self.layout.names).cast(self.layout)
            yield state_part.sort_by_hash(fold_query.drop_expired(self.fold, rows, self.watermark))


def rebuild(
    stream: Stream, spark: SparkSession, bootstrap: str, root: str, stopped: Callable[[], None]
) -> RebuildResult:
    """Rebuild the state of a stream's fold from its output or its inputs; its next start goes on with it.

    Args:
        stream: The stream.
        spark: A session for the stream.
        bootstrap: The broker.
        root: The root of all checkpoints.
        stopped: Raises unless the stream is stopped.

    Raises:
        PenstockError: It cannot be done; nothing is changed.
    """
    began = time.monotonic()
    stopped()
    checkpoint = f"{root.rstrip('/')}/{stream.name}"
    if s3a.is_object_store(checkpoint):
        raise PenstockError(
            f"the state of stream {stream.name} cannot be rebuilt in an object store",
            got=checkpoint,
            hint=f"restore the folder from a version or backup of the bucket; or start again: "
            f"`penstock streams reset {stream.name} --to earliest`",
        )
    with folding.use_checkpoint(stream, checkpoint) as context:
        rows = plans.build_frame(spark, stream, bootstrap, plans.empty_tables(stream, spark))
    fold, lines = restorable_fold(stream, context), plans.fingerprint_lines(stream, rows, context)
    restore_query = restore_query_of(stream, rows, context) if fold.restore_sql else None
    home = Path(urlparse(checkpoint).path)
    with _locked_folder(stream.name, home) as folder:
        _no_reset_waits(stream.name, home)
        mark = read_commit_marker(stream.name, bootstrap)
        plan = _last_plan(stream, mark)
        # The watermark of the batch is in the plan of the batch before.
        older = BatchPlan.read(mark.plans.get(mark.batch - 1, ""))
        watermark = older.watermark_ms if older else 0
        before = _size(home / "folds" / fold.name)
        writer = PartWriter(
            fold,
            fold_query.state_schema(fold, to_arrow_schema(context.keys[fold.name], timezone="UTC")),
            f"{folder}/folds/{fold.name}",
            watermark,
        )
        if restore_query:
            parts, records = _parts_from_output(stream, spark, bootstrap, restore_query, writer, context)
            left_out = 0
        else:
            reading = InputFold(fold, watermark)
            with input_rows(stream, spark, bootstrap, reading, mark, plan, f"{folder}/tables") as inputs:
                records = inputs.records
                parts, bad = _write_parts(stream, inputs.rows, fold.key, reading, writer, context, records)
            left_out = inputs.dead + bad
            shutil.rmtree(folder / "tables", ignore_errors=True)
        after = _size_of(parts)
        LocalStateFiles(writer.folder).write(f"{mark.batch}.json", parts_text(parts).encode())
        _write_logs(spark, folder, checkpoint, mark)
        ids = {**topic_ids(admin(bootstrap), plan.ends, bootstrap), **mark.topic_ids}
        reset = Reset(plan.ends, ids={topic: ids[topic] for topic in plan.ends if topic in ids}, rebuilt=True)
        HadoopFolder(spark, str(folder)).replace(RESET_FILE, reset.text())
        plans.PlanFingerprint(spark, stream.name, str(folder)).store(lines)
        if (now := read_commit_marker(stream.name, bootstrap)) != mark:
            raise PenstockError(
                f"stream {stream.name} has written meanwhile",
                got=f"batch {now.batch}, and batch {mark.batch} before",
                hint="check that no driver runs it, and try again",
            )
        stopped()
        move_durably(folder, Path(f"{home}.reset"))
    log.info("stream %s: %s keys, %s bytes of state", stream.name, f"{after.keys:,}", f"{after.bytes:,}")
    return RebuildResult(
        before, after, records, left_out, time.monotonic() - began, mark.batch, plan.ends, f"{home}.reset"
    )


def _parts_from_output(
    stream: Stream, spark: SparkSession, bootstrap: str, query: RestoreQuery, writer: PartWriter, context: FoldContext
) -> tuple[dict[str, PartManifest], int]:
    """The parts written from an output, and how many records were read."""
    # The records of the marker are before these ends. Afterwards it is checked that none came later.
    began, ends = int(time.time() * 1000), _output_ends(query.topic, bootstrap)
    starts = first_offsets(admin(bootstrap), ends, bootstrap)
    records = sum(end - starts[partition] for partition, end in ends.items())
    frame = source.topic_records(spark, bootstrap, by_topic(starts), by_topic(ends)).select(*RECORD_COLUMNS)
    parts, _ = _write_parts(stream, frame, ("key",), query, writer, context, records)
    check_tombstones_kept(query.topic, began, bootstrap, "output", "rebuild it again")
    return parts, records


def _write_parts(
    stream: Stream,
    frame: DataFrame,
    key: Sequence[str],
    states: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    writer: PartWriter,
    context: FoldContext,
    records: int,
) -> tuple[dict[str, PartManifest], int]:
    """Compute states from all rows of each key, and write them in parts.

    Args:
        stream: The stream.
        frame: The rows.
        key: Columns by which the rows are grouped.
        states: Makes the states of some keys of all their rows.
        writer: Writes a part.
        context: The context of its folds.
        records: How many records are read at most.

    Returns:
        The parts, and how many records of the inputs were bad.
    """
    fold, spark = writer.fold, frame.sparkSession
    log.info("stream %s: up to %s records are read", stream.name, f"{records:,}")
    columns = [f"{quoted(f.name)} {f.dataType.simpleString()}" for f in context.keys[fold.name].fields]
    columns += [f"{quoted(f.name)} {f.type.ddl}" for f in fold.state_fields]
    count = max(-(-records // PIECE), int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    state = frame.repartition(count, *key).mapInArrow(states, ", ".join(columns))
    rows = folding.partition_by_key(fold, state).sortWithinPartitions(HASH, *fold.key)
    try:
        with log_stage_progress(spark, stream.name):
            written = rows.mapInArrow(writer, WRITTEN_COLUMNS)
            parts = {part: PartManifest.of(json.loads(manifest)) for part, manifest in written.collect()}
    except (PySparkException, Py4JJavaError) as e:
        of = ", ".join(stream.output_names if fold.restore_sql else (one.source for one in stream.sources.values()))
        raise PenstockError(
            f"the state of fold {fold.name} cannot be made of {of}",
            got=root_message(e).removeprefix("penstock.engine.state.restore_query.UnreadableOutput: "),
            hint="where a record is named, write that key again, or a tombstone of it; else see the fold's restore_sql"
            if fold.restore_sql
            else RESET_HINT.format(name=stream.name),
        ) from e
    return parts, _count_bad(stream, BatchExecution.of_frame(written))


def _count_bad(stream: Stream, execution: BatchExecution) -> int:
    """How many records of the inputs were bad; the log has the reason of one of each input."""
    total = 0
    for name, input_ in stream.sources.items():
        metric = execution.observed_metric(f"bad_{name}")
        count, bad = decode.parse_bad_metric(metric) if metric is not None else (0, None)
        if count:
            reason = bad[0]["reason"] if bad else "they are too many or too large to be shown"
            log.warning("stream %s: %d records of %s are left out: %s", stream.name, count, input_.source, reason)
        total += count
    return total


@contextmanager
def _locked_folder(stream: str, home: Path) -> Iterator[Path]:
    """A locked empty folder to build a checkpoint in; it is removed afterwards unless it was moved."""
    folder = Path(f"{home}.rebuilding")
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another rebuild may have ended and moved it in between.
            folder.stat()
        except (BlockingIOError, FileNotFoundError) as e:
            hint = "wait for it, or end it and try again"
            raise PenstockError(f"the state of stream {stream} is being rebuilt already", got=folder, hint=hint) from e
        # Left by a rebuild that was killed.
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _no_reset_waits(stream: str, home: Path) -> None:
    path = Path(f"{home}.reset", RESET_FILE)
    try:
        waits = path.exists() and not Reset.read(path.read_text()).rebuilt
    except (ValueError, TypeError, KeyError):
        waits = True
    if waits:
        raise PenstockError(
            f"stream {stream} was reset, and has not started since",
            got=path.parent,
            hint=f"`penstock streams start {stream}`; or remove that folder, if it is not to begin anew",
        )


def _output_ends(topic: str, bootstrap: str) -> dict[TopicAndPartition, int]:
    """The ends of an output without open transactions; PenstockError if it may lack the newest record of a key."""
    count = partition_counts(admin(bootstrap), bootstrap).get(topic)
    if count is None:
        raise BrokerError(f"topic {topic} is not there", hint="its records are gone: reset the stream instead")
    if (policy := topic_config(topic, "cleanup.policy", bootstrap)) != "compact":
        raise PenstockError(
            f"topic {topic} may lack keys that were written",
            got=f"cleanup.policy={policy}",
            hint="reset the stream; for the next time, let it be compact alone: `penstock topics --apply`",
        )
    return stable_end_offsets([(topic, p) for p in range(count)], bootstrap, f"topic {topic}")


def _last_plan(stream: Stream, mark: CommitMarker) -> BatchPlan:
    """The plan of the last batch that is written; PenstockError if the query cannot continue after it."""
    reset_hint = RESET_HINT.format(name=stream.name)
    if mark.batch < 0:
        raise PenstockError(
            f"stream {stream.name} has written nothing that its state could be rebuilt from",
            got="no commit marker of it",
            hint=f"start it: it begins at the beginning; or, if that topic lost its records, {reset_hint}",
        )
    plan = BatchPlan.read(mark.plans.get(mark.batch, ""))
    if plan is None or (mark.batch > 0 and BatchPlan.read(mark.plans.get(mark.batch - 1, "")) is None):
        raise PenstockError(
            f"the commit marker of stream {stream.name} does not say from where it goes on",
            got=f"batch {mark.batch}, with the plans of {', '.join(map(str, mark.plans)) or 'none'}",
            hint=reset_hint,
        )
    planned = set(plan.ends)
    unknown = sorted(
        topic for topic in planned if not any(input_.reads_topic(topic) for input_ in stream.sources.values())
    )
    unread = [
        input_.topic.name for input_ in stream.sources.values() if input_.topic and input_.topic.name not in planned
    ]
    if unknown or (unread and None not in plan.sources):
        raise PenstockError(
            f"stream {stream.name} has other inputs than when it wrote last",
            got=f"now {', '.join(i.source for i in stream.sources.values())}; then {', '.join(sorted(planned))}",
            hint=f"rebuild it with the inputs it had; or {reset_hint}",
        )
    return plan


def _size(folder: Path) -> StateSize | None:
    """The size of the newest state in a fold's folder; None if it cannot be read."""
    files = LocalStateFiles(str(folder))
    batches = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()]
    try:
        parts = files.load_parts(max(batches)) if batches else {}
        files.check(files_of(parts))
    except (DamagedState, OSError):
        return None
    return _size_of(parts) if parts else None


def _size_of(parts: dict[str, PartManifest]) -> StateSize:
    return StateSize(sum(one.keys for one in parts.values()), sum(file.size for file in files_of(parts).values()))


def _write_logs(spark: SparkSession, folder: Path, checkpoint: str, mark: CommitMarker) -> None:
    """Write the logs of a query whose last batch is that of its marker."""
    target = HadoopFolder(spark, str(folder))
    target.replace("metadata", json.dumps({"id": mark.query}))
    plans = {n: plan for n, text in mark.plans.items() if (plan := BatchPlan.read(text))}
    for batch, plan in plans.items():
        target.replace(f"offsets/{batch}", plan.text)
        # Only Spark knew how far the last batch moved the watermark; its own watermark is the safe lower bound.
        target.replace(f"commits/{batch}", commit_entry(plans.get(batch + 1, plan).watermark_ms))
    ownership.inherit(target, checkpoint, mark)
