"""Trace contexts (W3C): read from the headers of records, carried to the rows that are made of one record, and linked.

A context is one text, the `traceparent` and in a second line the `tracestate` if there is one, in a column of a frame,
`_trace_context`. A transform does not see it: it is put back into the plan that the transform has made
(`penstock.engine.jvm.hidden_column`). All of it is Spark's own expressions.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from penstock.codec.columnar import TRACE_FIELD
from penstock.engine.jvm.hidden_column import with_hidden_column
from penstock.model.output import Output, TopicOutput
from penstock.model.output_mode import Stateless

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.model.input import Input
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

TRACE = TRACE_FIELD.name
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
# Version, trace id, parent id and flags; ids are not all zeros, and only a version after 00 may have more fields.
VALID_TRACEPARENT = (
    r"^(?!ff)(?:00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\z"
    r"|(?!00)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:\z|-))"
)
VALID_TRACESTATE = r"^[\x20-\x7e\t]{1,512}\z"
# Characters of a traceparent behind its version.
VERSION_CHARACTERS, CONTEXT_CHARACTERS = 3, 52
# Contexts of a batch that its span links to: OpenTelemetry's default limit of links.
MAX_LINKS = 128


def read_contexts(raw: DataFrame) -> DataFrame:
    """Add the contexts of raw records as a column; NULL where there is none, or it is malformed."""
    # Functions with a lambda are not compiled, and cost more than all else: only for a tracestate, which is rare.
    names = F.col("headers.key")
    value = F.get("headers.value", (F.array_position(names, TRACEPARENT) - 1).cast("int"))
    # Two of them contradict each other.
    parent = F.when(F.size(F.array_remove(names, TRACEPARENT)) == F.size(names) - 1, value.cast("string"))
    states = F.filter("headers", lambda header: (header.key == TRACESTATE) & header.value.isNotNull())
    joined = F.array_join(F.transform(states, lambda header: header.value.cast("string")), ",")
    state = F.when(F.array_contains(names, TRACESTATE), joined)
    # What follows in a later version is unknown to this one, which writes version 00.
    known = F.concat(F.lit("00-"), F.substring(parent, VERSION_CHARACTERS + 1, CONTEXT_CHARACTERS))
    context = F.concat_ws("\n", known, F.when(state.rlike(VALID_TRACESTATE), state))
    return raw.withColumn(TRACE, F.when(parent.rlike(VALID_TRACEPARENT), context))


def observe_contexts(raw: DataFrame, name: str) -> DataFrame:
    """Let a metric `trace_<name>` hold the first contexts of a batch."""
    order = F.when(F.col(TRACE).isNotNull(), F.col("offset"))
    return raw.observe(
        f"trace_{name}", F.to_json(F.call_function("min_by", F.col(TRACE), order, F.lit(MAX_LINKS))).alias("contexts")
    )


def parse_contexts(metric: Any) -> list[str]:
    """The different contexts in the metric of `observe_contexts`, a row of the JVM."""
    return list(dict.fromkeys(json.loads(metric.getString(0) or "[]")))


def is_carried(stream: Stream, input_: Input) -> bool:
    """Whether rows made of an input's records may carry their contexts: a row of a stream with state, or of a combiner,
    is made of several records."""
    has_topic = any(isinstance(output, TopicOutput) for output in stream.outputs.values())
    return has_topic and isinstance(stream.output_mode, Stateless) and input_.combine is None


def carried(stream: Stream, rows: DataFrame) -> DataFrame:
    """The transform's rows with the contexts of their records, if each row is made of one record."""
    if not any(is_carried(stream, input_) for input_ in stream.sources.values()):
        return rows
    with_contexts = with_hidden_column(rows, TRACE)
    if with_contexts is None:
        log.info("stream %s carries no trace contexts: its transform is not row by row", stream.name)
    return rows if with_contexts is None else with_contexts


def header_columns(output: Output, rows: DataFrame) -> list[Column]:
    """The column `headers MAP<STRING, BINARY>` of a topic, if the rows have contexts."""
    if not isinstance(output, TopicOutput) or TRACE not in rows.columns:
        return []
    parent, state = (F.split_part(F.col(TRACE), F.lit("\n"), F.lit(n)).cast("binary") for n in (1, 2))
    only_parent = F.create_map(F.lit(TRACEPARENT), F.col(TRACE).cast("binary"))
    both = F.create_map(F.lit(TRACEPARENT), parent, F.lit(TRACESTATE), state)
    return [F.when(F.contains(TRACE, F.lit("\n")), both).when(F.col(TRACE).isNotNull(), only_parent).alias("headers")]
