"""Spans are exported as OpenTelemetry's variables say; by default there are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from penstock.engine.progress import batch_spans
from penstock.engine.progress.batch_spans import BatchSpans
from penstock.errors import SettingError
from penstock.settings import settings
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from tests.support.http_receiver import receiver

STREAM = Stream(
    "traced", "tests", {"events": Input(Topic("events"))}, lambda events: events,
    TopicOutput(Topic("out"), value="value"), Stateless(),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_TRACES", "1")
    settings.cache_clear()
    batch_spans._provider.cache_clear()
    yield
    settings.cache_clear()
    batch_spans._provider.cache_clear()


def test_they_are_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TRACES")
    settings.cache_clear()
    assert batch_spans.tracer() is None

    def write(frame: object, batch: int) -> None: ...

    assert BatchSpans(STREAM, cast(Any, None), None).traced(write) is write


@pytest.mark.parametrize(
    ("variables", "module"),
    [
        ({}, "opentelemetry.exporter.otlp.proto.http.trace_exporter"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        ),
        ({"OTEL_TRACES_EXPORTER": "console"}, "opentelemetry.sdk.trace.export"),
    ],
)
def test_the_exporter_is_that_of_the_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], module: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    provider = batch_spans._provider()
    [processor] = provider._active_span_processor._span_processors
    exporter = processor._batch_processor._exporter.exporter  # type: ignore[attr-defined]
    assert type(exporter).__module__.startswith(module.removesuffix(".__init__"))
    assert provider.resource.attributes["service.name"] == "penstock"
    provider.shutdown()


def test_the_name_of_the_service_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    assert batch_spans._provider().resource.attributes["service.name"] == "shop"


def test_an_exporter_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon")
    with pytest.raises(SettingError, match=r"no such exporter of spans; got: pigeon; hint: set OTEL_EXPORTER"):
        batch_spans.tracer()


@pytest.mark.processes
def test_a_receiver_that_is_down_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    with receiver() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        tracer = batch_spans.tracer()
        assert tracer is not None
        for status in (503, 400, 200, 200):
            server.status = lambda _, status=status: status  # type: ignore[misc]
            tracer.start_span("process").end()
            batch_spans.flush(10)
    assert [(r.name.partition(".")[0], r.levelname) for r in caplog.records] == [
        ("penstock", "WARNING"), ("penstock", "INFO"),
    ]  # fmt: skip
    assert "Service Unavailable" in caplog.messages[0]
    assert caplog.messages[1] == "spans are exported again; 2 were lost"
    batch_spans._provider().shutdown()
