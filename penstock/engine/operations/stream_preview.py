"""Preview of a stream: its query on live topics, with the rows that it would write, and without a trace.

The query is that of the stream: it reads the same topics and tables, drops the same records and closes windows by the
same watermark. Its checkpoint is in a folder of its own that is removed, and it writes no row, dead letter or commit
marker and commits no offsets. The stream itself goes on meanwhile.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock.engine.checkpoint import plan_fingerprint
from penstock.engine.checkpoint.layout import PREVIEWS, Checkpoint
from penstock.engine.checkpoint.local_folders import remove_local_folders
from penstock.engine.commit.checked_rows import CheckedRows
from penstock.engine.commit.rejected import RejectFinder
from penstock.engine.error_text import root_message
from penstock.engine.faults.batch_splitting import BatchSplitter
from penstock.engine.jvm import bridge
from penstock.engine.jvm.hadoop_fs import HadoopFolder
from penstock.engine.operations.reset import Reset
from penstock.engine.operations.reset_plan import input_logs, start_offsets
from penstock.engine.operations.stream_explanation import StreamExplanation
from penstock.engine.query.encode import encode_rows, split_by_output
from penstock.engine.query.spark_limits import clear_refusal
from penstock.engine.query.tables import BatchIdentity, StreamTables
from penstock.engine.query.upstream import open_upstream
from penstock.engine.query.watermark import Watermark
from penstock.engine.state import fold
from penstock.engine.state.fold_store import fold_store
from penstock.errors import Blocked, DeclarationError, PenstockError
from penstock.host import scratch
from penstock.kafka.admin import admin, topic_ids
from penstock.kafka.dead_letters import HEADER_PREFIX
from penstock.settings import settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.query.upstream import UpstreamProgress
    from penstock.model.stream import Stream

PreviewStart = Literal["earliest", "latest", "newest"] | int
"""Where a preview begins: epoch ms, or `newest` for the last NEWEST_RECORDS records of each partition."""

NEWEST_RECORDS = 10_000
NOT_SHOWN = "the record is not shown, as the stream masks columns"


@dataclass(frozen=True)
class PreviewPlan:
    """What a preview does.

    Attributes:
        reads: By topic, how many offsets it reads at once: records, heartbeats and markers of transactions.
        explanation: What its query does.
    """

    reads: dict[str, int]
    explanation: StreamExplanation


@dataclass(frozen=True)
class PreviewBatch:
    """One batch.

    Attributes:
        rows: Encoded rows by output, with the columns that its writer gets.
        dead: The number of records and rows that would become dead letters.
        late: The number of late records.
        dead_examples: Value and reason of them.
        violations: How many rows violate each expectation of the stream.
    """

    rows: dict[str, pa.Table]
    dead: int
    late: int
    dead_examples: list[tuple[bytes | None, str]]
    violations: Mapping[str, int]


class StreamPreview:
    """Runs the query of a stream without writing anything.

    Args:
        stream: The stream.
        spark: A session for it: see `session_for`.
        bootstrap: The brokers.
        start: Where it begins in each partition.
        on_batch: Called with each batch, in a thread of Spark.
    """

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        bootstrap: str,
        start: PreviewStart,
        on_batch: Callable[[PreviewBatch], None],
    ) -> None:
        self._stream, self._spark, self._bootstrap, self._start = stream, spark, bootstrap, start
        self._on_batch = on_batch
        self._query: StreamingQuery | None = None
        # Why a batch cannot be written: Spark hands on the text of an error only.
        self._blocked: Blocked | None = None

    @contextmanager
    def running(self) -> Iterator[PreviewPlan]:
        """Start the query; at the end of the block it is stopped, and its folder removed.

        Raises:
            DeclarationError: The stream cannot run as it is declared, or its topics do not exist.
            BrokerError: The broker does not answer.
        """
        with preview_folder(self._spark) as root:
            tables = StreamTables(self._stream, root, self._bootstrap, lambda _offsets, _ends: None)
            upstream = open_upstream(self._stream, self._bootstrap, None, -1)
            try:
                reads, reset = self._offsets()
                tables.load()
                yield self._start_query(root, tables, reset, reads, upstream)
            finally:
                if self._query is not None:
                    self._query.stop()
                if upstream:
                    upstream.close()
                tables.close()

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether the query still runs.

        Raises:
            PenstockError: It has failed; Blocked if a stream would be blocked by its rows.
        """
        assert self._query is not None
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._query.isActive:
            time.sleep(min(left, 0.2))
        if self._blocked is not None:
            raise self._blocked
        if (error := self._query.exception()) is not None:
            raise PenstockError(
                f"the query of stream {self._stream.name} has failed",
                got=root_message(error),
                hint="mend the transform or leave the record out of it; a running stream would make a dead letter of "
                "a record that it cannot compute",
            )
        return self._query.isActive

    def process_all_available(self) -> None:
        """Wait until all present records are read. For tests."""
        assert self._query is not None
        self._query.processAllAvailable()

    def _offsets(self) -> tuple[dict[str, int], Reset]:
        """By topic how many offsets there are to read, and the offsets to begin at."""
        counts, logs = input_logs(self._stream, self._bootstrap)
        if missing := sorted({one.topic.name for one in self._stream.sources.values() if one.topic} - counts.keys()):
            raise DeclarationError(
                f"stream {self._stream.name} reads topics the broker does not have",
                got=", ".join(missing),
                hint=self._stream.create_hint,
            )
        starts: TopicOffsets = {}
        chosen = (
            {place: max(first, end - NEWEST_RECORDS) for place, (first, end) in logs.items()}
            if self._start == "newest"
            else start_offsets(self._stream, self._bootstrap, logs, self._start)
        )
        for (topic, partition), offset in chosen.items():
            starts.setdefault(topic, {})[partition] = offset
        there = {topic: sum(logs[topic, p][1] - at for p, at in parts.items()) for topic, parts in starts.items()}
        return there, Reset(starts, ids=topic_ids(admin(self._bootstrap), counts, self._bootstrap))

    def _start_query(
        self, root: str, tables: StreamTables, reset: Reset, reads: dict[str, int], upstream: UpstreamProgress | None
    ) -> PreviewPlan:
        stream, spark, bootstrap = self._stream, self._spark, self._bootstrap
        checkpoint = Checkpoint(spark, root, stream.name)
        with clear_refusal(stream), fold.use_checkpoint(stream, checkpoint.path) as context:
            frame = plan_fingerprint.build_frame(
                spark, stream, bootstrap, tables.frames(spark), reset=reset, has_commits=False
            )
        folds = fold_store(stream.name, spark, checkpoint.path)
        folds.open(context, -1)
        splitter = BatchSplitter(stream, spark, bootstrap, checkpoint)
        watermark, rejects = Watermark(stream, splitter, upstream), RejectFinder(stream, spark, bootstrap, ())

        def compute(rows: DataFrame, batch_id: int) -> None:
            query = next(query for query in spark.streams.active if query.name == stream.name)
            tables.advance(BatchIdentity(str(query.id), batch_id), lambda: False)
            if upstream:
                upstream.begin_batch()
            batch = checkpoint.batch(batch_id)
            folds.begin_batch(batch)
            try:
                checked = CheckedRows.of(stream, split_by_output(stream, rows.toArrow()))
            except Blocked as e:
                self._blocked = e
                raise
            folds.commit_batch(batch)
            execution = bridge.BatchExecution.last_of(query)
            watermark.cap(batch, execution)
            fed = upstream.fed_inputs if upstream else ()
            rejected = rejects.find(batch, execution, late_rows=folds.late_rows, upstream_inputs=fed)
            examples = [(row["value"], _reason(row)) for rows in rejected.by_topic.values() for row in rows]
            if any(output.mask for output in stream.outputs.values()):
                # Records of inputs are not masked, and reasons quote them.
                examples = [(None, f"{reason.partition(':')[0]}; {NOT_SHOWN}") for _, reason in examples if reason]
            examples += checked.examples
            dead = rejected.dead + checked.dead_count
            self._on_batch(
                PreviewBatch(checked.by_output, dead, rejected.late, [e for e in examples if e[1]], checked.violations)
            )

        writer = encode_rows(stream, frame, readable=True).writeStream.queryName(stream.name)
        writer = writer.outputMode(stream.output_mode.spark_mode).option("checkpointLocation", checkpoint.path)
        with clear_refusal(stream):
            self._query = writer.foreachBatch(compute).start()
        lines = plan_fingerprint.fingerprint_lines(stream, frame, context)
        return PreviewPlan(reads, StreamExplanation.of(frame, lines))


def _reason(row: dict[str, Any]) -> str:
    return str(dict(row["headers"]).get(f"{HEADER_PREFIX}reason", b"").decode())


@contextmanager
def preview_folder(spark: SparkSession) -> Iterator[str]:
    """The URI of a folder for checkpoints that every executor reaches, removed at the end of the block."""
    if settings().checkpoint_folder and settings().spark_master.startswith("local"):
        # Of a process that is killed, the next one removes it.
        folder = scratch.process_folder(settings().home / "tmp")
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    root = settings().checkpoint_root.rstrip("/")
    checkpoints, now = HadoopFolder(spark, root), int(time.time())
    # Of a process that is killed, a later one removes it: no preview takes a day.
    for left in checkpoints.list_names(PREVIEWS):
        began = left.partition("-")[0]
        if not began.isdecimal() or now - int(began) > 86_400:
            remove_local_folders(f"{root}/{PREVIEWS}/{left}")
            checkpoints.delete_folder(f"{PREVIEWS}/{left}")
    name = f"{PREVIEWS}/{now}-{uuid.uuid4().hex}"
    try:
        yield f"{root}/{name}"
    finally:
        remove_local_folders(f"{root}/{name}")
        checkpoints.delete_folder(name)
