"""Settings of metrics, logs, lineage and traces."""

from pydantic import BaseModel, Field, SecretStr

from penstock.settings.types import SecretUrl, Url


class MonitoringSettings(BaseModel):
    """Metrics, logs, lineage and traces."""

    metrics_port: int = Field(19464, ge=1, le=65535, description="port of the meter's Prometheus endpoint")
    metrics_host: str = Field("127.0.0.1", description="address that the meter listens on")
    measure_every: float = Field(
        15.0, gt=0, description="seconds between two samples that the meter takes of the platform"
    )
    history_days: float = Field(
        7.0,
        ge=1,
        description="days for which every report of a stream is kept, some 5 MB for each stream in a week; its hours "
        "are kept for 400 days",
    )
    delays: dict[str, str] = Field(
        {"alerts": "window_end"},
        description="topics whose rows have a field with the time they were due, in epoch ms, and that field, as JSON",
    )
    log_json: bool = Field(default=False, description="log JSON lines instead of text")
    alert_webhook: SecretUrl = Field(
        default=SecretStr(""),
        description="URL to which log records of level WARN and above are posted as JSON; empty: none",
    )
    page_url: Url = Field(
        "",
        description="address of the operator page for messages about faults, such as "
        "`https://airflow.example.com/plugin/penstock`; empty: they have no link",
    )
    lineage: bool = Field(
        default=False,
        description="emit OpenLineage events of streams; variables of its client, as `OPENLINEAGE_URL`, say where to",
    )
    traces: bool = Field(
        default=False,
        description="carry trace contexts of records, and export a span for each batch; variables of OpenTelemetry, as "
        "`OTEL_EXPORTER_OTLP_ENDPOINT`, say where to",
    )
    lineage_every: float = Field(60.0, gt=0, description="seconds between RUNNING events of a stream")
