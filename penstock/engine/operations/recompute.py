"""Recompute of a stream's windows from archived records, as a batch, by its own decoding, transform and encoding.

There is no watermark, so records that were late for the stream count. A window is returned if all of it is in the
interval asked for, so in a store by key it may replace what the stream wrote.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from penstock.codec import columnar
from penstock.codec.columnar import BAD_COLUMN, EVENT_TIME, HEARTBEAT_COLUMN
from penstock.engine.checkpoint import plan_fingerprint
from penstock.engine.error_text import root_message
from penstock.engine.jvm import bridge
from penstock.engine.progress.stage_log import log_stage_progress
from penstock.engine.query import decode as records
from penstock.engine.query.encode import encode_rows
from penstock.engine.query.expectations import accepted_rows, dead_rows
from penstock.engine.query.source import RECORD_TYPES
from penstock.engine.session import session_for
from penstock.errors import DeclarationError, PenstockError
from penstock.model.input import RECORD_COLUMN, Input
from penstock.model.output import TopicOutput
from penstock.model.output_mode import EmitChanges, EmitFinal
from penstock.model.stream import Stream
from penstock.settings import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

EPOCH, MICRO = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
# Compressed input of each task: its groups must fit into memory, or are spilled to the disk.
TASK_BYTES = 32 << 20
# Bytes and rows of a batch: a row may be a megabyte, and by default thousands are held at once.
GROUP_BYTES, ROWS = 16 << 20, 128
BOUNDED = {
    "spark.sql.parquet.columnarReaderBatchSize": ROWS,
    "spark.sql.execution.arrow.maxBytesPerBatch": 2 * GROUP_BYTES,
}
# A row group is in the JVM's memory as a whole: a file with larger ones is rewritten before.
LARGE = 64 << 20
SECOND = 1_000_000
WINDOW = ": struct<start:timestamp,end:timestamp>"


@dataclass
class RecomputeCounts:
    """What a recompute read.

    Attributes:
        records: Records of the files.
        bad: Records that a stream cannot read and rows that are dead letters by its expectations, by stream; without
            streams that have none.
        reason: Why the first of them is bad.
    """

    records: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    reason: str = ""


def check_chain(streams: Sequence[Stream], topic: str = "") -> None:
    """Check by the declarations that a chain of streams can be recomputed; DeclarationError if not.

    Each stream reads one topic or pattern and no table, whole; its output mode is `EmitChanges` or `EmitFinal` of
    windows, in one step; and it writes one topic, by key. Each next one reads the topic of the one before, with a
    schema; its windows are some whole windows of that one. Windows that overlap, and streams of a pattern that do
    not group by topic, are refused by `recompute_rows`, because only the plan shows them.
    """
    if not streams:
        raise DeclarationError("a recompute has no stream", hint="name the stream whose rows are wanted")
    for stream in streams:
        _check_stream(stream)
    first = _input(streams[0])
    if topic and not first.reads_topic(topic):
        raise _refused(streams[0], "does not read what is archived", f"{first.source}, not {topic}", "name its archive")
    for before, stream in pairwise(streams):
        input_, output = _input(stream), _output(before)
        if input_.topic is None or input_.topic.name != output.topic.name:
            got = f"{stream.name} reads {input_.source}, {before.name} writes {output.name}"
            raise _refused(stream, f"does not read what {before.name} writes", got, "name the streams in order")
        if not input_.schema or input_.record:
            got = "record=True" if input_.record else "no schema"
            hint = "read values only: by then nobody knows the places and times that its records had"
            raise _refused(stream, f"reads more of {output.name} than its values", got, hint)
        first_mode, next_mode = before.output_mode, stream.output_mode
        if (
            next_mode.window_length % first_mode.window_length
            or (next_mode.window_phase - first_mode.window_phase) % first_mode.window_length
        ):
            got = f"windows of {next_mode.window_length} of windows of {first_mode.window_length}"
            raise _refused(stream, f"has windows that cut those of {before.name}", got, "take whole windows of it")


def whole_windows(streams: Sequence[Stream], start: datetime, end: datetime) -> tuple[datetime, datetime]:
    """The part of an interval that whole windows of a chain fill, in UTC; empty if both times are the same.

    It takes the records of just that time, by the event time of the chain's first stream.
    """
    if start.tzinfo is None or end.tzinfo is None:
        raise DeclarationError("an interval has a time without a zone", got=f"{start} to {end}", hint="say UTC")
    output_mode = streams[-1].output_mode
    first = -((output_mode.window_phase - (max(start, EPOCH) - EPOCH)) // output_mode.window_length)
    last = (end - EPOCH - output_mode.window_phase) // output_mode.window_length
    low, high = (EPOCH + output_mode.window_phase + n * output_mode.window_length for n in (first, last))
    return low, max(low, high)


def recompute_rows(
    spark: SparkSession,
    streams: Sequence[Stream],
    parquet: Sequence[str],
    *,
    start: datetime,
    end: datetime,
    counts: RecomputeCounts | None = None,
    folder: str | None = None,
    by_hours: bool = False,
) -> Iterator[pa.Table]:
    """Compute the rows of a chain's last stream from archived records: `key BINARY, value BINARY`.

    The event time that the first stream gives a record decides which window it is in, not the archive's. What a stream
    cannot read is counted and left out. A record is too far ahead if its event time is later than its own timestamp, or
    than the present time if that is earlier, by more than the input's `max_ahead`: it is unknown when the stream read
    it, and a stream that keeps up reads it as it comes. So a record that was ahead is refused here too, however long
    ago that was. Rows come in tables of a bounded size, and nothing is held in memory as a whole.

    Args:
        spark: A local session.
        streams: The first reads what is archived, each next one what the one before writes.
        parquet: Local files with an archive's columns, which hold every record of the interval once; more do no harm.
        start: Windows of the last stream that are wholly between `start` and `end` are returned once each, in no order;
            see `whole_windows`.
        end: See `start`.
        counts: Is filled with what was read before the first rows are returned.
        folder: For temporary files.
        by_hours: Whether the files were chosen by the archive's event time. Then the first stream's must be the same,
            to the second, unless it uses the records' own timestamps: otherwise records would be in other files.

    Raises:
        DeclarationError: The streams or files do not fit, or rows of a stream have an event time outside their window,
            or the archive's event time differs; nothing is returned then.
    """
    check_chain(streams)
    low, high = whole_windows(streams, start, end)
    if low == high or not parquet:
        return
    if not (master := str(spark.sparkContext.master)).startswith("local"):
        hint = "PENSTOCK_SPARK_MASTER=local[2], or as many cores as there are"
        raise DeclarationError("files of one machine are computed there", got=master, hint=hint)
    with TemporaryDirectory(prefix="penstock-recompute-", dir=folder) as temporary:
        stage = _Stage(low, high, counts if counts is not None else RecomputeCounts())
        paths = list(_cut(dict.fromkeys(str(Path(path).absolute()) for path in parquet), Path(temporary)))
        for number, stream in enumerate(streams):
            target = f"{temporary}/{number}"
            try:
                with log_stage_progress(spark, stream.name):
                    if by_hours and number == 0 and not _input(stream).uses_record_timestamp:
                        _check_archive_times(session_for(spark, stream), stream, paths)
                    stage.run(spark, stream, paths, target, archived=number == 0)
            except PenstockError:
                raise
            except Exception as e:
                raise PenstockError(
                    f"stream {stream.name} could not be computed again",
                    got=root_message(e),
                    hint="see the log; unlike the stream, a recompute makes no dead letters",
                ) from e
            paths = sorted(map(str, Path(target).glob("*.parquet")))
        for rows in columnar.coalesce_batches(_read(paths)):
            if rows["key"].null_count and _output(streams[-1]).topic.compacts:
                got = f"{rows['key'].null_count} of {rows.num_rows} rows"
                raise _refused(streams[-1], "makes rows without a key", got, "see which column of it may be NULL")
            yield rows.replace_schema_metadata(None)


class _Stage:
    """Runs one stream of a chain after the other, on files. low, high: the interval of whole windows."""

    def __init__(self, low: datetime, high: datetime, counts: RecomputeCounts) -> None:
        self._low, self._high, self._counts = low, high, counts
        self._bounds: tuple[int, int] | None = None

    def run(self, spark: SparkSession, stream: Stream, paths: Sequence[str], target: str, *, archived: bool) -> None:
        """Write the encoded rows of a stream. paths: of archived records, or of encoded rows of the stream before."""
        session = session_for(spark, stream)
        size = sum(Path(path).stat().st_size for path in paths)
        parts = max(stream.shuffle_partitions, -(-size // TASK_BYTES))
        for name, value in {**BOUNDED, "spark.sql.shuffle.partitions": parts}.items():
            session.conf.set(name, value)
        _check_plan(session, stream)
        [(name, input_)] = stream.sources.items()
        read, bad, times = Observation(), Observation(), Observation()
        source = _archived(session, paths) if archived else _encoded_records(session, paths, input_.source)
        is_other_topic = (
            ~F.col("topic").rlike(f"^(?:{input_.pattern})$") if input_.pattern else F.col("topic") != input_.source
        )
        source = source.observe(
            read, F.count(F.lit(1)).alias("n"), F.max(F.when(is_other_topic, F.col("topic"))).alias("not")
        )
        # Rows of the stream before have the present time.
        rows = records.decode_records(source, input_, None if archived else F.current_timestamp())
        rows = records.drop_heartbeats(
            (records.drop_bad_records if input_.schema else records.count_heartbeats)(rows, input_, bad)
        )
        if archived:
            rows = rows.where((F.col(EVENT_TIME) >= F.lit(self._low)) & (F.col(EVENT_TIME) < F.lit(self._high)))
        micros = F.unix_micros(EVENT_TIME)
        rows = rows.observe(times, F.min(micros).alias("first"), F.max(micros).alias("last"))
        rules = Observation()
        encoded = accepted_rows(stream, encode_rows(stream, stream.transform(**{name: rows})), rules)
        encoded.write.option("parquet.block.size", GROUP_BYTES).parquet(target)
        self._report(stream, read.get, bad.get, archived=archived)
        dead, reason = dead_rows(stream, rules)
        if dead:
            self._counts.bad[stream.name] = self._counts.bad.get(stream.name, 0) + dead
            self._counts.reason = self._counts.reason or reason
        self._check_times(stream, times.get)

    def _report(self, stream: Stream, read: dict[str, Any], bad: dict[str, Any], *, archived: bool) -> None:
        if read["not"] is not None:
            raise _refused(stream, "does not read what is archived", f"topic {read['not']}", "name its archive")
        if archived:
            self._counts.records = read["n"]
        if count := bad.get("n", 0):
            some = json.loads(bad["some"] or "[]")
            reason = str(some[0]["reason"]) if some else "one of them is too large to be shown"
            self._counts.bad[stream.name] = count
            self._counts.reason = self._counts.reason or reason
            log.warning("stream %s: %d records are left out, the first: %s", stream.name, count, reason)

    def _check_times(self, stream: Stream, bounds: dict[str, Any]) -> None:
        """Check that the rows of the stream before are in windows that had records; remember this stream's windows."""
        first, last = bounds["first"], bounds["last"]
        if first is None:
            return
        if self._bounds and not (self._bounds[0] <= first and last < self._bounds[1]):
            at = [str(EPOCH + n * MICRO) for n in (first, last, *self._bounds)]
            raise _refused(
                stream,
                "reads rows whose event time lies outside the window that they are of",
                f"{at[0]} to {at[1]}, of windows from {at[2]} to {at[3]}",
                "let their event time be the start of their window, or any time in it",
            )
        size, phase = stream.output_mode.window_length // MICRO, stream.output_mode.window_phase // MICRO
        self._bounds = first - (first - phase) % size, last - (last - phase) % size + size


