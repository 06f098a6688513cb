"""Presence: probes of devices become walk-ins at businesses, which get the contact of the device and are counted.

Settings are variables `PENSTOCK_PRESENCE_<FIELD>`, and those that a stream in SQL declares by SETTING; a change takes
effect with a release of the app `presence`.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from penstock.settings import Duration
from penstock.streams import Topic


class PresenceSettings(BaseSettings):
    """Durations as ISO 8601 (`PT2M`) or seconds."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_PRESENCE_", frozen=True)

    dwell: Duration = Field(
        timedelta(minutes=2), gt=timedelta(0), description="how long a device must be present to walk in"
    )
    within: Duration = Field(timedelta(minutes=10), description="the time within which `dwell` must be reached")
    away: Duration = Field(timedelta(hours=4), description="how long a device must be away to walk in again")
    grace: Duration = Field(timedelta(minutes=10), ge=timedelta(0), description="how late a probe may be")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.dwell <= self.within < self.away:
            raise ValueError(
                f"dwell ({self.dwell}) must be at most within ({self.within}), and within less than away ({self.away})"
            )
        return self


@cache
def presence_settings() -> PresenceSettings:
    return PresenceSettings()


# signal: dBm. timestamp: epoch ms, by the router's clock.
PROBE = (
    "device STRING NOT NULL, business STRING NOT NULL, router STRING, signal INT NOT NULL, timestamp BIGINT NOT NULL"
)
PROBES = Topic("probes", partitions=4, retention=timedelta(days=2))

# since: when the dwell began; timestamp: when it was reached. Epoch ms.
WALK_IN = "device STRING NOT NULL, business STRING NOT NULL, since BIGINT NOT NULL, timestamp BIGINT NOT NULL"
WALK_INS = Topic("walk-ins", partitions=4, retention=timedelta(days=30), schema=WALK_IN)

# type: login, change or removal; business: of a login, where the portal is. timestamp: epoch ms.
CRM_EVENT = "device STRING NOT NULL, contact STRING, business STRING, type STRING NOT NULL, timestamp BIGINT NOT NULL"
CRM_EVENTS = Topic("crm-events", partitions=4, retention=timedelta(days=7))
CRM_BACKFILL = Topic("crm-events-backfill", partitions=4, retention=timedelta(days=7))

ENRICHED = f"{WALK_IN}, contact STRING NOT NULL"
ENRICHED_WALK_INS = Topic("enriched-walk-ins", partitions=4, retention=timedelta(days=30), schema=ENRICHED)

# count: walk-ins of a contact at a business up to and at `as_of`, epoch ms.
BASE_COUNT = "business STRING NOT NULL, contact STRING NOT NULL, count BIGINT NOT NULL, as_of BIGINT NOT NULL"
BASE_COUNTS = Topic("base-counts", partitions=4, retention=timedelta(days=7), schema=BASE_COUNT)
WALK_IN_COUNTS = Topic("walk-in-counts", partitions=4, compacted=True)

AT = "timestamp_millis(timestamp)"
