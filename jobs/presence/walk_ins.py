"""Probes become walk-ins: a device is at a business with enough signal, for `dwell`, after it was away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs import captures
from jobs.presence import AT, PROBE, PROBES, WALK_IN, WALK_INS, presence_settings
from penstock.model.output_mode import millis
from penstock.streams import F, Fold, Input, KeyedState, Stream, Table, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

S = presence_settings()
DWELL, WITHIN, AWAY, LATE = (millis(duration) for duration in (S.dwell, S.within, S.away, S.grace))

BUSINESSES = Table(captures.BUSINESSES, schema=captures.BUSINESS)

# The presences of a device at a business, as spans: between two spans lies an absence of AWAY or more. Once a span has
# its walk-in, only its ends matter. Until then `times` holds the probes to which a later one may have been there for
# DWELL within WITHIN.
VISITS = Fold(
    name="visits",
    key=("device", "business"),
    state_schema="spans ARRAY<STRUCT<first_seen: BIGINT, last_seen: BIGINT, walked_in_at: BIGINT>>, "
    "times ARRAY<BIGINT>",
    update_sql=f"""
WITH batch AS (
  SELECT device, business, min(timestamp) AS first_probe, max(timestamp) AS last_probe
  FROM records
  GROUP BY device, business
), present AS (
  -- The usual case, `is_staying`: the probes only extend a span that has its walk-in.
  SELECT
    batch.*,
    state.spans,
    state.times,
    state.spans[1] AS span,
    coalesce(
      len(state.spans) = 1
        AND state.spans[1].walked_in_at IS NOT NULL
        AND first_probe >= state.spans[1].first_seen
        AND last_probe < state.spans[1].last_seen + {AWAY},
      false
    ) AS is_staying
  FROM batch
  LEFT JOIN state USING (device, business)
), points AS (
  SELECT device, business, timestamp AS first_seen, timestamp AS last_seen, NULL::BIGINT AS walked_in_at
  FROM records
  SEMI JOIN (FROM present WHERE NOT is_staying) USING (device, business)
  UNION ALL
  SELECT device, business, time, time, NULL
  FROM (SELECT device, business, unnest(times) AS time FROM present WHERE NOT is_staying AND times IS NOT NULL)
  UNION ALL
  SELECT device, business, span.first_seen, span.last_seen, span.walked_in_at
  FROM (SELECT device, business, unnest(spans) AS span FROM present WHERE NOT is_staying AND spans IS NOT NULL)
), absences AS (
  SELECT
    *,
    coalesce(
      first_seen - max(last_seen) OVER (
        PARTITION BY device, business ORDER BY first_seen ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) >= {AWAY},
      true
    ) AS is_after_absence
  FROM points
), numbered AS (
  -- Points of the same time are in any order, which may differ between two window functions: so the point after an
  -- absence is put before them.
  SELECT
    *,
    sum(is_after_absence::INT) OVER (
      PARTITION BY device, business ORDER BY first_seen, is_after_absence DESC ROWS UNBOUNDED PRECEDING
    ) AS span_number
  FROM absences
), dwells AS (
  SELECT
    *,
    CASE WHEN first_seen = last_seen THEN min(first_seen) OVER (
      PARTITION BY device, business, span_number ORDER BY first_seen
      RANGE BETWEEN {WITHIN} PRECEDING AND {DWELL} PRECEDING
    ) END AS dwells_since
  FROM numbered
), new_spans AS (
  SELECT
    device,
    business,
    min(first_seen) AS first_seen,
    max(last_seen) AS last_seen,
    min(walked_in_at) AS walked_in_at,
    min(first_seen) FILTER (WHERE dwells_since IS NOT NULL) AS dwell_reached_at,
    arg_min(dwells_since, first_seen) FILTER (WHERE dwells_since IS NOT NULL) AS dwells_since,
    list(DISTINCT first_seen) FILTER (
      WHERE walked_in_at IS NULL AND first_seen = last_seen AND first_seen >= getvariable('watermark') - {WITHIN}
    ) AS times
  FROM dwells
  GROUP BY device, business, span_number
), merged AS (
  SELECT
    device,
    business,
    list(
      struct_pack(first_seen := first_seen, last_seen := last_seen,
        walked_in_at := coalesce(walked_in_at, dwell_reached_at))
      ORDER BY first_seen
    ) FILTER (WHERE last_seen >= getvariable('watermark') - {AWAY}) AS spans,
    flatten(
      list(times) FILTER (WHERE times IS NOT NULL AND walked_in_at IS NULL AND dwell_reached_at IS NULL)
    ) AS times,
    list(struct_pack(since := dwells_since, "timestamp" := dwell_reached_at) ORDER BY dwell_reached_at)
      FILTER (WHERE walked_in_at IS NULL AND dwell_reached_at IS NOT NULL) AS walk_ins
  FROM new_spans
  GROUP BY device, business
)
SELECT
  device,
  business,
  [struct_pack(first_seen := span.first_seen, last_seen := greatest(span.last_seen, last_probe),
    walked_in_at := span.walked_in_at)] AS spans,
  NULL::BIGINT[] AS times,
  NULL::STRUCT(since BIGINT, "timestamp" BIGINT)[] AS walk_ins
FROM present
WHERE is_staying
UNION ALL
SELECT device, business, spans, nullif(times, []), walk_ins
FROM merged""",
    emit_sql="""
SELECT device, business, walk_in.since, walk_in.timestamp
FROM (SELECT device, business, unnest(walk_ins) AS walk_in FROM folded WHERE walk_ins IS NOT NULL)""",
    output_schema=WALK_IN,
    expires_when="coalesce(list_max(list_transform(spans, lambda s: s.last_seen)), 0) "
    f"< getvariable('watermark') - {AWAY}",
    input_retention=S.away + S.within,
)


def transform(probes: DataFrame, businesses: DataFrame) -> DataFrame:
    thresholds = businesses.select(F.col("id").cast("string").alias("threshold_business"), "threshold")
    strong = probes.join(thresholds, F.col("business") == F.col("threshold_business")).where("signal >= threshold")
    return VISITS(strong.select("device", "business", "timestamp", "event_time"))


STREAM = Stream(
    name="walk-ins",
    app="presence",
    inputs={"probes": Input(PROBES, schema=PROBE, event_time=AT), "businesses": BUSINESSES},
    transform=transform,
    output=TopicOutput(WALK_INS, key=("device", "business"), value=("device", "business", "since", "timestamp")),
    output_mode=KeyedState(grace=S.grace),
    shuffle_partitions=2,
    # The rows of a batch that belong to one part are in a worker's memory together.
    max_records=2_000_000,
)
