"""Enriched walk-ins become a count for each business and contact, on top of a base count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.presence import AT, BASE_COUNT, BASE_COUNTS, ENRICHED, ENRICHED_WALK_INS, WALK_IN_COUNTS
from penstock.streams import F, Fold, Input, KeyedState, Stream, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A base count covers all walk-ins up to and at `as_of`; later ones are kept one by one. So neither the order of
# bases and walk-ins matters, nor repetitions.
COUNTS = Fold(
    name="counts",
    key=("business", "contact"),
    state_schema="base BIGINT, as_of BIGINT, walks ARRAY<STRUCT<moment: BIGINT, device: STRING>>",
    update_sql="""
WITH bases AS (
  SELECT business, contact, max(struct_pack(as_of := as_of, n := n)) AS base FROM (
    SELECT business, contact, timestamp AS as_of, count AS n FROM records WHERE device IS NULL
    UNION ALL SELECT business, contact, as_of, base FROM state WHERE as_of IS NOT NULL)
  GROUP BY ALL
), walked AS (
  SELECT DISTINCT business, contact, timestamp AS moment, device FROM records WHERE device IS NOT NULL
  UNION SELECT business, contact, one.moment, one.device
    FROM (SELECT business, contact, unnest(walks) AS one FROM state)
), keys AS (
  SELECT business, contact FROM bases UNION SELECT business, contact FROM walked
), since AS (
  SELECT w.business, w.contact, list(struct_pack(moment := moment, device := device) ORDER BY moment, device) AS walks
  FROM walked w LEFT JOIN bases b USING (business, contact) WHERE b.base IS NULL OR w.moment > b.base.as_of
  GROUP BY w.business, w.contact
)
SELECT business, contact, bases.base.n AS base, bases.base.as_of AS as_of, since.walks, old.walks AS old_walks,
  old.base AS old_base, old.as_of AS old_as_of
FROM keys LEFT JOIN bases USING (business, contact) LEFT JOIN since USING (business, contact)
  LEFT JOIN state old USING (business, contact)""",
    emit_sql="SELECT business, contact, coalesce(base, 0) + coalesce(len(walks), 0) AS count, base, as_of, walks "
    "FROM folded WHERE (walks, base, as_of) IS DISTINCT FROM (old_walks, old_base, old_as_of)",
    output_schema="business STRING, contact STRING, count BIGINT, base BIGINT, as_of BIGINT, "
    "walks ARRAY<STRUCT<moment: BIGINT, device: STRING>>",
    restore_sql="SELECT business, contact, base, as_of, walks FROM output",
)


# A count below zero is none, and of more no sum with the walk-ins since would fit.
KNOWN = f"CASE WHEN count BETWEEN 0 AND {2**53} THEN timestamp_millis(as_of) END"


def transform(walks: DataFrame, bases: DataFrame) -> DataFrame:
    each = walks.select(
        "business", "contact", "device", "timestamp", F.lit(None).cast("bigint").alias("count"), "event_time"
    )
    known = bases.select(
        "business", "contact", F.lit(None).cast("string").alias("device"), F.col("as_of").alias("timestamp"), "count",
        "event_time",
    )  # fmt: skip
    return COUNTS(each.unionByName(known))


STREAM = Stream(
    name="walk-in-counts",
    app="presence",
    inputs={
        "walks": Input(ENRICHED_WALK_INS, schema=ENRICHED, event_time=AT),
        "bases": Input(BASE_COUNTS, schema=BASE_COUNT, event_time=KNOWN),
    },
    transform=transform,
    # With the base and the walk-ins since: so the topic is the state, and can be read back.
    output=TopicOutput(
        WALK_IN_COUNTS, key=("business", "contact"), value=("business", "contact", "count", "base", "as_of", "walks")
    ),
    output_mode=KeyedState(),
    shuffle_partitions=2,
)
