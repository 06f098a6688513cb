"""An archive of all counts, corrected ones too, and a backfill that counts archived receipts again."""

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
    "Counts valid and invalid receipts of each second again, by the present rules. The count of a status that no "
    "receipt of a second has any more stays.",
)
