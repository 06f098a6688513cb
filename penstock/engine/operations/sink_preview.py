"""Preview of a sink: the documents that it makes of some records, without its stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from penstock.codec import columnar
from penstock.codec.columnar import ARROW_TYPES
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
# A column of an encoded row beside those of the writer: the document as text.
DOCUMENT_COLUMN = "_document"


@dataclass(frozen=True)
class RenderedRecords:
    """The documents of some records. rows: all encoded rows; wrong: why a record has none, by its location."""

    rows: pa.Table
    wrong: dict[RecordLocation, str] = field(default_factory=dict)

    def of(self, place: RecordLocation) -> pa.Table:
        """The rows of one record, as the writer gets them."""
        mine = [RecordLocation(**one) == place for one in self.rows.select(POSITION_COLUMNS).to_pylist()]
        return self.rows.filter(pa.array(mine, pa.bool_())).drop_columns([DOCUMENT_COLUMN])


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


def render_documents(spark: SparkSession, stream: Stream, given: Sequence[TopicRecord]) -> RenderedRecords:
    """Render the documents of records. A record that makes the transform fail is found, with the reason."""
    try:
        return _made(spark, stream, given)
    except PenstockError:
        raise
    except Exception as e:
        if len(given) == 1:
            return RenderedRecords(_none(spark, stream), {given[0].location: f"the transform fails: {root_message(e)}"})
    half = len(given) // 2
    parts = [render_documents(spark, stream, given[:half]), render_documents(spark, stream, given[half:])]
    return RenderedRecords(pa.concat_tables([part.rows for part in parts]), parts[0].wrong | parts[1].wrong)


def _none(spark: SparkSession, stream: Stream) -> pa.Table:
    return _made(spark, stream, []).rows


def _made(spark: SparkSession, stream: Stream, given: Sequence[TopicRecord]) -> RenderedRecords:
    frames: dict[str, DataFrame] = {}
    wrong: dict[RecordLocation, str] = {}
    for name, one in stream.sources.items():
        source = spark.createDataFrame(_table([record for record in given if one.reads_topic(record.location.topic)]))
        rows = decode.decode_records(source, one, F.current_timestamp())
        if one.schema:
            kept = rows.where(columnar.BAD_COLUMN).select(f"{columnar.SOURCE_RECORD_COLUMN}.*")
            wrong |= {RecordLocation(row.topic, row.partition, row.offset): row.reason for row in kept.collect()}
        frames[name] = decode.drop_heartbeats(
            rows.where(~F.col(columnar.BAD_COLUMN)).drop(columnar.BAD_COLUMN, columnar.SOURCE_RECORD_COLUMN)
        )
    found = stream.transform(**frames)
    shown = F.to_json("doc", JSON) if "doc" in found.columns else F.lit(None).cast("string")
    encoded = found.select(*sink_output(stream).columns(), shown.cast("binary").alias(DOCUMENT_COLUMN))
    return RenderedRecords(decode.with_nullable_fields(encoded).toArrow(), wrong)


def _table(given: Sequence[TopicRecord]) -> pa.Table:
    """Records as Spark's source has them."""
    rows: list[dict[str, Any]] = [
        {
            **one.location._asdict(),
            "key": one.key,
            "value": one.value,
            "timestamp": one.timestamp * 1000,
            "headers": [{"key": name, "value": text} for name, text in one.headers] or None,
        }
        for one in given
    ]
    kinds = {f.name: f.type for f in columnar.RECORD_TYPE if f.name in columnar.RAW}
    plain = pa.schema([*kinds.items(), ("timestamp", pa.int64()), ("headers", HEADERS)])
    found = pa.Table.from_pylist(rows, schema=plain)
    return found.set_column(
        found.schema.get_field_index("timestamp"), "timestamp", found["timestamp"].cast(ARROW_TYPES["timestamp"])
    )
