"""Every count of the topics' quality, the corrected ones too; the topic itself keeps the newest of each second."""

from __future__ import annotations

from jobs.quality.counts import METRICS
from penstock.streams import Archive

COUNTS_ARCHIVE = Archive(
    "quality-archive",
    METRICS,
    bucket="penstock",
    prefix="quality",
    event_time="timestamp_millis(cast(get_json_object(cast(key as string), '$.window') as bigint))",
)