def _archived(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Records as Kafka's source gives them; DeclarationError if the files have other columns."""
    frame = spark.read.parquet(*(f"file://{path}" for path in paths))
    types = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    if missing := [
        f"{name} {types.get(name, 'is missing')}" for name, kind in RECORD_TYPES.items() if types.get(name) != kind
    ]:
        raise DeclarationError(
            "a file does not have the columns of an archive", got=", ".join(missing), hint="see docs/archives.md"
        )
    return frame.select(*RECORD_TYPES)


def _check_archive_times(spark: SparkSession, stream: Stream, paths: Sequence[str]) -> None:
    """DeclarationError if the stream gives a good record another event time than the archive."""
    input_ = replace(_input(stream), record=True, combine=None)
    # The archive's event time is carried in a header, which no event time is made of.
    micros = F.unix_micros(EVENT_TIME).cast("string").cast("binary")
    header = F.array(F.struct(F.lit("archived").alias("key"), micros.alias("value")))
    source = spark.read.parquet(*(f"file://{path}" for path in paths)).withColumn("headers", header)
    rows = records.decode_records(source.select(*RECORD_TYPES), input_, None)
    archived = F.col(f"{RECORD_COLUMN}.headers")[0].value.cast("string").cast("bigint")
    difference = F.abs(F.unix_micros(EVENT_TIME) - archived)
    # For a time before the epoch the archive uses the record's own timestamp.
    usable = ~F.col(BAD_COLUMN) & (F.col(EVENT_TIME) >= F.lit(EPOCH))
    position = F.struct(
        *(F.col(f"{RECORD_COLUMN}.{name}").alias(name) for name in ("topic", "partition", "offset")), EVENT_TIME
    )
    summary = rows.where(~F.col(HEARTBEAT_COLUMN) & usable & (difference >= SECOND)).agg(
        F.count(F.lit(1)), F.max_by(position, difference), F.max(difference)
    )
    [(count, one, most)] = summary.collect()
    if count:
        raise _refused(
            stream,
            "has another event time than the archive, so records of its windows may be in any hour",
            f"{count} records, {one.topic}[{one.partition}]@{one.offset} by {most / SECOND:,.0f} s",
            "declare the stream's event time in the archive",
        )


def _encoded_records(spark: SparkSession, paths: Sequence[str], topic: str) -> DataFrame:
    """Encoded rows, as records of a topic."""
    columns = {
        "topic": F.lit(topic), "partition": F.lit(0), "offset": F.monotonically_increasing_id(),
        "timestamp": F.current_timestamp(), "headers": F.lit(None).cast(RECORD_TYPES["headers"]),
    }  # fmt: skip
    rows = spark.read.schema("key BINARY, value BINARY").parquet(*(f"file://{path}" for path in paths))
    return rows.select(*(columns.get(name, F.col(name)).alias(name) for name in RECORD_TYPES))


def _cut(paths: Iterable[str], folder: Path) -> Iterator[str]:
    """The files; those with large row groups are copied with small ones."""
    for number, path in enumerate(paths):
        with pq.ParquetFile(path) as file:
            groups = (file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups))
            if max(groups, default=0) <= LARGE:
                yield path
                continue
            copy = str(folder / f"cut-{number}.parquet")
            with pq.ParquetWriter(copy, file.schema_arrow, compression="zstd") as writer:
                for rows in columnar.coalesce_batches(file.iter_batches(ROWS)):
                    writer.write_table(rows)
            yield copy


