"""Summary statistics of receipts `{environment, metric, value, timestamp}` per window.

Settings are variables `PENSTOCK_METRICS_<FIELD>`; a change takes effect with a release of the app `metrics`.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from jobs.metrics.partials import receipt_combiner
from penstock.model.input import LateRecords
from penstock.settings import Duration
from penstock.streams import Input, Topic


class MetricsSettings(BaseSettings):
    """Durations as ISO 8601 (`PT5M`) or seconds, quantiles as a JSON array (`[0.5, 0.9, 0.999]`)."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_METRICS_", frozen=True)

    bundle: Duration = Field(
        timedelta(minutes=5), gt=timedelta(0), description="window of the first stage, the bundles"
    )
    summary: Duration = Field(timedelta(minutes=10), description="window of the second stage, a multiple of `bundle`")
    grace: Duration = Field(timedelta(hours=1), description="how late a receipt may be")
    decimals: int = Field(
        2, ge=0, le=9, description="decimals to which values are truncated before quantiles are computed"
    )
    quantiles: tuple[float, ...] = Field((0.9,), description="quantiles of a summary, each over 0 and at most 1")
    # A bundle is one record, and brokers accept a megabyte: some 20 bytes for each value and its count.
    distinct: int = Field(
        40_000,
        ge=1,
        le=750_000,
        description="values that a bundle may hold: with more receipts it holds the distinct values and their counts, "
        "with more distinct values none",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.summary < self.bundle or self.summary % self.bundle:
            raise ValueError(f"summary ({self.summary}) must be a multiple of bundle ({self.bundle})")
        if invalid := [q for q in self.quantiles if not 0 < q <= 1]:
            raise ValueError(f"quantiles must be over 0 and at most 1, got {invalid}")
        return self


@cache
def metrics_settings() -> MetricsSettings:
    return MetricsSettings()


# timestamp: epoch ms, by the clock of the sender.
RECEIPT = "environment STRING NOT NULL, metric STRING NOT NULL, value DOUBLE NOT NULL, timestamp BIGINT NOT NULL"
RECEIPTS = Topic("receipts", partitions=4, retention=timedelta(days=2), schema=RECEIPT)


def receipts(window: timedelta, late: LateRecords = "count") -> Input:
    """The input of receipts, as partial aggregates of `jobs.metrics.partials`.

    Args:
        window: The window by which the transform groups.
        late: What happens to late records.
    """
    return Input(
        RECEIPTS,
        event_time="timestamp_millis(timestamp)",
        combine=receipt_combiner(window, metrics_settings().decimals),
        late_records=late,
    )
