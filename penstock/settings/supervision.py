"""Settings: the control database, leases, reports, supervision and heartbeats."""

import os
from typing import Self

from pydantic import BaseModel, Field, SecretStr, model_validator

from penstock.settings.types import Authority


class SupervisionSettings(BaseModel):
    """The control database, leases, reports, supervision and heartbeats."""

    control_url: SecretStr = Field(
        SecretStr(""), description="SQLAlchemy URL of the control database; empty means the embedded MariaDB"
    )
    control_ca: Authority = Field(
        "",
        description="PEM file of the CA of the control database's certificate: TLS is then asked for, and the name in "
        "the certificate checked",
    )
    lease_ttl: float = Field(15.0, gt=3, description="seconds without renewal until a lease may be taken")
    progress_every: float = Field(2.0, gt=0, description="seconds between progress reports")
    stuck_after: float = Field(
        30.0, gt=0, description="seconds of driver silence after which it is taken for hung and killed"
    )
    drain_timeout: float = Field(60.0, gt=0, description="seconds a draining driver gets before it is killed")
    supervise_every: float = Field(1.0, gt=0, description="seconds between two looks of the supervisor")
    supervise_epoch: float = Field(3600.0, gt=0, description="seconds after which a supervising run ends")
    snapshot_readers: int = Field(
        min(4, os.cpu_count() or 1), ge=1, description="processes that read the snapshot of a large table"
    )
    heartbeat_secret: SecretStr = Field(
        SecretStr(""), description="proves heartbeats; empty means the one that <home>/heartbeat.secret keeps"
    )

    @model_validator(mode="after")
    def _ca_has_a_database(self) -> Self:
        if self.control_ca and not self.control_url.get_secret_value():
            raise ValueError("PENSTOCK_CONTROL_CA is of a database elsewhere: set PENSTOCK_CONTROL_URL")
        return self
