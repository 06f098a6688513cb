"""Probes become walk-ins: a device seen at a business, strongly enough, for long enough, after it was away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs import captures
from jobs.presence import AT, PROBE, PROBES, WALK_IN, WALK_INS, presence_settings
from penstock.model.output_mode import millis
from penstock.streams import F, Fold, Input, KeyedState, Stream, Table, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

S = presence_settings()
DWELL, WITHIN, AWAY, LATE = (millis(length) for length in (S.dwell, S.within, S.away, S.grace))

BUSINESSES = Table(captures.BUSINESSES, schema=captures.BUSINESS)

# A device stays away between two spans of a business. Of a span only its ends matter once it has its walk-in, and until
# then the times that a later probe may yet be near enough to.
VISITS = Fold(
    name="visits",
    key=("device", "business"),
    state_schema="spans ARRAY<STRUCT<began: BIGINT, ended: BIGINT, told: BIGINT>>, times ARRAY<BIGINT>",
    # In a span that has its walk-in already, or behind it and not away, nothing is to be looked for.
    # Points of one time come in any order, in two windows in two: so a break is put before what is of its time.
    update_sql=f"""
WITH batch AS (
  SELECT device, business, min(timestamp) AS lowest, max(timestamp) AS highest FROM records GROUP BY ALL
), open AS (
  SELECT b.device, b.business, s.spans, s.times, b.lowest, b.highest, s.spans[1] AS span,
    coalesce(
      len(s.spans) = 1 AND s.spans[1].told IS NOT NULL
      AND b.lowest >= s.spans[1].began AND b.highest < s.spans[1].ended + {AWAY}, false) AS stays
  FROM batch b LEFT JOIN state s USING (device, business)
), points AS (
  SELECT device, business, timestamp AS began, timestamp AS ended, NULL::BIGINT AS told
    FROM records SEMI JOIN (FROM open WHERE NOT stays) USING (device, business)
  UNION ALL SELECT device, business, moment, moment, NULL FROM (
    SELECT device, business, unnest(times) AS moment FROM open WHERE NOT stays AND times IS NOT NULL)
  UNION ALL SELECT device, business, span.began, span.ended, span.told FROM (
    SELECT device, business, unnest(spans) AS span FROM open WHERE NOT stays AND spans IS NOT NULL)
), breaks AS (
  SELECT *, coalesce(began - max(ended) OVER (
    PARTITION BY device, business ORDER BY began ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) >= {AWAY}, true) AS breaks FROM points
), numbered AS (
  SELECT * EXCLUDE (breaks), sum(breaks::INT) OVER (
    PARTITION BY device, business ORDER BY began, breaks DESC ROWS UNBOUNDED PRECEDING) AS number,
  FROM breaks
), near AS (
  SELECT *, CASE WHEN began = ended THEN min(began) OVER (
    PARTITION BY device, business, number ORDER BY began RANGE BETWEEN {WITHIN} PRECEDING AND {DWELL} PRECEDING
  ) END AS since FROM numbered
), found AS (
  SELECT device, business, number, min(began) AS began, max(ended) AS ended, min(told) AS told,
    min(began) FILTER (WHERE since IS NOT NULL) AS moment,
    arg_min(since, began) FILTER (WHERE since IS NOT NULL) AS since,
    list(DISTINCT began) FILTER (
      WHERE told IS NULL AND began = ended AND began >= getvariable('watermark') - {WITHIN}) AS times
  FROM near GROUP BY device, business, number
), merged AS (
  SELECT device, business,
    list(struct_pack(began := began, ended := ended, told := coalesce(told, moment)) ORDER BY began)
      FILTER (WHERE ended >= getvariable('watermark') - {AWAY}) AS spans,
    flatten(list(times) FILTER (WHERE times IS NOT NULL AND told IS NULL AND moment IS NULL)) AS times,
    list(struct_pack(since := since, "timestamp" := moment) ORDER BY moment)
      FILTER (WHERE told IS NULL AND moment IS NOT NULL) AS fresh
  FROM found GROUP BY device, business
)
SELECT device, business, [struct_pack(
  began := span.began, ended := greatest(span.ended, highest), told := span.told)] AS spans,
  NULL::BIGINT[] AS times, NULL::STRUCT(since BIGINT, "timestamp" BIGINT)[] AS fresh FROM open WHERE stays
UNION ALL SELECT device, business, spans, nullif(times, []), fresh FROM merged""",
    emit_sql="SELECT device, business, walk.since, walk.timestamp FROM ("
    "SELECT device, business, unnest(fresh) AS walk FROM folded WHERE fresh IS NOT NULL)",
    output_schema=WALK_IN,
    expires_when=f"coalesce(list_max(list_transform(spans, lambda s: s.ended)), 0) < getvariable('watermark') - {AWAY}",
    # What ended before that is forgotten.
    input_retention=S.away + S.within,
)


def transform(probes: DataFrame, businesses: DataFrame) -> DataFrame:
    known = businesses.select(F.col("id").cast("string").alias("of"), "threshold")
    strong = probes.join(known, F.col("business") == F.col("of")).where("signal >= threshold")
    return VISITS(strong.select("device", "business", "timestamp", "event_time"))


STREAM = Stream(
    name="walk-ins",
    app="presence",
    inputs={"probes": Input(PROBES, schema=PROBE, event_time=AT), "businesses": BUSINESSES},
    transform=transform,
    output=TopicOutput(WALK_INS, key=("device", "business"), value=("device", "business", "since", "timestamp")),
    output_mode=KeyedState(grace=S.grace),
    shuffle_partitions=2,
    # A part of a batch is folded in one piece, in a worker's memory.
    max_records=2_000_000,
)