def _read(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(ROWS)


def _check_plan(spark: SparkSession, stream: Stream) -> None:
    """DeclarationError if a stream is not what it declares, or its groups are not of one window each."""
    frame = plan_fingerprint.build_frame(spark, stream, settings().bootstrap, {})
    by = [line.partition(": by ")[2] for line in bridge.state_layout(frame) if ": by " in line]
    windows = bridge.event_time_windows(frame)
    if not windows or not any(line.endswith(WINDOW) for line in by):
        hint = 'group by F.window("event_time", ...)'
        raise _refused(stream, "does not group by windows of event time", ", ".join(by), hint)
    if overlap := [window for window in windows if window.length != window.slide]:
        got = f"windows of {overlap[0].length}, one every {overlap[0].slide}"
        raise _refused(stream, "groups by windows that overlap", got, "use windows that follow each other")
    if _input(stream).pattern and "topic: string" not in by:
        hint = "group by the column topic as well"
        raise _refused(stream, "puts records of several topics together, and one is archived", ", ".join(by), hint)


def _check_stream(stream: Stream) -> None:
    if not isinstance(stream, Stream):
        raise DeclarationError("this is no stream", got=repr(stream), hint="give declared streams, in order")
    if stream.tables:
        got, hint = ", ".join(stream.tables), "nothing: what its tables held then is not kept"
        raise _refused(stream, "joins tables", got, hint)
    if len(stream.sources) != 1:
        raise _refused(stream, "reads more than one input", ", ".join(stream.sources), "archive a topic that has both")
    if _input(stream).share != (1, 1):
        hint = "take a stream that reads all of it"
        raise _refused(stream, "reads a share of its topic", f"share={_input(stream).share}", hint)
    output_mode = stream.output_mode
    if (
        not isinstance(output_mode, EmitChanges | EmitFinal)
        or not output_mode.window_length
        or stream.stateful_steps != 1
    ):
        got = f"{type(output_mode).__name__}, {stream.stateful_steps} stateful steps"
        hint = "take one that has the output mode EmitChanges or EmitFinal of windows, in one step"
        raise _refused(stream, "does not count by windows alone", got, hint)
    if not (isinstance(stream.output, TopicOutput) and stream.output.keyed):
        hint = "give it one TopicOutput with a key: its rows then take the place of those that are there"
        raise _refused(stream, "does not write one topic by key", ", ".join(stream.output_names), hint)


def _input(stream: Stream) -> Input:
    [input_] = stream.sources.values()
    return input_


def _output(stream: Stream) -> TopicOutput:
    assert isinstance(stream.output, TopicOutput)
    return stream.output


def _refused(stream: Stream, what: str, got: object, hint: str) -> DeclarationError:
    return DeclarationError(f"stream {stream.name} cannot be computed again: it {what}", got=got, hint=hint)
