"""Check-ins become the active agents, and an event for each absence: nobody else need send for it to be told."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.agents import ACTIVE_AGENTS, AGENT_OFFLINE, CHECK_IN, CHECK_INS, KNOWN, agents_settings, unless_forgotten
from penstock.declare.promises import millis
from penstock.streams import Fold, Folded, Input, Stream, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AFTER, GRACE = millis(agents_settings().offline_after), millis(agents_settings().grace)
# Since the last check-in.
FORGET = AFTER + millis(agents_settings().forget_after)

SAID = "account := {0}account, platform := {0}platform, version := {0}version, labels := {0}labels"

# Only what is newer than the last check-in counts. A check-in so much later than the one before it ends an absence that
# is told, whether time had come that far in between or not: so it does not matter how check-ins are cut into batches.
# What comes so late that it leaves an agent offline, its clock being slow, say, belongs to the absence that was told.
# Of one time the greater check-in counts, of two batches the first: what an agent said at a time never changes.
# Who was offline for too long is forgotten; whose clock is wrong by as much is there for as long behind its check-in.
AGENTS = Fold(
    name="agents",
    key=("agent",),
    state="account STRING, platform STRING, version STRING, labels MAP<STRING,STRING>, last_seen BIGINT, "
    "online BOOLEAN, since BIGINT, due BIGINT",
    fold=f"""
WITH moments AS (
  SELECT r.agent, r.timestamp AS moment, arg_max(
    struct_pack({SAID.format("r.")}), (r.account, coalesce(r.platform, ''), coalesce(r.version, ''), r.labels::VARCHAR)
  ) AS said
  FROM records r LEFT JOIN state s USING (agent)
  WHERE s.agent IS NULL OR r.timestamp > s.last_seen
  GROUP BY r.agent, r.timestamp
  UNION ALL SELECT agent, last_seen, struct_pack({SAID.format("")}) FROM state
), spaced AS (
  SELECT *, lag(moment) OVER w AS earlier, lag(said.account) OVER w AS whose
  FROM moments WINDOW w AS (PARTITION BY agent ORDER BY moment)
), known AS (
  SELECT p.*, s.last_seen, s.online, s.since, s.due,
    coalesce(NOT s.online AND p.earlier = s.last_seen, false) AS returns
  FROM spaced p LEFT JOIN state s USING (agent)
), latest AS (
  SELECT agent, max(moment) AS moment, arg_max(said, moment) AS said,
    max(moment) FILTER (WHERE earlier IS NULL OR moment - earlier >= {AFTER} OR returns) AS began,
    list(struct_pack(account := whose, last_seen := earlier) ORDER BY moment)
      FILTER (WHERE moment - earlier >= {AFTER} AND NOT returns) AS absences,
    bool_or(moment - earlier >= {AFTER}) AS parted,
    any_value(last_seen) AS old_seen, any_value(online) AS old_online, any_value(since) AS old_since,
    any_value(due) AS old_due
  FROM known GROUP BY agent
), judged AS (
  SELECT *, old_seen IS DISTINCT FROM moment AS fresh,
    NOT CASE WHEN old_online = false AND old_seen = moment THEN true
      ELSE moment + {AFTER + GRACE} <= getvariable('time') END AS online
  FROM latest
)
SELECT agent, said.account, said.platform, said.version, said.labels, moment AS last_seen, online,
  CASE WHEN NOT online AND NOT fresh AND NOT old_online THEN old_since
    WHEN NOT online THEN moment + {AFTER}
    WHEN began = old_seen THEN old_since
    ELSE began END AS since,
  CASE WHEN online THEN moment + {AFTER + GRACE}
    WHEN fresh THEN greatest(moment + {FORGET}, getvariable('time') + {FORGET - AFTER})
    WHEN old_online THEN moment + {FORGET} ELSE old_due END AS due,
  fresh OR online <> old_online AS changed,
  list_concat(absences, CASE WHEN NOT online AND (old_online OR (fresh AND (old_online IS NULL OR parted)))
    THEN [struct_pack(account := said.account, last_seen := moment)] END) AS absences
FROM judged WHERE online OR fresh OR old_online OR coalesce(old_due > getvariable('time'), true)""",
    rows=f"""
SELECT 'active' AS output, agent, account, platform, version, labels, online, since, NULL::BIGINT AS last_seen,
  last_seen AS timestamp FROM folded WHERE changed
UNION ALL
SELECT 'active', agent, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM state ANTI JOIN folded USING (agent)
UNION ALL
SELECT 'offline', agent, one.account, NULL, NULL, NULL, NULL, NULL, one.last_seen, one.last_seen + {AFTER}
FROM (SELECT agent, unnest(absences) AS one FROM folded WHERE absences IS NOT NULL) ORDER BY agent, timestamp""",
    gives="output STRING, agent STRING, account STRING, platform STRING, version STRING, labels MAP<STRING,STRING>, "
    "online BOOLEAN, since BIGINT, last_seen BIGINT, timestamp BIGINT",
    due="due",
)


VALUE = ("agent", "account", "platform", "version", "labels", "timestamp", "online", "since")


def transform(check_ins: DataFrame) -> DataFrame:
    return AGENTS(check_ins).withColumn("said", unless_forgotten(*VALUE))


STREAM = Stream(
    name="agents-active",
    app="agents",
    runs=agents_settings().run,
    inputs={"check_ins": Input(CHECK_INS, schema=CHECK_IN, event_time=KNOWN)},
    transform=transform,
    output={
        "active": TopicOutput(ACTIVE_AGENTS, key="agent", value="said"),
        "offline": TopicOutput(AGENT_OFFLINE, key="agent", value=("agent", "account", "last_seen", "timestamp")),
    },
    # Each beat costs a batch: this often, who is silent is told within five seconds.
    promise=Folded(tick=timedelta(seconds=1.5)),
    shuffle_partitions=2,
)
