"""Receipts, kept for longer than their topic keeps them: windows can be computed again from them."""

from __future__ import annotations

from jobs.metrics import RECEIPTS
from penstock.streams import Archive

RECEIPTS_ARCHIVE = Archive(
    "receipts-archive",
    RECEIPTS,
    bucket="penstock",
    prefix="receipts",
    event_time="timestamp_millis(cast(get_json_object(cast(value as string), '$.timestamp') as bigint))",
)
