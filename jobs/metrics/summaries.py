"""Ten-minute summaries, updated while receipts still come in."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.metrics import RECEIPT_INPUT
from jobs.metrics.figures import FIGURES, KEY, summarised
from penstock.streams import Stream, Topic, Updates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def transform(receipts: DataFrame) -> DataFrame:
    return summarised(receipts, "10 minutes")


STREAM = Stream(
    name="metric-summaries",
    app="metrics",
    inputs={"receipts": RECEIPT_INPUT},
    transform=transform,
    output=Topic(
        "metric-summaries",
        partitions=2,
        compacted=True,
        config={"cleanup.policy": "compact,delete", "retention.ms": str(30 * 24 * 3600 * 1000)},
    ),
    key=KEY,
    value=KEY + FIGURES,
    promise=Updates(window=timedelta(minutes=10), late_by=timedelta(hours=1)),
    every=10.0,
)
