"""A span for each batch of a stream, exported by OpenTelemetry's SDK as its variables say."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.engine.jvm.bridge import BatchExecution
from penstock.engine.query.trace_context import MAX_LINKS, parse_contexts
from penstock.errors import SettingError
from penstock.settings import settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer
    from pyspark.sql import DataFrame, SparkSession

    from penstock.engine.commit.batch_output import CommittedBatch
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# By `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`, or the same for all signals.
OTLP_EXPORTERS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class BatchSpans:
    """Makes the spans of one stream's batches.

    Args:
        stream: The stream.
        spark: The session of its query.
        tracer: Of OpenTelemetry; None for no spans.
    """

    def __init__(self, stream: Stream, spark: SparkSession, tracer: Tracer | None) -> None:
        self._stream, self._spark, self._tracer = stream, spark, tracer
        self._span: Span | None = None

    def traced(self, write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """The function of a batch, within a span.

        Args:
            write: Commits a batch of rows, by its number.
        """
        if (tracer := self._tracer) is None:
            return write
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.consumer.group.name": self._stream.group,
            "messaging.destination.name": ",".join(input_.source for input_ in self._stream.sources.values()),
            "penstock.app": self._stream.app,
            "penstock.stream": self._stream.name,
        }

        def write_in_span(frame: DataFrame, batch_id: int) -> None:
            from opentelemetry.trace import SpanKind

            with tracer.start_as_current_span(
                f"process {self._stream.name}", kind=SpanKind.CONSUMER,
                attributes={**attributes, "penstock.batch": batch_id},
            ) as span:  # fmt: skip
                self._span = span
                try:
                    write(frame, batch_id)
                finally:
                    self._span = None
                    self._link(span)

        return write_in_span

    def _link(self, span: Span) -> None:
        """Link the span to the contexts of the batch; a batch does not fail by it."""
        try:
            if span.is_recording():
                _add_links(span, self._stream, self._spark)
        except Exception as e:
            log.info("stream %s: the span of a batch has no links: %s", self._stream.name, e)

    def committed(self, batch: CommittedBatch) -> None:
        """Note what the batch of the present span holds."""
        if self._span is not None:
            self._span.set_attributes(
                {"penstock.rows": batch.rows, "penstock.dead_letters": batch.dead, "penstock.late": batch.late}
            )


def tracer() -> Tracer | None:
    """The tracer of this process; None if traces are off."""
    return _provider().get_tracer("penstock", __version__) if settings().traces else None


def flush(seconds: float) -> None:
    """Export the spans that have ended, for some seconds at most."""
    if settings().traces:
        # The exporter repeats what a receiver does not take, for longer.
        thread = threading.Thread(target=_provider().force_flush, name="spans", daemon=True)
        thread.start()
        thread.join(seconds)


@cache
def _provider() -> TracerProvider:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from penstock.engine.progress.reporting_exporter import ReportingExporter

    protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), "http/protobuf")
    wanted = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    name = OTLP_EXPORTERS.get(protocol, protocol) if wanted == "otlp" else wanted
    named = "" if os.environ.get("OTEL_SERVICE_NAME") else "penstock"
    resource = Resource.create({SERVICE_NAME: named} if named else {})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if wanted != "none":
        exporters = entry_points(group="opentelemetry_traces_exporter", name=name)
        if not exporters:
            raise SettingError(
                "PENSTOCK_TRACES is on, and there is no such exporter of spans", got=name,
                hint="set OTEL_EXPORTER_OTLP_PROTOCOL to grpc or http/protobuf, or OTEL_TRACES_EXPORTER to none",
            )  # fmt: skip
        provider.add_span_processor(BatchSpanProcessor(ReportingExporter(next(iter(exporters)).load()())))
    return provider


def _add_links(span: Span, stream: Stream, spark: SparkSession) -> None:
    """Link a batch's span to the contexts of its records."""
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    query = next(query for query in spark.streams.active if query.name == stream.name)
    execution, contexts = BatchExecution.last_of(query), dict[str, None]()
    for name in stream.sources:
        if (metric := execution.observed_metric(f"trace_{name}")) is not None:
            contexts |= dict.fromkeys(parse_contexts(metric))
    for context in list(contexts)[:MAX_LINKS]:
        parent, _, state = context.partition("\n")
        carrier = {"traceparent": parent, "tracestate": state}
        span.add_link(get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context())
