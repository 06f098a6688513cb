"""Settings: metrics and logs."""

from pydantic import BaseModel, Field, SecretStr


class MonitoringSettings(BaseModel):
    """Metrics and logs."""

    metrics_port: int = Field(19464, ge=1, le=65535, description="Prometheus endpoint of the meter")
    metrics_host: str = Field("127.0.0.1", description="address it listens on")
    measure_every: float = Field(15.0, gt=0, description="seconds between two samples of the platform by itself")
    delays: dict[str, str] = Field(
        {"alerts": "window_end"},
        description="topics whose rows say when they were due, with the field that does, in epoch ms; as JSON",
    )
    log_json: bool = Field(default=False, description="log JSON lines instead of text")
    alert_webhook: SecretStr = Field(
        default=SecretStr(""), description="URL that gets WARN and above as JSON posts; empty is off"
    )
