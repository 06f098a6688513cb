"""Check-ins become active agents, and an event for each absence, also if no more check-ins arrive."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.agents import ACTIVE_AGENTS, AGENT_OFFLINE, CHECK_IN, CHECK_INS, NAMED_AT, agents_settings, value_or_tombstone
from penstock.model.output_mode import millis
from penstock.streams import F, Fold, Input, KeyedState, Stream, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OFFLINE_AFTER, GRACE = millis(agents_settings().offline_after), millis(agents_settings().grace)
# Times since the last check-in: until the agent's absence is emitted, and until the agent is deleted.
EXPIRY, DELETION = OFFLINE_AFTER + GRACE, OFFLINE_AFTER + millis(agents_settings().forget_after)

REPORT = "struct_pack(account := account, platform := platform, version := version, labels := labels)"
GAP = "last_seen: BIGINT, account: STRING, returned_at: BIGINT, expires_at: BIGINT"

# Absences do not depend on how check-ins are divided into batches. They follow from `written_at`, the time of the
# record, and `record_offset`, as if each check-in came in a batch of its own when it was written. The time of the
# previous batches, `getvariable('time')`, is used instead of `written_at` if it is later.
# - A check-in expires EXPIRY after its time: the agent is offline then, unless a newer check-in was written.
# - Of several check-ins with the same time the first counts. One that was overtaken by a newer one counts only if it
#   was written before the check-ins around it expired.
# - There is an absence between two neighbouring check-ins if they are OFFLINE_AFTER apart, or if nothing newer was
#   written until the first expired.
# - The gap between them stays open until it expires, because a check-in that is on its way may fill it. If the grace
#   is longer than OFFLINE_AFTER, several gaps may be open: the last one stays open and the others are emitted.
#   Check-ins between the end of the open gap and the last check-in are not kept: those two are `joined`.
# - A check-in that is written after its own expiry leaves its agent offline and belongs to the absence before it.
AGENTS = Fold(
    name="agents",
    key=("agent",),
    state_schema="account STRING, platform STRING, version STRING, labels MAP<STRING,STRING>, last_seen BIGINT, "
    f"online BOOLEAN, since BIGINT, due BIGINT, gap STRUCT<{GAP}>",
    update_sql=f"""
