"""Reports once that spans cannot be exported, and once that they can be again.

The exporters of OpenTelemetry log each attempt, several a minute and for ever, as errors.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger(__name__)

EXPORTERS = "opentelemetry.exporter"
"""The logger above those of all exporters."""


class _LastMessages(logging.Handler):
    """Keeps the last two messages: the cause of the last attempt, and that there is no other."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts = deque[str](maxlen=2)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class ReportingExporter(SpanExporter):
    """Exports by another exporter.

    Args:
        exporter: Its results are reported, and what it logs is not.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.exporter = exporter
        self._failing, self._lost = False, 0
        self._said = _LastMessages()
        own = logging.getLogger(EXPORTERS)
        own.handlers, own.propagate = [self._said], False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans; those that are not exported are lost."""
        self._said.texts.clear()
        try:
            result = self.exporter.export(spans)
        except Exception as e:
            self._said.texts.append(f"{type(e).__name__}: {e}")
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            if self._failing:
                log.info("spans are exported again; %d were lost", self._lost)
            self._failing, self._lost = False, 0
            return result
        if not self._failing:
            log.warning(
                "spans cannot be exported and are lost; streams go on: %s; hint: see that the receiver of "
                "OTEL_EXPORTER_OTLP_ENDPOINT answers",
                "; ".join(self._said.texts),
            )
        self._failing, self._lost = True, self._lost + len(spans)
        return result

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self.exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what the exporter holds."""
        return self.exporter.force_flush(timeout_millis)
