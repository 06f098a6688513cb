"""Check-ins become the active agents, and an event for each absence, also on an idle topic."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.agents import ACTIVE_AGENTS, AGENT_OFFLINE, CHECK_IN, CHECK_INS, NAMED_AT, agents_settings, value_or_tombstone
from penstock.model.output_mode import millis
from penstock.streams import F, Fold, Input, KeyedState, Stream, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AFTER, GRACE = millis(agents_settings().offline_after), millis(agents_settings().grace)
# Times since the last check-in: until its agent is offline, and until the agent is deleted.
DUE, FORGET = AFTER + GRACE, AFTER + millis(agents_settings().forget_after)

REPORT = "account := {0}account, platform := {0}platform, version := {0}version, labels := {0}labels"
GAP = "last_seen: BIGINT, account: STRING, back: BIGINT, until: BIGINT"

# Absences do not depend on how check-ins are cut into batches. They follow from `arrived`, the clock when a check-in
# was written, and `n`, its offset, as if each check-in came in a batch of its own when it was written. `time` counts
# instead where it is later than that of an earlier check-in.
# - Of several check-ins of one time the first counts. One that follows a later one, and is in no open gap, is ignored.
# - There is an absence between two check-ins if they are that far apart, or if nothing newer arrived until it was due.
# - A gap stays open until it is due, as a check-in on its way may fill it. Where the grace is longer than AFTER,
#   several may be open: the last one stays open and the others are emitted. What came between its end and the last
#   check-in is not kept: these two are `joined`.
# - A check-in that arrives when its own absence is due leaves its agent offline, and belongs to the absence before it.
AGENTS = Fold(
    name="agents",
    key=("agent",),
    state_schema="account STRING, platform STRING, version STRING, labels MAP<STRING,STRING>, last_seen BIGINT, "
    f"online BOOLEAN, since BIGINT, due BIGINT, gap STRUCT<{GAP}>",
    update_sql=f"""
