"""Enriched walk-ins are counted for each business and contact, on top of a base count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.presence import AT, BASE_COUNT, BASE_COUNTS, ENRICHED, ENRICHED_WALK_INS, WALK_IN_COUNTS
from penstock.streams import F, Fold, Input, KeyedState, Stream, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A base count covers all walk-ins up to and at `as_of`; later ones are kept one by one in `walks`. So neither the order
# of base counts and walk-ins matters, nor repetitions.
COUNTS = Fold(
    name="counts",
    key=("business", "contact"),
    state_schema="base BIGINT, as_of BIGINT, walks ARRAY<STRUCT<moment: BIGINT, device: STRING>>",
    update_sql="""
WITH base_counts AS (
  SELECT business, contact, max(struct_pack(as_of := as_of, count := count)) AS base_count
  FROM (
    SELECT business, contact, timestamp AS as_of, count
    FROM records
    WHERE device IS NULL
    UNION ALL
    SELECT business, contact, as_of, base
    FROM state
    WHERE as_of IS NOT NULL
  )
  GROUP BY business, contact
), walk_ins AS (
  SELECT DISTINCT business, contact, timestamp AS moment, device
  FROM records
  WHERE device IS NOT NULL
  UNION
  SELECT business, contact, walk.moment, walk.device
  FROM (SELECT business, contact, unnest(walks) AS walk FROM state)
), later_walk_ins AS (
  SELECT business, contact, list(struct_pack(moment := moment, device := device) ORDER BY moment, device) AS walks
  FROM walk_ins
  LEFT JOIN base_counts USING (business, contact)
  WHERE base_count IS NULL OR moment > base_count.as_of
  GROUP BY business, contact
), keys AS (
  SELECT business, contact FROM base_counts
  UNION
  SELECT business, contact FROM walk_ins
)
SELECT
  business,
  contact,
  base_count.count AS base,
  base_count.as_of AS as_of,
  later_walk_ins.walks,
  state.base AS previous_base,
  state.as_of AS previous_as_of,
  state.walks AS previous_walks
FROM keys
LEFT JOIN base_counts USING (business, contact)
LEFT JOIN later_walk_ins USING (business, contact)
LEFT JOIN state USING (business, contact)""",
    emit_sql="""
SELECT business, contact, coalesce(base, 0) + coalesce(len(walks), 0) AS count, base, as_of, walks
FROM folded
WHERE (walks, base, as_of) IS DISTINCT FROM (previous_walks, previous_base, previous_as_of)""",
    output_schema="business STRING, contact STRING, count BIGINT, base BIGINT, as_of BIGINT, "
    "walks ARRAY<STRUCT<moment: BIGINT, device: STRING>>",
    restore_sql="SELECT business, contact, base, as_of, walks FROM output",
)


# A base count below zero, or so large that its sum with later walk-ins overflows, is a dead letter.
VALID_AT = f"CASE WHEN count BETWEEN 0 AND {2**53} THEN timestamp_millis(as_of) END"


def transform(walks: DataFrame, bases: DataFrame) -> DataFrame:
    null = F.lit(None).cast
    walk_rows = walks.select("business", "contact", "device", "timestamp", null("bigint").alias("count"), "event_time")
    base_rows = bases.select(
        "business", "contact", null("string").alias("device"), F.col("as_of").alias("timestamp"), "count", "event_time"
    )
    return COUNTS(walk_rows.unionByName(base_rows))


STREAM = Stream(
    name="walk-in-counts",
    app="presence",
    inputs={
        "walks": Input(ENRICHED_WALK_INS, schema=ENRICHED, event_time=AT),
        "bases": Input(BASE_COUNTS, schema=BASE_COUNT, event_time=VALID_AT),
    },
    transform=transform,
    # The topic contains all of the state, so that the state can be restored from it.
    output=TopicOutput(
        WALK_IN_COUNTS, key=("business", "contact"), value=("business", "contact", "count", "base", "as_of", "walks")
    ),
    output_mode=KeyedState(),
    shuffle_partitions=2,
)