WITH written AS (
  SELECT
    agent,
    timestamp AS seen_at,
    {REPORT} AS report,
    coalesce(record_offset, 0) AS record_offset,
    greatest(coalesce(written_at, timestamp), getvariable('time')) AS written_at
  FROM records
), batch_times AS (
  SELECT
    agent,
    max(written_at) AS last_written_at,
    min(written_at) FILTER (WHERE seen_at > last_seen) AS first_newer_written_at
  FROM written
  LEFT JOIN state USING (agent)
  GROUP BY agent
), previous AS (
  -- The state. An agent that was to be deleted before it came back is new.
  SELECT state.*
  FROM state
  LEFT JOIN batch_times USING (agent)
  WHERE state.online OR first_newer_written_at IS NULL OR coalesce(state.due > first_newer_written_at, true)
), check_ins AS (
  -- One row per agent and time: those of the batch, and those that the state keeps. `position` is the offset of those
  -- of the batch; the last check-in has -1, the end of the open gap -2, its start -3.
  SELECT
    agent,
    seen_at,
    arg_max(w.report, (-w.record_offset, w.report.account, coalesce(w.report.platform, ''),
      coalesce(w.report.version, ''), w.report.labels::VARCHAR)) AS report,
    min(w.record_offset) AS position,
    arg_min(w.written_at, (w.record_offset, w.written_at)) AS written_at,
    seen_at + {EXPIRY} AS expires_at,
    arg_min(w.written_at, (w.record_offset, w.written_at)) >= seen_at + {EXPIRY} AS is_expired
  FROM written w
  LEFT JOIN previous p USING (agent)
  WHERE p.agent IS NULL OR (
    seen_at > coalesce(p.gap.last_seen, p.last_seen)
    AND NOT seen_at BETWEEN coalesce(p.gap.returned_at, p.last_seen) AND p.last_seen)
  GROUP BY agent, seen_at
  UNION ALL
  SELECT agent, last_seen, {REPORT}, -1, 0, last_seen + {EXPIRY}, NOT online
  FROM previous
  UNION ALL
  SELECT agent, gap.returned_at, {REPORT}, -2, 0, gap.returned_at + {EXPIRY}, false
  FROM previous
  WHERE gap.returned_at <> last_seen
  UNION ALL
  SELECT agent, gap.last_seen, {REPORT.replace(":= account", ":= gap.account")}, -3, 0, gap.expires_at, false
  FROM previous
  WHERE gap IS NOT NULL
), ordered AS (
  SELECT
    *,
    -- No newer check-in was written before this one.
    coalesce(position <= min(position) OVER following, true) AS is_in_order
  FROM check_ins
  WINDOW following AS (PARTITION BY agent ORDER BY seen_at ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
), limited AS (
  SELECT *, max(expires_at) FILTER (WHERE is_in_order) OVER preceding AS preceding_expires_at
  FROM ordered
  WINDOW preceding AS (PARTITION BY agent ORDER BY seen_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), neighbours AS (
  SELECT
    *,
    lag(seen_at) OVER by_time AS neighbour_seen_at,
    lag(report.account) OVER by_time AS neighbour_account,
    lag(CASE WHEN is_in_order THEN expires_at ELSE preceding_expires_at END) OVER by_time AS neighbour_expires_at,
    coalesce(lag(is_expired) OVER by_time, false) AS is_neighbour_expired,
    min(written_at) OVER (PARTITION BY agent ORDER BY seen_at ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
      AS newer_written_at,
    position = -1 AND lag(position, 1, 0) OVER by_time = -2 AS is_joined
  FROM limited
  WHERE is_in_order OR written_at < preceding_expires_at
  WINDOW by_time AS (PARTITION BY agent ORDER BY seen_at)
), compared AS (
  SELECT
    *,
    coalesce(seen_at - neighbour_seen_at >= {OFFLINE_AFTER}, position >= 0) AND NOT is_joined AS is_distant,
    coalesce(NOT is_neighbour_expired AND newer_written_at >= neighbour_seen_at + {EXPIRY}, false) AS is_overdue,
    neighbour_seen_at IS NOT NULL AND is_distant AND NOT is_neighbour_expired AND NOT is_overdue
      AND greatest(coalesce(last_written_at, 0), getvariable('time')) < neighbour_expires_at AS is_pending
  FROM neighbours
  LEFT JOIN batch_times USING (agent)
), gaps AS (
  SELECT
    *,
    is_pending AND seen_at = max(seen_at) FILTER (WHERE is_pending) OVER (PARTITION BY agent) AS is_open_gap
  FROM compared
), latest AS (
  SELECT
    agent,
    max(seen_at) AS last_seen,
    arg_max(report, seen_at) AS report,
    arg_max(is_expired, seen_at) AS is_expired,
    arg_max(written_at, seen_at) AS written_at,
    max(seen_at) FILTER (WHERE (is_distant OR is_overdue OR is_neighbour_expired) AND NOT is_open_gap)
      AS came_online_at,
    arg_max(
      struct_pack(last_seen := neighbour_seen_at, account := neighbour_account, returned_at := seen_at,
        expires_at := neighbour_expires_at),
      seen_at
    ) FILTER (WHERE is_open_gap) AS gap,
    list_concat(
      list(struct_pack(account := neighbour_account, last_seen := neighbour_seen_at) ORDER BY seen_at) FILTER (
        WHERE neighbour_seen_at IS NOT NULL AND (is_distant OR is_overdue) AND NOT is_neighbour_expired
          AND NOT is_open_gap),
      list(struct_pack(account := report.account, last_seen := seen_at) ORDER BY seen_at) FILTER (
        WHERE is_expired AND is_distant AND position >= 0)
    ) AS absences
  FROM gaps
  GROUP BY agent
), result AS (
  SELECT
    latest.*,
    p.last_seen IS DISTINCT FROM latest.last_seen AS is_new,
    p.online AS was_online,
    p.since AS previous_since,
    p.due AS previous_due,
    NOT latest.is_expired AND latest.last_seen + {EXPIRY} > getvariable('time') AS online
  FROM latest
  LEFT JOIN previous p USING (agent)
)
SELECT
  agent,
  report.account,
  report.platform,
  report.version,
  report.labels,
  last_seen,
  online,
  CASE
    WHEN online THEN coalesce(came_online_at, previous_since)
    WHEN is_new OR was_online THEN last_seen + {OFFLINE_AFTER}
    ELSE previous_since
  END AS since,
  CASE
    WHEN online THEN least(last_seen + {EXPIRY}, gap.expires_at)
    WHEN NOT is_expired THEN last_seen + {DELETION}
    WHEN is_new THEN written_at + {DELETION - OFFLINE_AFTER}
    ELSE previous_due
  END AS due,
  gap,
  is_new OR online <> was_online OR (online AND came_online_at IS NOT NULL) AS is_changed,
  list_concat(
    absences,
    CASE WHEN NOT online AND NOT is_expired
      THEN [struct_pack(account := report.account, last_seen := last_seen)] END
  ) AS absences
FROM result
WHERE online OR is_new OR was_online OR coalesce(previous_due > getvariable('time'), true)""",
    emit_sql=f"""
SELECT 'active' AS output, agent, account, platform, version, labels, online, since, NULL::BIGINT AS last_seen,
  last_seen AS timestamp
FROM folded
WHERE is_changed
UNION ALL
-- A tombstone for each agent that is deleted.
SELECT 'active', agent, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM state ANTI JOIN folded USING (agent)
UNION ALL
SELECT 'offline', agent, absence.account, NULL, NULL, NULL, NULL, NULL, absence.last_seen,
  absence.last_seen + {OFFLINE_AFTER}
FROM (SELECT agent, unnest(absences) AS absence FROM folded WHERE absences IS NOT NULL)
ORDER BY agent, timestamp""",
    output_schema="output STRING, agent STRING, account STRING, platform STRING, version STRING, labels "
    "MAP<STRING,STRING>, online BOOLEAN, since BIGINT, last_seen BIGINT, timestamp BIGINT",
    timer_field="due",
)

VALUE = ("agent", "account", "platform", "version", "labels", "timestamp", "online", "since")


def transform(check_ins: DataFrame) -> DataFrame:
    with_positions = check_ins.withColumns(
        {"written_at": F.unix_millis("record.timestamp"), "record_offset": F.col("record.offset")}
    )
    return AGENTS(with_positions.drop("record")).withColumn("value", value_or_tombstone(*VALUE))


STREAM = Stream(
    name="agents-active",
    app="agents",
    enabled=agents_settings().run,
    inputs={"check_ins": Input(CHECK_INS, schema=CHECK_IN, event_time=NAMED_AT, record=True)},
    transform=transform,
    output={
        "active": TopicOutput(ACTIVE_AGENTS, key="agent", value="value"),
        "offline": TopicOutput(AGENT_OFFLINE, key="agent", value=("agent", "account", "last_seen", "timestamp")),
    },
    # Each heartbeat costs a batch. With this tick a silent agent is offline within five seconds.
    output_mode=KeyedState(tick=timedelta(seconds=1.5)),
    shuffle_partitions=2,
)
