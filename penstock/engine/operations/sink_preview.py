"""Preview of a sink: the documents that it makes of some records, without its stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from penstock.codec import columnar
from penstock.codec.arrow_types import ARROW_TYPES
from penstock.engine.commit.dead_letters import POSITION_COLUMNS
from penstock.engine.error_text import root_message
from penstock.engine.query import decode
from penstock.errors import DeclarationError, PenstockError
from penstock.kafka.dead_letters import RecordLocation
from penstock.model.output import JSON, Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.kafka.record_lookup import TopicRecord
    from penstock.model.stream import Stream

HEADERS = pa.list_(pa.struct([("key", ARROW_TYPES["string"]), ("value", ARROW_TYPES["binary"])]))
# A further column of an encoded row: the document as text.
DOCUMENT_COLUMN = "_document"


@dataclass(frozen=True)
class RenderedRecords:
    """The documents of some records. rows: all encoded rows; errors: why a record has none, by its location."""

    rows: pa.Table
    errors: dict[RecordLocation, str] = field(default_factory=dict)

    def of(self, location: RecordLocation) -> pa.Table:
        """The rows of one record, as the writer gets them."""
        return self._written_rows.take(pa.array(self._row_numbers.get(location, []), pa.int64()))

    @cached_property
    def _written_rows(self) -> pa.Table:
        """The rows as the writer gets them, in one piece, of which single rows are taken fast."""
        return self.rows.drop_columns([DOCUMENT_COLUMN]).combine_chunks()

    @cached_property
    def _row_numbers(self) -> dict[RecordLocation, list[int]]:
        numbers: dict[RecordLocation, list[int]] = {}
        for number, position in enumerate(self.rows.select(POSITION_COLUMNS).to_pylist()):
            numbers.setdefault(RecordLocation(**position), []).append(number)
        return numbers


def sink_output(stream: Stream) -> Output:
    """The output of a sink of documents; DeclarationError if a stream is none."""
    output = stream.output
    if not isinstance(output, Output) or output.delivery != "upsert" or stream.tables:
        raise DeclarationError(
            f"stream {stream.name} is no sink of documents",
            got=", ".join(stream.output_names),
            hint="name one of sql/sinks/",
        )
    return output


def render_documents(spark: SparkSession, stream: Stream, source_records: Sequence[TopicRecord]) -> RenderedRecords:
    """Render the documents of records. A record that makes the transform fail is found, with the reason."""
    try:
        return _render(spark, stream, source_records)
    except PenstockError:
        raise
    except Exception as e:
        if not source_records:
            raise
        if len(source_records) == 1:
            # Spark's message may quote a value.
            why = "" if sink_output(stream).mask else f": {root_message(e)}"
            return RenderedRecords(_none(spark, stream), {source_records[0].location: f"the transform fails{why}"})
    half = len(source_records) // 2
    parts = [
        render_documents(spark, stream, source_records[:half]),
        render_documents(spark, stream, source_records[half:]),
    ]
    return RenderedRecords(pa.concat_tables([part.rows for part in parts]), parts[0].errors | parts[1].errors)


def _none(spark: SparkSession, stream: Stream) -> pa.Table:
    return _render(spark, stream, []).rows


def _render(spark: SparkSession, stream: Stream, source_records: Sequence[TopicRecord]) -> RenderedRecords:
    frames: dict[str, DataFrame] = {}
    errors: dict[RecordLocation, str] = {}
    for name, input_ in stream.sources.items():
        raw = spark.createDataFrame(
            _table([record for record in source_records if input_.reads_topic(record.location.topic)])
        )
        rows = decode.decode_records(raw, input_, F.current_timestamp())
        if input_.schema:
            bad = rows.where(columnar.BAD_COLUMN).select(f"{columnar.SOURCE_RECORD_COLUMN}.*")
            reasons = {RecordLocation(row.topic, row.partition, row.offset): row.reason for row in bad.collect()}
            if sink_output(stream).mask:
                # A value follows the colon.
                reasons = {location: reason.partition(":")[0] for location, reason in reasons.items()}
            errors |= reasons
        frames[name] = decode.drop_heartbeats(
            rows.where(~F.col(columnar.BAD_COLUMN)).drop(columnar.BAD_COLUMN, columnar.SOURCE_RECORD_COLUMN)
        )
    result = stream.transform(**frames)
    document = F.to_json("doc", JSON) if "doc" in result.columns else F.lit(None).cast("string")
    encoded = result.select(*sink_output(stream).columns(), document.cast("binary").alias(DOCUMENT_COLUMN))
    return RenderedRecords(decode.with_nullable_fields(encoded).toArrow(), errors)


def _table(source_records: Sequence[TopicRecord]) -> pa.Table:
    """Records as Spark's source has them."""
    rows: list[dict[str, Any]] = [
        {
            **record.location._asdict(),
            "key": record.key,
            "value": record.value,
            "timestamp": record.timestamp * 1000,
            "headers": [{"key": name, "value": text} for name, text in record.headers] or None,
        }
        for record in source_records
    ]
    types = {f.name: f.type for f in columnar.RECORD_TYPE if f.name in columnar.RAW}
    plain = pa.schema([*types.items(), ("timestamp", pa.int64()), ("headers", HEADERS)])
    table = pa.Table.from_pylist(rows, schema=plain)
    return table.set_column(
        table.schema.get_field_index("timestamp"), "timestamp", table["timestamp"].cast(ARROW_TYPES["timestamp"])
    )
