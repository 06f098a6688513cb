"""Receipts, kept for longer than their topic keeps them: written once more, or their windows computed again."""

from __future__ import annotations

from jobs.metrics import RECEIPTS, bundles, summaries
from penstock.streams import Archive, Backfill, Topic

RECEIPTS_ARCHIVE = Archive(
    "receipts-archive",
    RECEIPTS,
    bucket="penstock",
    prefix="receipts",
    event_time="timestamp_millis(cast(get_json_object(cast(value as string), '$.timestamp') as bigint))",
    app="metrics",
)

# Not the topic itself: its streams would count every receipt once more.
REPLAYED = Topic("replayed", partitions=4, heartbeat_every=0, config={"retention.ms": "-1"})

REPLAY = Backfill(
    "replay",
    RECEIPTS_ARCHIVE,
    REPLAYED,
    "Records of any archive into a topic, in order of event time.",
    max_rate=5_000,
)

SUMMARIES = Backfill(
    "summaries-again",
    RECEIPTS_ARCHIVE,
    summaries.STREAM,
    "Summaries of windows for which receipts came too late, or that a mistake of the transform made wrong.",
    via=(bundles.STREAM,),
)
