"""Encodes a transform's rows for its outputs; with several outputs, a column of each row names its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from penstock.engine.query import decode
from penstock.engine.query.expectations import violation_columns
from penstock.engine.query.trace_context import header_columns
from penstock.engine.query.written_values import readable_columns, written_columns
from penstock.errors import Blocked, DeclarationError
from penstock.model.mask_expressions import masked_columns
from penstock.model.output import TopicOutput
from penstock.model.stream import TAG

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.model.output import Output
    from penstock.model.stream import Stream


def encode_rows(stream: Stream, rows: DataFrame, *, readable: bool = False) -> DataFrame:
    """Encode the transform's rows, with columns that say which expectations each violates.

    With several outputs there is a struct for each, NULL except for the row's own.

    Args:
        stream: The stream.
        rows: The transform's rows.
        readable: Whether a value of a schema registry is plain JSON here, for people, and no registry is asked.
    """
    outputs, violations = stream.outputs, violation_columns(stream)
    if "" in outputs:
        encoded = rows.select(
            *_columns(outputs[""], rows, readable=readable), *header_columns(outputs[""], rows), *violations
        )
        # Documents are written as they are, and may have a NULL where a struct's fields are not nullable.
        return decode.with_nullable_fields(encoded) if outputs[""].delivery == "upsert" else encoded
    if TAG not in (name.lower() for name in rows.columns):
        raise DeclarationError(
            f"stream {stream.name}: the transform's rows do not name their output",
            got=f"columns {', '.join(rows.columns)}",
            hint=f"add a column {TAG} with one of: {', '.join(outputs)}",
        )
    structs = []
    for number, (tag, output) in enumerate(outputs.items()):
        is_own = F.col(TAG) == tag
        columns = _columns(output, rows, is_own, readable=readable)
        written = F.struct(*columns, *header_columns(output, rows), *violations)
        structs.append(F.when(is_own, written).alias(f"_{number}"))
    return decode.with_nullable_fields(rows.select(F.col(TAG).alias("_tag"), *structs))


def _columns(output: Output, rows: DataFrame, is_own: Column | None = None, *, readable: bool) -> list[Column]:
    """What the writer of an output gets of each row. is_own: whether a row is of the output; None if all are."""
    if not isinstance(output, TopicOutput):
        # The transforms of sinks and archives mask their rows, as ids are made of them.
        return output.columns()
    masked = masked_columns(rows, output.mask)
    if output.topic.registry_schema is None:
        return output.columns(masked)
    if readable:
        return readable_columns(rows, output, output.topic.registry_schema, masked)
    return written_columns(rows, output, output.topic.registry_schema, masked, is_own)


def split_by_output(stream: Stream, rows: pa.Table) -> dict[str, pa.Table]:
    """Split encoded rows by the name of their output; each table has the columns of its violations."""
    outputs = stream.outputs
    if "" in outputs:
        return {outputs[""].name: rows}
    tags = rows["_tag"]
    if undeclared := set(tags.unique().to_pylist()) - outputs.keys():
        raise Blocked(
            f"stream {stream.name}: rows for an output that is not declared",
            got=f"{TAG} = {', '.join(map(repr, sorted(undeclared, key=str)[:10]))}",
            hint=f"let the transform return one of: {', '.join(outputs)}; then release app {stream.app}: it continues "
            "with this batch, and nothing is lost",
        )
    by_output = {}
    for number, (tag, output) in enumerate(outputs.items()):
        own_rows = rows.filter(pc.equal(tags, pa.scalar(tag))).select([f"_{number}"]).flatten()
        by_output[output.name] = own_rows.rename_columns(
            [name.removeprefix(f"_{number}.") for name in own_rows.column_names]
        )
    return by_output