WITH given AS (
  SELECT agent, timestamp AS moment, struct_pack({REPORT.format("")}) AS report, coalesce(n, 0) AS n,
    greatest(coalesce(arrived, timestamp), getvariable('time')) AS arrived FROM records
), arrivals AS (
  SELECT agent, max(arrived) AS latest, min(arrived) FILTER (WHERE moment > last_seen) AS again
  FROM given LEFT JOIN state USING (agent) GROUP BY agent
), known AS (
  -- An agent that was to be deleted before it came back is new.
  SELECT s.* FROM state s LEFT JOIN arrivals USING (agent)
  WHERE s.online OR again IS NULL OR coalesce(s.due > again, true)
), moments AS (
  SELECT agent, moment, arg_max(g.report, (-g.n, g.report.account, coalesce(g.report.platform, ''),
      coalesce(g.report.version, ''), g.report.labels::VARCHAR)) AS report,
    min(g.n) AS n, arg_min(g.arrived, (g.n, g.arrived)) AS arrived, moment + {DUE} AS until,
    arg_min(g.arrived, (g.n, g.arrived)) >= moment + {DUE} AS gone
  FROM given g LEFT JOIN known s USING (agent)
  WHERE s.agent IS NULL OR (
    moment > coalesce(s.gap.last_seen, s.last_seen)
    AND NOT moment BETWEEN coalesce(s.gap.back, s.last_seen) AND s.last_seen)
  GROUP BY agent, moment
  UNION ALL SELECT agent, last_seen, struct_pack({REPORT.format("")}), -1, 0, last_seen + {DUE}, NOT online FROM known
  UNION ALL SELECT agent, gap.back, struct_pack({REPORT.format("")}), -2, 0, gap.back + {DUE}, false
    FROM known WHERE gap.back <> last_seen
  UNION ALL SELECT agent, gap.last_seen, struct_pack(account := gap.account, platform := platform, version := version,
    labels := labels), -3, 0, gap.until, false FROM known WHERE gap IS NOT NULL
), led AS (
  SELECT *, coalesce(n <= min(n) OVER (PARTITION BY agent ORDER BY moment
    ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING), true) AS leads FROM moments
), ended AS (
  SELECT *, max(until) FILTER (WHERE leads) OVER (PARTITION BY agent ORDER BY moment
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ends FROM led
), spaced AS (
  SELECT *, lag(moment) OVER w AS earlier, lag(report.account) OVER w AS whose,
    lag(CASE WHEN leads THEN until ELSE ends END) OVER w AS open_until, coalesce(lag(gone) OVER w, false) AS returns,
    min(arrived) OVER (PARTITION BY agent ORDER BY moment ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS heard,
    n = -1 AND lag(n, 1, 0) OVER w = -2 AS joined
  FROM ended WHERE leads OR arrived < ends WINDOW w AS (PARTITION BY agent ORDER BY moment)
), parted AS (
  SELECT *, coalesce(moment - earlier >= {AFTER}, n >= 0) AND NOT joined AS apart,
    coalesce(NOT returns AND heard >= earlier + {DUE}, false) AS missed,
    earlier IS NOT NULL AND apart AND NOT returns AND NOT missed
      AND greatest(coalesce(latest, 0), getvariable('time')) < open_until AS pending
  FROM spaced LEFT JOIN arrivals USING (agent)
), opened AS (
  SELECT *, pending AND moment = max(moment) FILTER (WHERE pending) OVER (PARTITION BY agent) AS open FROM parted
), latest AS (
  SELECT agent, max(moment) AS moment, arg_max(report, moment) AS report, arg_max(gone, moment) AS gone,
    arg_max(arrived, moment) AS arrived,
    max(moment) FILTER (WHERE (apart OR missed OR returns) AND NOT open) AS began,
    arg_max(struct_pack(last_seen := earlier, account := whose, back := moment, until := open_until), moment)
      FILTER (WHERE open) AS gap,
    list_concat(
      list(struct_pack(account := whose, last_seen := earlier) ORDER BY moment)
        FILTER (WHERE earlier IS NOT NULL AND (apart OR missed) AND NOT returns AND NOT open),
      list(struct_pack(account := report.account, last_seen := moment) ORDER BY moment)
        FILTER (WHERE gone AND apart AND n >= 0)
    ) AS absences
  FROM opened GROUP BY agent
), judged AS (
  SELECT l.*, s.last_seen IS DISTINCT FROM moment AS fresh, s.online AS old_online, s.since AS old_since,
    s.due AS old_due, NOT l.gone AND moment + {DUE} > getvariable('time') AS online
  FROM latest l LEFT JOIN known s USING (agent)
)
SELECT agent, report.account, report.platform, report.version, report.labels, moment AS last_seen, online,
  CASE WHEN online THEN coalesce(began, old_since) WHEN fresh OR old_online THEN moment + {AFTER} ELSE old_since END
    AS since,
  CASE WHEN online THEN least(moment + {DUE}, gap.until) WHEN NOT gone THEN moment + {FORGET}
    WHEN fresh THEN arrived + {FORGET - AFTER} ELSE old_due END AS due,
  gap, fresh OR online <> old_online OR (online AND began IS NOT NULL) AS changed,
  list_concat(absences, CASE WHEN NOT online AND NOT gone
    THEN [struct_pack(account := report.account, last_seen := moment)] END) AS absences
FROM judged WHERE online OR fresh OR old_online OR coalesce(old_due > getvariable('time'), true)""",
    emit_sql=f"""
SELECT 'active' AS output, agent, account, platform, version, labels, online, since, NULL::BIGINT AS last_seen,
  last_seen AS timestamp FROM folded WHERE changed
UNION ALL
SELECT 'active', agent, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM state ANTI JOIN folded USING (agent)
UNION ALL
SELECT 'offline', agent, one.account, NULL, NULL, NULL, NULL, NULL, one.last_seen, one.last_seen + {AFTER}
FROM (SELECT agent, unnest(absences) AS one FROM folded WHERE absences IS NOT NULL) ORDER BY agent, timestamp""",
    output_schema="output STRING, agent STRING, account STRING, platform STRING, version STRING, labels "
    "MAP<STRING,STRING>, online BOOLEAN, since BIGINT, last_seen BIGINT, timestamp BIGINT",
    timer_field="due",
)


VALUE = ("agent", "account", "platform", "version", "labels", "timestamp", "online", "since")


def transform(check_ins: DataFrame) -> DataFrame:
    given = check_ins.withColumns({"arrived": F.unix_millis("record.timestamp"), "n": F.col("record.offset")})
    return AGENTS(given.drop("record")).withColumn("value", value_or_tombstone(*VALUE))


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
