"""Walk-ins get the contact of their device, as it was known then, or as it logs in within a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.presence import (
    AT,
    DEVICE_CONTACT,
    DEVICE_CONTACTS,
    ENRICHED,
    ENRICHED_WALK_INS,
    WALK_IN,
    WALK_INS,
    presence_settings,
)
from penstock.declare.promises import millis
from penstock.streams import F, Fold, Folded, Input, Stream, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAIT = millis(presence_settings().wait)

# What was known when lies in `contacts`: all of the last wait, and the newest before, so that a walk-in that was read
# late finds what it would have found. Of one time the later record counts.
NAMES = Fold(
    name="names",
    key=("device",),
    state="contacts ARRAY<STRUCT<moment: BIGINT, contact: STRING>>, "
    "waiting ARRAY<STRUCT<business: STRING, since: BIGINT, moment: BIGINT>>",
    fold=f"""
WITH known AS (
  SELECT device, moment, arg_max(contact, n) AS contact FROM (
    SELECT device, timestamp AS moment, contact, n FROM records WHERE business IS NULL
    UNION ALL SELECT device, one.moment, one.contact, -1
      FROM (SELECT device, unnest(contacts) AS one FROM state))
  GROUP BY device, moment
), walked AS (
  SELECT DISTINCT device, business, since, timestamp AS moment FROM records WHERE business IS NOT NULL
  UNION SELECT device, one.business, one.since, one.moment FROM (SELECT device, unnest(waiting) AS one FROM state)
), then_known AS (
  SELECT w.*, k.contact FROM walked w
    ASOF LEFT JOIN known k ON w.device = k.device AND w.moment >= k.moment
), later AS (
  SELECT w.device, w.business, w.moment, arg_min(k.contact, k.moment) AS contact
  FROM then_known w JOIN known k ON w.device = k.device AND k.moment > w.moment AND k.moment <= w.moment + {WAIT}
  WHERE w.contact IS NULL AND k.contact IS NOT NULL GROUP BY ALL
), named AS (
  SELECT w.device, w.business, w.since, w.moment, coalesce(w.contact, l.contact) AS contact
  FROM then_known w LEFT JOIN later l USING (device, business, moment)
), walks AS (
  SELECT device,
    list(struct_pack(business := business, since := since, "timestamp" := moment, contact := contact)
      ORDER BY moment, business) FILTER (WHERE contact IS NOT NULL) AS told,
    list(struct_pack(business := business, since := since, moment := moment) ORDER BY moment, business)
      FILTER (WHERE contact IS NULL AND moment + {WAIT} >= getvariable('watermark')) AS waiting
  FROM named GROUP BY device
), latest AS (
  SELECT device, max(moment) FILTER (WHERE moment < getvariable('watermark') - {WAIT}) AS floor
  FROM known GROUP BY device
), contacts AS (
  SELECT device, list(struct_pack(moment := moment, contact := contact) ORDER BY moment) AS contacts
  FROM known JOIN latest USING (device) WHERE floor IS NULL OR moment >= floor GROUP BY device
)
SELECT device, contacts, waiting, told FROM contacts FULL JOIN walks USING (device)""",
    rows="SELECT device, walk.business, walk.since, walk.timestamp, walk.contact "
    "FROM (SELECT device, unnest(told) AS walk FROM folded WHERE told IS NOT NULL)",
    gives=ENRICHED,
    ends="contacts IS NULL AND coalesce(list_max(list_transform(waiting, lambda w: w.moment)), 0) "
    f"< getvariable('watermark') - {WAIT}",
    # Walk-ins that wait, and who was known since; the newest before stays in its topic, which is compacted.
    reads_back=presence_settings().wait,
)


def transform(walks: DataFrame, contacts: DataFrame) -> DataFrame:
    none = F.lit(None).cast
    walked = walks.select(
        "device", "business", "since", "timestamp", none("string").alias("contact"),
        none("bigint").alias("n"), "event_time",
    )  # fmt: skip
    known = contacts.select(
        "device", none("string").alias("business"), none("bigint").alias("since"), "timestamp", "contact",
        F.col("record.offset").alias("n"), "event_time",
    )  # fmt: skip
    return NAMES(walked.unionByName(known))


STREAM = Stream(
    name="enriched-walk-ins",
    app="presence",
    inputs={
        "walks": Input(WALK_INS, schema=WALK_IN, event_time=AT),
        "contacts": Input(DEVICE_CONTACTS, schema=DEVICE_CONTACT, event_time=AT, record=True),
    },
    transform=transform,
    output=TopicOutput(
        ENRICHED_WALK_INS,
        key=("business", "contact"),
        value=("device", "business", "since", "timestamp", "contact"),
    ),
    promise=Folded(),
    shuffle_partitions=2,
)
