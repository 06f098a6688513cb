"""Walk-ins are kept, and counted from there; counts are served; the CRM's contacts are brought in from its database."""

from __future__ import annotations

from jobs.presence import (
    BASE_COUNTS,
    CRM_BACKFILL,
    ENRICHED,
    ENRICHED_WALK_INS,
    WALK_IN_COUNTS,
)
from penstock.streams import Archive, Backfill, Collection, RowsQuery, TopicOutput, View

VISITS = View(
    "visits",
    WALK_IN_COUNTS,
    schema="business STRING NOT NULL, contact STRING NOT NULL, count BIGINT NOT NULL",
    query_by=("business", "contact", "count"),
)

WALK_INS_ARCHIVE = Archive(
    "walk-ins-archive",
    ENRICHED_WALK_INS,
    bucket="penstock",
    prefix="walk-ins",
    event_time="timestamp_millis(cast(get_json_object(cast(value as string), '$.timestamp') as bigint))",
    app="presence",
)

BASE = Backfill(
    "base-counts",
    WALK_INS_ARCHIVE,
    TopicOutput(BASE_COUNTS, key=("business", "contact"), value=("business", "contact", "count", "as_of")),
    "Walk-ins of each contact at each business up to a time; counts go on from there.",
    rows=RowsQuery(
        ENRICHED,
        "timestamp_millis(timestamp)",
        """SELECT business, contact, count(DISTINCT (timestamp, device)) AS count, getvariable('end') - 1 AS as_of
        FROM records GROUP BY business, contact""",
    ),
    full_history=True,
    # Their reader is live, and what comes at once is one long batch to it.
    max_rate=5_000,
)

# A document of each device: device, contact (none once it was removed), business of its latest login, type of the event
# that made it so, and when that was.
CONTACTS = Backfill(
    "contacts",
    Collection("crm", "contacts"),
    TopicOutput(CRM_BACKFILL, key="device", value=("device", "contact", "business", "type", "timestamp")),
    "Contacts of the CRM's database, told as events once more; what is newer stays.",
    rows=RowsQuery(
        "device STRING NOT NULL, contact STRING, business STRING, type STRING NOT NULL, timestamp BIGINT NOT NULL",
        "timestamp_millis(timestamp)",
        "SELECT device, contact, business, type, timestamp FROM records",
    ),
    max_rate=5_000,
)
