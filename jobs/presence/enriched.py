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
from penstock.model.output_mode import millis
from penstock.streams import F, Fold, Input, KeyedState, Stream, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAIT, REPEATS = millis(presence_settings().wait), millis(WALK_INS.retention)

# What was known when lies in `contacts`: all of the last wait, and the newest before, so that a walk-in that was read
# late finds what it would have found. Of one time the later record counts. `told` are the walk-ins that have their
# contact, for as long as their topic keeps them: one that comes again is not told again, whoever is known by then.
NAMES = Fold(
    name="names",
    key=("device",),
    state_schema="contacts ARRAY<STRUCT<moment: BIGINT, contact: STRING>>, "
    "waiting ARRAY<STRUCT<business: STRING, since: BIGINT, moment: BIGINT>>, "
    "told ARRAY<STRUCT<business: STRING, moment: BIGINT>>",
    # arg_max passes a NULL over, and a removal says NULL: so the contact is packed.
    update_sql=f"""
WITH known AS (
  SELECT device, moment, arg_max(struct_pack(contact := contact), n).contact AS contact FROM (
    SELECT device, timestamp AS moment, contact, n FROM records WHERE business IS NULL
    UNION ALL SELECT device, one.moment, one.contact, -1
      FROM (SELECT device, unnest(contacts) AS one FROM state))
  GROUP BY device, moment
), before AS (
  SELECT device, one.business, one.moment FROM (SELECT device, unnest(told) AS one FROM state)
), walked AS (
  SELECT device, business, moment, min(since) AS since FROM (
    SELECT device, business, since, timestamp AS moment FROM records WHERE business IS NOT NULL
    UNION ALL SELECT device, one.business, one.since, one.moment
      FROM (SELECT device, unnest(waiting) AS one FROM state))
  ANTI JOIN before USING (device, business, moment) GROUP BY ALL
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
      ORDER BY moment, business) FILTER (WHERE contact IS NOT NULL) AS fresh,
    list(struct_pack(business := business, since := since, moment := moment) ORDER BY moment, business)
      FILTER (WHERE contact IS NULL AND moment + {WAIT} >= getvariable('watermark')) AS waiting
  FROM named GROUP BY device
), repeats AS (
  SELECT device, list(struct_pack(business := business, moment := moment) ORDER BY moment, business) AS told
  FROM (FROM before UNION ALL SELECT device, business, moment FROM named WHERE contact IS NOT NULL)
  WHERE moment >= getvariable('watermark') - {REPEATS} GROUP BY device
), latest AS (
  SELECT device, max(moment) FILTER (WHERE moment < getvariable('watermark') - {WAIT}) AS floor
  FROM known GROUP BY device
), contacts AS (
  SELECT device, list(struct_pack(moment := moment, contact := contact) ORDER BY moment) AS contacts
  FROM known JOIN latest USING (device) WHERE floor IS NULL OR moment >= floor GROUP BY device
)
SELECT device, contacts, waiting, told, fresh
FROM contacts FULL JOIN walks USING (device) LEFT JOIN repeats USING (device)""",
    emit_sql="SELECT device, walk.business, walk.since, walk.timestamp, walk.contact "
    "FROM (SELECT device, unnest(fresh) AS walk FROM folded WHERE fresh IS NOT NULL)",
    output_schema=ENRICHED,
    expires_when="contacts IS NULL AND coalesce(list_max(list_transform(waiting, lambda w: w.moment)), 0) "
    f"< getvariable('watermark') - {WAIT}",
    # Walk-ins that wait, and who was known since; the newest before stays in its topic, which is compacted.
    input_retention=presence_settings().wait,
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
    output_mode=KeyedState(),
    shuffle_partitions=2,
)
