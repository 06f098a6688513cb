"""Finds the records of a batch that do not reach the transform: bad ones become dead letters, late ones are counted.

A batch without any costs nothing: Spark counts both while it runs, and only a batch that has some is read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from penstock.codec import columnar
from penstock.engine.commit.dead_letter_index import DeadLetterIndex
from penstock.engine.query import decode, source
from penstock.kafka.dead_letters import HEADER_PREFIX, RecordLocation
from penstock.kafka.record_lookup import TopicRecord, metadata_at
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.jvm.bridge import BatchExecution
    from penstock.engine.operations.reset import Reset
    from penstock.engine.state.fold_store import LateRows
    from penstock.model.input import Input
    from penstock.model.stream import Stream

DEAD_LETTER_SCHEMA = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", pa.map_(pa.string(), pa.binary()))]
)


@dataclass
class RejectedRecords:
    """Records that did not reach the outputs.

    Attributes:
        dead: number of dead letters, written or only counted.
        late: number of late records, written or only counted, and of rows of folds that are late for another fold.
        first_reason: why the first dead letter is one.
        by_topic: the rows to write, by topic.
    """

    dead: int = 0
    late: int = 0
    first_reason: str = ""
    by_topic: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __add__(self, more: RejectedRecords) -> RejectedRecords:
        by_topic = {topic: list(rows) for topic, rows in self.by_topic.items()}
        for topic, rows in more.by_topic.items():
            by_topic.setdefault(topic, []).extend(rows)
        return RejectedRecords(
            self.dead + more.dead, self.late + more.late, self.first_reason or more.first_reason, by_topic
        )

    @property
    def tables(self) -> dict[str, pa.Table]:
        """The rows to write, by topic."""
        return {topic: pa.Table.from_pylist(rows, schema=DEAD_LETTER_SCHEMA) for topic, rows in self.by_topic.items()}


class RejectFinder:
    """Finds the dead letters and the late records of one run of a query.

    Args:
        stream: the stream.
        spark: its session.
        bootstrap: the brokers.
        excluded: positions of records that the query does not read.
        reset: the reset that the query began with.
        topic_ids: the broker's ids of the inputs' topics.
    """

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        bootstrap: str,
        excluded: Collection[source.RecordPosition],
        reset: Reset | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        self._stream, self._spark, self._bootstrap = stream, spark, bootstrap
        self._excluded, self._reset = excluded, reset
        self.index = DeadLetterIndex(stream, bootstrap, reset, topic_ids)
        self._late_paths: list[tuple[int, ...]] | None = None

    def find(
        self,
        batch: PlannedBatch,
        execution: BatchExecution,
        *,
        late_rows: LateRows,
        upstream_inputs: Collection[str] = (),
    ) -> RejectedRecords:
        """Find the records of a batch that do not reach its output.

        Args:
            batch: the batch, which has been computed.
            execution: the batch as Spark ran it.
            late_rows: rows that were late for folds, which Spark does not count.
            upstream_inputs: the inputs whose records other streams write.
        """
        rejected = RejectedRecords()
        self._find_dead(batch, execution, rejected)
        self._find_late(batch, execution, rejected, upstream_inputs, has_late_rows=late_rows.exist)
        rejected.late += late_rows.of_folds
        return rejected

    def _find_dead(self, batch: PlannedBatch, execution: BatchExecution, rejected: RejectedRecords) -> None:
        """Add the bad records. Only a batch with more of them than the metric holds is read a second time."""
        # Two inputs may read the same topic.
        added: set[RecordLocation] = set()
        letters: list[tuple[RecordLocation, dict[str, Any], str]] = []
        for name, input_ in self._stream.sources.items():
            metric = execution.observed_metric(f"bad_{name}") if input_.schema else None
            count, records = decode.parse_bad_metric(metric) if metric is not None else (0, None)
            if not count:
                continue
            target = input_.dead_letter_topic.name if input_.dead_letter_topic else ""
            for record in self._read_bad(input_, batch) if records is None else records:
                position = RecordLocation(record["topic"], record["partition"], record["offset"])
                if position in added or self.index.contains(record, target):
                    continue
                added.add(position)
                rejected.dead += 1
                rejected.first_reason = rejected.first_reason or record["reason"]
                if target:
                    letters.append((position, record, target))
        # Spark does not hand on timestamps and headers: it would do so for each good record, too.
        originals = metadata_at((position for position, _, _ in letters), self._bootstrap)
        for position, record, target in letters:
            self._add(rejected, record, target, "reason", record["reason"], originals.get(position))

    def _read_bad(self, input_: Input, batch: PlannedBatch) -> Iterator[dict[str, Any]]:
        raw = source.batch_records(self._spark, input_, self._bootstrap, batch, self._excluded)
        rows = decode.bad_records(raw, input_, batch_time(batch))
        return (row.asDict() for row in rows.toLocalIterator())

    def _find_late(
        self,
        batch: PlannedBatch,
        execution: BatchExecution,
        rejected: RejectedRecords,
        upstream_inputs: Collection[str],
        *,
        has_late_rows: bool,
    ) -> None:
        """Add the late records. Spark counts the groups that it drops, so the batch is read again for the records.

        Records below the floor of a reset are late too, unless they were processed before it.
        """
        if self._late_paths is None:
            # The shape of a query's plan is fixed, and to walk it costs a hundred calls to the JVM.
            self._late_paths = execution.late_operator_paths()
        if not (has_late_rows or execution.late_rows(self._late_paths)):
            if not self._has_records_below_floor(execution):
                return
            batch = self._unprocessed(batch)
        output_mode, micros = self._stream.output_mode, timedelta(microseconds=1)
        size, phase = output_mode.window_length // micros, output_mode.window_phase // micros
        # Event times are finer than the watermark: a record of the same millisecond may be later.
        at, passed = F.unix_micros(columnar.EVENT_TIME), batch.watermark_ms * 1000
        end = at + size - F.pmod(at - phase, F.lit(size)) if size else at + output_mode.record_retention // micros
        upto = F.lit(passed)
        if self._reset and self._reset.floor is not None:
            was_processed = source.is_before(self._reset.processed, f"{columnar.SOURCE_RECORD_COLUMN}.")
            upto = F.when(was_processed, upto).otherwise(max(passed, self._reset.floor * 1000))
        for name, input_ in self._stream.sources.items():
            raw = source.batch_records(self._spark, input_, self._bootstrap, batch, self._excluded)
            rows = decode.decode_records(raw, input_, batch_time(batch), keep="all", combine=False)
            late = decode.drop_heartbeats(rows.where(~F.col(columnar.BAD_COLUMN))).where(end <= upto)
            if input_.late_records == "count" or (input_.late_records is None and name not in upstream_inputs):
                rejected.late += late.count()
                continue
            target = self._stream.late_topic if input_.late_records else DEAD_LETTERS.name
            late = late.select(f"{columnar.SOURCE_RECORD_COLUMN}.*", F.floor((upto - end) / 1000).alias("late_ms"))
            for row in late.toLocalIterator():
                if self.index.contains(row.asDict(), target):
                    continue
                rejected.late += 1
                self._add(rejected, row.asDict(), target, "late-ms", str(row.late_ms))
                if not input_.late_records:
                    reason = f"it came {row.late_ms} ms after its windows had closed"
                    rejected.by_topic[target][-1]["headers"].append((f"{HEADER_PREFIX}reason", reason.encode()))

    def _has_records_below_floor(self, execution: BatchExecution) -> bool:
        """Whether the batch had records below the floor of a reset."""
        names = (f"old_{name}{part}" for name in self._stream.sources for part in ("", "_gone"))
        metrics = map(execution.observed_metric, names)
        return any(metric.getLong(0) for metric in metrics if metric is not None)

    def _unprocessed(self, batch: PlannedBatch) -> PlannedBatch:
        """The part of a batch that was not processed before the reset."""
        starts: TopicOffsets = {}
        for topic, parts in batch.starts.items():
            ends, processed = batch.ends.get(topic, {}), self._reset.processed.get(topic, {}) if self._reset else {}
            starts[topic] = {p: max(at, min(processed.get(p, 0), ends.get(p, 0))) for p, at in parts.items()}
        return replace(batch, starts=starts)

    def _add(
        self,
        rejected: RejectedRecords,
        record: dict[str, Any],
        topic: str,
        header: str,
        text: str,
        original: TopicRecord | None = None,
    ) -> None:
        """Add an input's record to the rows of a topic, with headers of its origin and one more."""
        rejected.by_topic.setdefault(topic, []).append(
            {
                "key": record["key"],
                "value": record["value"],
                "headers": origin_headers(record, self._stream.name, header, text, self.index.topic_ids, original),
            }
        )


def origin_headers(
    record: Mapping[str, Any],
    stream: str,
    header: str,
    text: str,
    ids: Mapping[str, str],
    original: TopicRecord | None = None,
) -> list[tuple[str, bytes | None]]:
    """Headers of a dead letter or late record; the record's own come first.

    Args:
        record: has the record's `topic`, `partition` and `offset`.
        stream: name of the stream that writes it.
        header: name of a further header.
        text: value of that header.
        ids: the broker's ids of topics, as far as they are known.
        original: the record in its topic; without it the headers say neither its timestamp nor its own headers.
    """
    fields = {
        "topic": record["topic"],
        "partition": str(record["partition"]),
        "offset": str(record["offset"]),
        "stream": stream,
        header: text,
    }
    if topic_id := ids.get(record["topic"]):
        fields["topic-id"] = topic_id
    if original:
        fields["timestamp"] = str(original.timestamp)
    own = original.headers if original else ()
    return [*own, *((f"{HEADER_PREFIX}{name}", value.encode()) for name, value in fields.items())]


def batch_time(batch: PlannedBatch) -> Column:
    """TIMESTAMP: the clock of a batch."""
    return F.timestamp_millis(F.lit(batch.at_ms))
