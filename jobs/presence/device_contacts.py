"""CRM events become the contact of each device, and where it has logged in: the newest event time wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.presence import AT, CRM_BACKFILL, CRM_EVENT, CRM_EVENTS, DEVICE_CONTACT, DEVICE_CONTACTS
from penstock.streams import Fold, Input, KeyedState, Stream, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of one time a removal counts more than a change, and that more than a login; then the greater text.
RANK = "CASE type WHEN 'removal' THEN 2 WHEN 'change' THEN 1 ELSE 0 END"
NEWEST = f"struct_pack(moment := timestamp, rank := {RANK}, contact := CASE WHEN type <> 'removal' THEN contact END)"
LOGINS = "ARRAY<STRUCT<business: STRING, moment: BIGINT>>"

# What does not depend on the order of events: the newest that says a contact, the latest removal, and of each business
# the latest login. A removal without a trace would let a backfill bring the contact back.
CONTACTS = Fold(
    name="contacts",
    key=("device",),
    state_schema=f"newest STRUCT<moment: BIGINT, rank: INT, contact: STRING>, removed BIGINT, logins {LOGINS}",
    update_sql=f"""
WITH every AS (
  SELECT device, {NEWEST} AS event, CASE WHEN type = 'removal' THEN timestamp END AS removed,
    CASE WHEN type = 'login' THEN business END AS business, timestamp AS moment FROM records
  UNION ALL SELECT device, newest, removed, NULL, newest.moment FROM state
  UNION ALL SELECT device, newest, removed, login.business, login.moment
    FROM (SELECT device, newest, removed, unnest(logins) AS login FROM state)
), lasting AS (
  SELECT device, business, max(moment) AS moment FROM every WHERE business IS NOT NULL GROUP BY ALL
), stated AS (
  SELECT device, max(event) AS newest, max(removed) AS removed FROM every GROUP BY device
), businesses AS (
  SELECT device, list(struct_pack(business := business, moment := lasting.moment) ORDER BY business) AS logins
  FROM lasting JOIN stated USING (device) WHERE removed IS NULL OR lasting.moment > removed GROUP BY device
)
SELECT device, stated.newest, stated.removed, businesses.logins,
  old.newest AS old_newest, old.logins AS old_logins, old.removed AS old_removed
FROM stated LEFT JOIN businesses USING (device) LEFT JOIN state old USING (device)""",
    # Each moment behind the newest that was known, in order: who asks what was known then must find it.
    emit_sql=f"""
WITH moments AS (
  SELECT DISTINCT device, r.timestamp AS moment FROM records r JOIN folded USING (device)
  WHERE old_newest IS NULL OR r.timestamp > old_newest.moment
  UNION SELECT device, newest.moment FROM folded
    WHERE (newest, logins, removed) IS DISTINCT FROM (old_newest, old_logins, old_removed)
), events AS (
  SELECT device, {NEWEST} AS event FROM records UNION ALL SELECT device, newest FROM state
), removals AS (
  SELECT device, timestamp AS moment FROM records WHERE type = 'removal'
  UNION ALL SELECT device, removed FROM state WHERE removed IS NOT NULL
), entered AS (
  SELECT device, business, timestamp AS moment FROM records WHERE type = 'login' AND business IS NOT NULL
  UNION ALL SELECT device, login.business, login.moment FROM (SELECT device, unnest(logins) AS login FROM state)
), stated AS (
  SELECT m.device, m.moment, max(event) AS newest FROM moments m
    JOIN events e ON e.device = m.device AND e.event.moment <= m.moment
  GROUP BY ALL
), gone AS (
  SELECT m.device, m.moment, max(r.moment) AS removed FROM moments m
    JOIN removals r ON r.device = m.device AND r.moment <= m.moment
  GROUP BY ALL
), lasting AS (
  SELECT m.device, m.moment, business, max(e.moment) AS entered
  FROM moments m JOIN entered e ON e.device = m.device AND e.moment <= m.moment
    LEFT JOIN gone g ON g.device = m.device AND g.moment = m.moment
  WHERE removed IS NULL OR e.moment > removed GROUP BY ALL
), businesses AS (
  SELECT device, moment, list(business ORDER BY business) AS businesses,
    list(struct_pack(business := business, moment := entered) ORDER BY business) AS logins
  FROM lasting GROUP BY ALL
)
SELECT device, CASE WHEN newest.rank < 2 THEN newest.contact END AS contact, coalesce(businesses, []) AS businesses,
  moment AS timestamp, newest.rank AS rank, removed, logins
FROM stated LEFT JOIN businesses USING (device, moment) LEFT JOIN gone USING (device, moment)
ORDER BY device, moment""",
    output_schema=f"{DEVICE_CONTACT}, rank INT, removed BIGINT, logins {LOGINS}",
    restore_sql="SELECT device, struct_pack(moment := timestamp, rank := rank, contact := contact) AS newest, removed, "
    "logins FROM output",
)


# Only a removal says no contact; what is none of the three is a dead letter.
KNOWN = f"CASE WHEN type = 'removal' OR (type IN ('login', 'change') AND contact IS NOT NULL) THEN {AT} END"


def transform(events: DataFrame, backfilled: DataFrame) -> DataFrame:
    return CONTACTS(events.unionByName(backfilled))


STREAM = Stream(
    name="device-contacts",
    app="presence",
    inputs={
        "events": Input(CRM_EVENTS, schema=CRM_EVENT, event_time=KNOWN),
        "backfilled": Input(CRM_BACKFILL, schema=CRM_EVENT, event_time=KNOWN),
    },
    transform=transform,
    # With what it is made of: so the topic is the state, and can be read back.
    output=TopicOutput(
        DEVICE_CONTACTS,
        key="device",
        value=("device", "contact", "businesses", "timestamp", "rank", "removed", "logins"),
    ),
    output_mode=KeyedState(),
    shuffle_partitions=2,
)
