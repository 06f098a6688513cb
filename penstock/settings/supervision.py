"""Settings of the control database, leases, progress reports, supervision and heartbeats."""

import os
from typing import Self

from pydantic import BaseModel, Field, SecretStr, model_validator

from penstock.settings.types import Authority, SecretUrl


class SupervisionSettings(BaseModel):
    """The control database, leases, progress reports, supervision and heartbeats."""

    control_url: SecretUrl = Field(
        SecretStr(""), description="SQLAlchemy URL of the control database; empty: the embedded MariaDB"
    )
    control_ca: Authority = Field(
        "",
        description="PEM file of the CA of an external control database; then TLS is required and the host name "
        "verified",
    )
    lease_ttl: float = Field(15.0, gt=3, description="seconds without renewal after which a lease ends")
    progress_every: float = Field(2.0, gt=0, description="seconds between progress reports of a driver")
    stuck_after: float = Field(
        30.0, gt=0, description="seconds without a liveness report after which a driver is hung and is killed"
    )
    drain_timeout: float = Field(60.0, gt=0, description="seconds after which a draining driver is killed")
    supervise_every: float = Field(1.0, gt=0, description="seconds between two reconciliations of the supervisor")
    supervise_epoch: float = Field(
        3600.0, gt=0, description="seconds after which a run of the supervising DAG ends and the next begins"
    )
    release_exclude: list[str] = Field(
        [], description='files and folders of the project that are no part of releases, as JSON: `["data/*.csv"]`'
    )
    snapshot_readers: int = Field(
        min(4, os.cpu_count() or 1), ge=1, description="processes that read the snapshot of one large table"
    )
    heartbeat_secret: SecretStr = Field(
        SecretStr(""), description="key that signs heartbeats; empty: the one in `heartbeat.secret` of the home"
    )

    @model_validator(mode="after")
    def _ca_needs_a_url(self) -> Self:
        if self.control_ca and not self.control_url.get_secret_value():
            raise ValueError("PENSTOCK_CONTROL_CA is for an external database: set PENSTOCK_CONTROL_URL")
        return self
