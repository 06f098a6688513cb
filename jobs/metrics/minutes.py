"""One final line per metric and minute: what a chart or an alarm wants, because it never changes afterwards."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.metrics import RECEIPT_INPUT
from jobs.metrics.figures import FIGURES, KEY, summarised
from penstock.streams import Final, Stream, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def transform(receipts: DataFrame) -> DataFrame:
    return summarised(receipts, "1 minute")


STREAM = Stream(
    name="metric-minutes",
    app="metrics",
    inputs={"receipts": RECEIPT_INPUT},
    transform=transform,
    output=Topic("metric-minutes", partitions=2, retention=timedelta(days=2)),
    key=KEY,
    value=KEY + FIGURES,
    promise=Final(window=timedelta(minutes=1), grace=timedelta(seconds=10)),
    every=5.0,
)
