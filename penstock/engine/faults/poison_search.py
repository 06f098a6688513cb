"""Search for the records that make a batch fail.

A transform is pure, so a batch that failed can be run again on parts of its offsets, without output. It is run without
state first; where that finds nothing, the stream's query itself is run over a copy of its checkpoint.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.codec import columnar
from penstock.engine.checkpoint.recovery import is_unreadable_state
from penstock.engine.commit.rejected import batch_time
from penstock.engine.error_text import root_message
from penstock.engine.faults.batch_splitting import is_out_of_memory
from penstock.engine.faults.bisect import Bisection, Inconclusive, NoCulprit, RecordOrder
from penstock.engine.faults.dry_run import DryRun, checkpoint_copy
from penstock.engine.jvm import bridge
from penstock.engine.query import decode, source
from penstock.engine.query.source import RecordPosition
from penstock.engine.state import fold
from penstock.engine.state.fold_store import begin_batch
from penstock.errors import Blocked, LeaseLost
from penstock.kafka.admin import admin, first_offsets
from penstock.tables.table_store import QUERY_PROPERTY

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from penstock.engine.checkpoint.layout import Checkpoint, PlannedBatch
    from penstock.engine.operations.reset import Reset
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# Why a part of a batch fails without some records; empty if it passes.
RunBatch = Callable[["PlannedBatch", list[RecordPosition]], str]
# Classes of errors that no record causes: of the broker, the disk, and what executors fetch from each other. Only the
# class is looked at, as the text may be a record's own.
INFRASTRUCTURE_ERROR = re.compile(
    r"org\.apache\.(kafka|spark\.(sql\.kafka010|shuffle|storage|rpc))\..*|io\.netty\..*|java\.nio\.channels\..*"
    r"|java\.io\.(IO|EOF|FileNotFound|UncheckedIO)Exception|java\.nio\.file\.(NoSuchFile|FileSystem|AccessDenied)Exception"
    r"|java\.net\.(Connect|Socket|SocketTimeout|NoRouteToHost|UnknownHost)Exception"
    r"|java\.util\.concurrent\.TimeoutException"
)
SPARK_ERROR = "org.apache.spark.SparkException"
PYTHON_ERROR = "org.apache.spark.api.python.PythonException"
# Of a disk that is full or away, and of too many open files. Other errors of files may be of a name in a record.
DISK_ERRORS = "|".join(
    str(number)
    for number in (
        errno.EIO, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ENOSPC, errno.EROFS, errno.ESTALE, errno.EDQUOT,
    )
)  # fmt: skip
# What a worker raises where the disk, the state, a table, an object store or the registry fails. DuckDB has no access
# to files that a record may name.
WORKER_ERROR = re.compile(
    rf"^(OSError: \[Errno ({DISK_ERRORS})\] |_duckdb\.IOException: "
    r"|penstock\.(errors\.(RegistryError|SettingError|SinkError|Wait)|object_store\.bucket\.ObjectNotFound"
    r"|engine\.state\.state_part\.DamagedState|tables\.table_store\.TableCorrupt): )",
    re.MULTILINE,
)
# What Spark's own error begins with where executors were lost with their tasks or their shuffled rows.
EXECUTOR_LOST = re.compile(
    r"Job aborted due to stage failure: (Task \d+ in stage [\d.]+ failed \d+ times, most recent failure: Lost task "
    r"[\d.]+ in stage [\d.]+ \(TID \d+\) \([^()]*\): ExecutorLostFailure \(|\w*Stage \d+ \([^()]*\) has failed the "
    r"maximum allowable number of times)"
)


@dataclass(frozen=True)
class PoisonSearch:
    """Finds the records that make a stream's batch fail.

    Attributes:
        stream: The stream.
        spark: Its session.
        bootstrap: The broker.
        encode: The encoded rows that the transform makes of frames, by input name.
        checkpoint: Its checkpoint.
    """

    stream: Stream
    spark: SparkSession
    bootstrap: str
    encode: Callable[[dict[str, DataFrame]], DataFrame]
    checkpoint: Checkpoint

    def find(
        self,
        batch: PlannedBatch,
        left_out: dict[RecordPosition, str],
        limit: int,
        reset: Reset | None,
        stopped: Callable[[], bool],
    ) -> dict[RecordPosition, str]:
        """The records without which the batch passes, with the reason.

        Args:
            batch: The batch that failed.
            left_out: Records that it is run without in any case.
            limit: How many records may be found.
            reset: The reset that the query began with.
            stopped: Whether the stream is being stopped.

        Raises:
            Inconclusive: No record makes it fail, or not each time.
            Blocked: More than `limit` records make it fail, or its state fails without any record.
            LeaseLost: The stream is being stopped.
        """
        order = record_order(batch, self.bootstrap)

        def without_state(part: PlannedBatch, without: list[RecordPosition]) -> str:
            return self._run_without_state(part, without, reset)

        try:
            return self._bisect(batch, order, without_state, left_out, limit, stopped)
        except Inconclusive as e:
            log.info("stream %s: %s; the batch is run with the stream's state", self.stream.name, e)
        with checkpoint_copy(self.checkpoint.path) as copy:
            if copy is None:
                raise Inconclusive("the checkpoint is not on a local disk, so the batch cannot be run with its state")

            def with_state(part: PlannedBatch, without: list[RecordPosition]) -> str:
                return self._run_with_state(part, without, reset, copy, stopped)

            try:
                return self._bisect(batch, order, with_state, left_out, limit, stopped)
            except NoCulprit as e:
                raise Blocked(
                    f"stream {self.stream.name}: what its transform makes of its state fails without a record to blame",
                    got=str(e),
                    hint="make the transform give a value or NULL there, by try_divide or TRY_CAST, and release app "
                    f"{self.stream.app}: it goes on with the state as it is, and nothing is lost",
                ) from e

    def _bisect(
        self,
        batch: PlannedBatch,
        order: RecordOrder,
        run: RunBatch,
        left_out: dict[RecordPosition, str],
        limit: int,
        stopped: Callable[[], bool],
    ) -> dict[RecordPosition, str]:
        positions = list(left_out)

        def fails(count: int, excluded: frozenset[int]) -> str:
            if stopped():
                raise LeaseLost(f"stream {self.stream.name} is being stopped")
            return run(order.first_records(count, batch), [*positions, *map(order.position, excluded)])

        culprits, complete = Bisection(len(order), fails).find(limit)
        if not complete:
            reason = next(iter(culprits.values()), "") or next(iter(left_out.values()), "")
            raise Blocked(
                f"stream {self.stream.name}: more records in a row make their batches fail than max_poison allows",
                got=f"more than {self.stream.max_poison}, up to batch {batch.batch_id}"
                + (f": {reason}" if reason else ""),
                hint=f"correct the transform and release app {self.stream.app}, or declare a larger max_poison=",
            )
        if not culprits:
            raise Inconclusive("its records pass by themselves")
        return {order.position(number): reason for number, reason in culprits.items()}

    def _run_without_state(self, part: PlannedBatch, excluded: list[RecordPosition], reset: Reset | None) -> str:
        frames = {}
        for name, input_ in self.stream.sources.items():
            raw = source.batch_records(self.spark, input_, self.bootstrap, part, excluded)
            rows = decode.decode_records(raw, input_, batch_time(part))
            rows = rows.where(~rows[columnar.BAD_COLUMN]).drop(columnar.BAD_COLUMN, columnar.SOURCE_RECORD_COLUMN)
            frames[name] = decode.drop_heartbeats(source.above_floor(rows, reset))
        # State with timers asks where states are kept, which is known once Spark manages streams.
        _ = self.spark.streams
        try:
            encoded = self.encode(frames)
        except Exception as e:
            raise Inconclusive(f"its transform cannot be run on parts: {root_message(e)}") from e
        try:
            encoded.write.format("noop").mode("append").save()
        except Exception as e:
            return _reason(e)
        return ""

    def _run_with_state(
        self,
        part: PlannedBatch,
        without: list[RecordPosition],
        reset: Reset | None,
        checkpoint: Path,
        stopped: Callable[[], bool],
    ) -> str:
        """Run a query of its own that goes on from a copy of the checkpoint."""
        frames = {
            name: source.input_stream(self.spark, self.stream, name, self.bootstrap, without, part.ends, reset)
            for name in self.stream.sources
        }
        with fold.use_checkpoint(self.stream, str(checkpoint)):
            encoded = self.encode(frames)
        query = self.checkpoint.query_id

        def begin() -> None:
            begin_batch(self.spark, part)
            self.spark.sparkContext.setLocalProperty(QUERY_PROPERTY, query)

        dry_run = DryRun(self.stream, checkpoint, stopped, begin)
        dry_run.run(encoded)
        return "" if dry_run.error is None else _reason(dry_run.error)


def record_order(batch: PlannedBatch, bootstrap: str) -> RecordOrder:
    """The records of a batch that the broker still has."""
    partitions = [(topic, p) for topic, parts in batch.ends.items() for p in parts]
    firsts = first_offsets(admin(bootstrap), partitions, bootstrap)
    planned = {(topic, p): at for topic, parts in batch.starts.items() for p, at in parts.items()}
    starts = {at: max(planned.get(at, 0), firsts.get(at, 0)) for at in partitions}
    return RecordOrder([(t, p, min(starts[t, p], batch.ends[t][p]), batch.ends[t][p]) for t, p in sorted(partitions)])


def _reason(error: Exception) -> str:
    """The text of an error that a record may have caused; Inconclusive if none can have."""
    if is_infrastructure_error(error):
        raise Inconclusive(root_message(error)) from error
    return root_message(error)


def is_infrastructure_error(error: Exception) -> bool:
    """Whether no record can be the cause of an error."""
    errors = bridge.error_chain(error)
    if not errors or is_out_of_memory(error) or is_unreadable_state(error):
        return True
    return any(
        INFRASTRUCTURE_ERROR.fullmatch(name)
        or (name == SPARK_ERROR and EXECUTOR_LOST.match(text))
        or (name == PYTHON_ERROR and WORKER_ERROR.search(text))
        for name, text in errors
    )
