"""The view of counts, the archive of walk-ins, and backfills of base counts and of CRM contacts."""

from __future__ import annotations

from jobs.presence import (
    BASE_COUNTS,
    CRM_BACKFILL,
    CRM_EVENT,
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
    "Counts the walk-ins of each contact at each business up to a time; streams add later ones.",
    rows=RowsQuery(
        "timestamp_millis(timestamp)",
        """SELECT business, contact, count(DISTINCT (timestamp, device)) AS count, getvariable('end') - 1 AS as_of
        FROM records GROUP BY business, contact""",
        schema=ENRICHED,
    ),
    full_history=True,
    # Limited because a running stream reads them: all at once would be one long batch.
    max_rate=5_000,
)

# The collection has a document for each device: its contact and the business of its latest login since the last removal
# (neither after one), and the type and time of its latest event. A change names no business where the device logged
# in, so a document with one is sent as a login.
CONTACTS = Backfill(
    "contacts",
    Collection("crm", "contacts"),
    TopicOutput(CRM_BACKFILL, key="device", value=("device", "contact", "business", "type", "timestamp")),
    "Sends the contacts in the CRM's database as events; newer ones stay.",
    rows=RowsQuery(
        "timestamp_millis(timestamp)",
        """SELECT device, contact, business, timestamp,
          CASE WHEN type = 'change' AND business IS NOT NULL THEN 'login' ELSE type END AS type
        FROM records""",
        schema=CRM_EVENT,
    ),
    max_rate=5_000,
)
