"""An archive of receipts, from which they are copied to a topic or their summaries are computed again."""

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

# Not the topic of receipts: its streams would count every receipt again.
REPLAYED = Topic("replayed", partitions=4, heartbeat_every=0, config={"retention.ms": "-1"})

REPLAY = Backfill(
    "replay",
    RECEIPTS_ARCHIVE,
    REPLAYED,
    "Copies records of any archive to a topic, in order of event time.",
    max_rate=5_000,
)

SUMMARIES = Backfill(
    "summaries-again",
    RECEIPTS_ARCHIVE,
    summaries.STREAM,
    "Computes summaries again, if receipts were late or the transform was wrong.",
    via=(bundles.STREAM,),
)
