"""Every count of the topics' quality is kept, the corrected ones too; those of receipts are computed again."""

from __future__ import annotations

from jobs.metrics.archive import RECEIPTS_ARCHIVE
from jobs.quality.counts import METRICS, STREAM
from penstock.streams import Archive, Backfill

COUNTS_ARCHIVE = Archive(
    "quality-archive",
    METRICS,
    bucket="penstock",
    prefix="quality",
    event_time="timestamp_millis(cast(get_json_object(cast(key as string), '$.window') as bigint))",
    app="quality",
)

COUNTS = Backfill(
    "receipts-quality-again",
    RECEIPTS_ARCHIVE,
    STREAM,
    "Valid and invalid receipts of each second, counted by the rules as they are now.",
)
